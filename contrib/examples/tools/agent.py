"""An agent that serves a customer with the tools of a shop."""

from openai import BadRequestError, OpenAI, PermissionDeniedError
from shop import RULES, TOOLS, Shop

MOST_CALLS = 12
MAX_TOKENS = 256

llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def solve(row):
    """Serve the customer of a task; return the state of the shop afterwards."""
    shop = Shop(row["tables"])
    messages = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": row["request"]},
    ]
    try:
        for _ in range(MOST_CALLS):
            try:
                reply = llm.chat.completions.create(
                    model="any", messages=messages, tools=TOOLS, max_tokens=MAX_TOKENS
                )
            except (BadRequestError, PermissionDeniedError):
                # The context is full, or the episode has used up its calls or tokens.
                break
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = shop.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return shop.state()
    finally:
        shop.close()
