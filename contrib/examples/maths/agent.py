"""An agent that solves word problems: one call, with room to think."""

from openai import OpenAI

SYSTEM = "Solve the problem step by step. End with a line that has four # and the number: #### 72"
MAX_TOKENS = 1024

llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def solve(row):
    """Return the model's solution of a problem."""
    reply = llm.chat.completions.create(
        model="any",
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": row["question"]},
        ],
        max_tokens=MAX_TOKENS,
    )
    return reply.choices[0].message.content or ""
