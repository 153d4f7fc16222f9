"""A program to be killed: it trains eight tasks with a curriculum, and stops after HOLD episodes.

``curriculum_program.py HOLD``. The directory COUNTS has what its tasks got so far.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from agentjet import Curriculum, train, trainable

TASKS = [*(f"easy-{i}" for i in range(3)), *(f"hard-{i}" for i in range(3)), "some-0", "some-1"]
CHOICE = Curriculum(share=0.25, explore=0.25, seed=2)
EPOCHS = 7
llm = AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


async def solve(task: str) -> float:
    if next(begun) >= hold:
        # Whoever waits for this file knows that an episode is open.
        Path(os.environ["STANDING"]).touch()
        await asyncio.Event().wait()
    question: Any = [{"role": "user", "content": task}]
    await llm.chat.completions.create(model="any", messages=question, max_tokens=4)
    kind = task.partition("-")[0]
    if kind != "some":
        return float(kind == "easy")
    # By turns, also across processes: episodes run one after the other.
    count = Path(os.environ["COUNTS"]) / task
    with count.open("a") as file:
        file.write(".")
    return float(count.stat().st_size % 2)


if __name__ == "__main__":
    hold, begun = int(sys.argv[1]), itertools.count()
    train(
        trainable(solve),
        TASKS,
        epochs=EPOCHS,
        concurrency=1,
        resume=True,
        progress=False,
        curriculum=CHOICE,
    )
