"""The client for maths: its rewards compare answers with sympy, in whatever form they are."""

from openai import AsyncOpenAI

from agentjet import train, trainable

SUMS = {"2 + 3": "5", "9 - 2": "7", "2 * 4": "8", "8 / 8": "1"}
llm = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


@trainable(reward="symbolic", tag="maths")
async def solve(task):
    question = [{"role": "user", "content": f"Compute {task['id']}."}]
    reply = await llm.chat.completions.create(model="tiny", messages=question, max_tokens=8)
    return reply.choices[0].message.content


while True:
    train(solve, [{"id": question, "answer": answer} for question, answer in SUMS.items()])
