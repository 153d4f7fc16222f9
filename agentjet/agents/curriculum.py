"""Curricula: each epoch takes the tasks that the model can learn most from at present."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentjet.client import Task
from ajet_core.errors import RequestError

_NEWEST = 0.5
"""The weight of the last spread of a task's rewards; the rest is that of the ones before."""


@dataclass(frozen=True)
class Curriculum:
    """A choice of tasks by their difficulty, made anew for each epoch.

    A task whose episodes all get the same reward, because it is too hard or solved, teaches
    nothing: its advantages are 0. The others teach the more, the more their rewards differ; for
    rewards of 0 and 1 that is the standard deviation ``sqrt(p (1 - p))`` of a success rate p.
    Tasks are drawn without replacement, with weights that follow from the standard deviation of the
    rewards that their last episodes got. Tasks that were never rolled out come first.

    The rewards are those that the server has stored, so another process continues where the last
    one stopped. When the run has gone back to a checkpoint, the rewards of what was forgotten do
    not count for a process that is started once the run is ROLLING again.

    :param share: of the tasks that each epoch takes, 0 < share <= 1.
    :param least: the weight of a task whose rewards were all equal, relative to the task whose
        rewards differ most, > 0: the model changes, so each task comes again.
    :param seed: of the draws.
    :raises RequestError: an argument is out of range.
    """

    share: float = 0.5
    least: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise RequestError(
                f"share is {self.share}; it must be above 0 and at most 1", param="share"
            )
        if not (self.least > 0 and math.isfinite(self.least)):
            raise RequestError(f"least is {self.least}; it must be above 0", param="least")

    def choose(self, tasks: Sequence[Task], epoch: int, spreads: Mapping[str, float]) -> list[Task]:
        """Return the tasks of an epoch, in the order in which they were drawn.

        :param spreads: by task id, the standard deviation of the rewards of tasks that were rolled
            out.
        """
        most = max(spreads.values(), default=0.0)
        draws = random.Random(f"{self.seed} {epoch}")  # noqa: S311

        def rank(task: Task) -> float:
            # Efraimidis and Spirakis 2006: the smallest of these are a draw without replacement.
            wait = -math.log(1.0 - draws.random())
            if task.id not in spreads:
                return wait - math.inf
            return wait / (self.least + (spreads[task.id] / most if most else 0.0))

        ranked = sorted(((rank(task), draws.random(), task) for task in tasks), key=lambda r: r[:2])
        return [task for *_, task in ranked[: max(1, round(self.share * len(tasks)))]]


class Spreads:
    """How much the rewards of each task differ, over the epochs so far.

    :ivar by_task: as in `Curriculum.choose`.
    :ivar epochs: the number of epochs that are included.
    """

    def __init__(self) -> None:
        self.by_task: dict[str, float] = {}
        self.epochs = 0

    def add(self, by_task: Mapping[str, float | None]) -> None:
        """Include the next epoch.

        :param by_task: of the tasks that were rolled out; None if too few episodes have a reward,
            because the program failed. Such a task keeps its spread, and begins with 0.
        """
        self.epochs += 1
        for task_id, spread in by_task.items():
            before = self.by_task.get(task_id, spread or 0.0)
            new = before if spread is None else spread
            self.by_task[task_id] = _NEWEST * new + (1 - _NEWEST) * before
