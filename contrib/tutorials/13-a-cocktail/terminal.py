"""The client for the terminal: each episode has a shell and files of its own, in a sandbox."""

import asyncio
from pathlib import Path

from agentjet import AsyncSwarmClient, Task, train_async
from ajet_exec import BoxedProgram, ProgramTerms, load_sandbox

WANTED = {"Show": "b\na\n", "Sort": "a\nb\n", "Count": "2\n"}
TASKS = [
    Task(verb, {"prompt": f"{verb} the notes.", "answer": answer}, tag="terminal")
    for verb, answer in WANTED.items()
]


def reward(result):
    return float(result.stdout.read_text() == result.task["answer"])


async def main():
    terms = ProgramTerms(
        argv=("sh", "shell.sh", "{prompt}"), reward=reward, files=Path(__file__).parent / "files"
    )
    async with (
        AsyncSwarmClient() as client,
        BoxedProgram(terms, load_sandbox("bubblewrap"), client) as program,
    ):
        while True:
            await train_async(program, TASKS, client=client)


asyncio.run(main())
