"""Train the program: `AJET_URL=... AJET_TOKEN=... python training.py`."""

from __future__ import annotations

import functools
from typing import Any

from program import Role, play

from agentjet import agent_name, train, trainable

_MARK = "__named_for_training__"


def name_roles() -> None:
    """Record the model calls of each role under its name; repeated calls have no effect."""
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
    """Return 1 if only the left door was opened, otherwise 0."""
    return float(doors == ["left"])


name_roles()
# MetaGPT samples with temperature 0, which gives nothing to learn from.
solve = trainable(play, reward=score, sampling={"temperature": 1.0})


def main() -> Any:
    """Train on 16 tasks, each as often as the run's batches need."""
    return train(solve, [f"Find the gold in house {i}." for i in range(16)])


if __name__ == "__main__":
    print(main().reward_mean)  # noqa: T201
