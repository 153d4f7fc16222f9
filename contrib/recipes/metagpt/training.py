"""Trains the program: `AJET_URL=... AJET_TOKEN=... python training.py`."""

from __future__ import annotations

import functools
from typing import Any

from program import Role, play

from agentjet import agent_name, train, trainable

_MARK = "__named_for_training__"


def name_roles() -> None:
    """Let the model calls of each role be recorded under its name; a repeat changes nothing."""
    run = Role.run
    if hasattr(run, _MARK):
        return

    @functools.wraps(run)
    async def runs(role: Role, *args: Any, **kwargs: Any) -> Any:
        with agent_name(role.name):
            return await run(role, *args, **kwargs)

    setattr(runs, _MARK, True)
    Role.run = runs


def score(_task: str, doors: list[str]) -> float:
    """To open the left door."""
    return float(doors == ["left"])


name_roles()
# MetaGPT asks with temperature 0, from which nothing is learned.
solve = trainable(play, reward=score, sampling={"temperature": 1.0})


def main() -> Any:
    """Each of 16 tasks as often as the run's batches want."""
    return train(solve, [f"Find the gold in house {i}." for i in range(16)])


if __name__ == "__main__":
    print(main().reward_mean)  # noqa: T201
