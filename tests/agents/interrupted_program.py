"""A program to be killed: it trains six tasks, and stops after HOLD episodes.

``interrupted_program.py asynchronous|threads HOLD``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
from pathlib import Path

from agentjet import train, trainable
from tests.agents import plain

TASKS = [f"t{i}" for i in range(6)]
kind, hold = sys.argv[1], int(sys.argv[2])
begun = threading.Semaphore(hold)
rewarded = itertools.count()


def stands_still() -> bool:
    if begun.acquire(blocking=False):
        return False
    # Whoever waits for this file knows that an episode is open.
    Path(os.environ["STANDING"]).touch()
    return True


def reward() -> float:
    """Different ones by turns: a run without any signal pauses."""
    return float(next(rewarded) % 2)


async def solve(task: str) -> float:
    await plain.play(task)
    if stands_still():
        await asyncio.Event().wait()
    return reward()


def solve_in_thread(task: str) -> float:
    plain.play_sync(task)
    if stands_still():
        threading.Event().wait()
    return reward()


if __name__ == "__main__":
    # Whoever runs in the background of a shell is given a process that ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program = trainable({"asynchronous": solve, "threads": solve_in_thread}[kind])
    report = train(
        program, TASKS, epochs=2, episodes_per_task=2, concurrency=4, resume=True, progress=False
    )
    sys.stdout.write(str(len(report.outcomes)))
