"""The client for code: its rewards run tests in a sandbox."""

from openai import AsyncOpenAI

from agentjet import train, trainable

TESTS = {
    "doubles": "def test_it(): assert f(3) == 6",
    "squares": "def test_it(): assert f(3) == 9",
    "negates": "def test_it(): assert f(3) == -3",
}
llm = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


@trainable(reward="unit_tests", tag="code")
async def solve(task):
    question = [{"role": "user", "content": f"Write f that {task['id']} x."}]
    reply = await llm.chat.completions.create(model="tiny", messages=question, max_tokens=16)
    return reply.choices[0].message.content


while True:
    train(solve, [{"id": verb, "tests": tests} for verb, tests in TESTS.items()])
