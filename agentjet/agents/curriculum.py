"""Curricula: each epoch takes the tasks that the model can learn most from at present."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentjet.client import Task
from ajet_core.errors import RequestError
from ajet_core.protocol import GroupCounts

_PRIOR_EPISODES = 2.0
_HALF_LIFE = 4.0
"""In passes: how many rollouts per task of the dataset halve the weight of older rewards."""


@dataclass(frozen=True)
class Curriculum:
    """Chooses the tasks of each epoch by their measured success rates.

    A task whose episodes all fail, or all succeed, teaches nothing: its advantages are 0. A task
    teaches most at a success rate of one half. So a success rate is drawn for each task from its
    rewards (Thompson sampling from a Beta posterior), and the tasks nearest to one half are chosen.
    A task with few rewards is thus chosen more often than one that almost certainly teaches
    nothing.

    - Because the model changes, the rewards of episodes count half after the curriculum has rolled
      out four times as many tasks as there are.
    - Tasks with the same tag and `difficulty` (to one decimal) share a prior, worth two episodes:
      the success rate of all of them, which before their first rewards is 1 - `difficulty`, or one
      half without it.
    - The share `explore` of the places goes to the tasks that were not rolled out for the longest
      time. No task is left out for ever, whatever its rewards.
    - Rewards between the least and the greatest count as the success rate at which rewards of only
      these two would vary as much, so that equal rewards never count as one half.
    - A task whose episodes are all aborted counts as failed.

    The rewards are those that the server has stored, so another process continues where the last
    one stopped. When the run has gone back to a checkpoint, the rewards of what was forgotten do
    not count for a process that is started once the run is ROLLING again. The choice is a function
    of these rewards and of `seed`, whatever the order of the tasks.

    :param share: of the tasks that each epoch takes, 0 < share <= 1.
    :param explore: of these, the share that is chosen by waiting alone, 0 < explore <= 1. Each task
        comes again after about 1 / (explore * share) epochs at the latest.
    :param rewards: the least and the greatest reward, by default those of the source, or 0 and 1.
        Groups whose mean lies outside of them widen it.
    :param seed: of the draws.
    :raises RequestError: an argument is out of range.
    """

    share: float = 0.5
    explore: float = 0.1
    rewards: tuple[float, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("explore", self.explore)):
            if not 0 < value <= 1:
                raise RequestError(
                    f"{name} is {value}; it must be above 0 and at most 1", param=name
                )
        if self.rewards is not None:
            least, greatest = self.rewards
            if not (least < greatest and math.isfinite(greatest - least)):
                raise RequestError(
                    f"rewards is {self.rewards}; the first must be less than the second",
                    param="rewards",
                )

    def choose(self, tasks: Sequence[Task], epoch: int, measured: Measured) -> list[Task]:
        """Return the tasks of an epoch, in random order.

        :param epoch: its number, from 1.
        :param measured: the epochs before.
        :raises RequestError: a task has a difficulty that is not between 0 and 1.
        """
        places = max(1, round(self.share * len(tasks)))
        exploring = self.explore * places
        waiting = math.floor(epoch * exploring) - math.floor((epoch - 1) * exploring)
        # A generator for each task, so that neither their order nor other tasks change a draw.
        draws = {task.id: random.Random(f"{self.seed} {epoch} {task.id}") for task in tasks}  # noqa: S311
        order = {name: draw.random() for name, draw in draws.items()}
        longest = sorted(tasks, key=lambda task: (measured.last.get(task.id, 0), order[task.id]))
        posteriors = measured.posteriors(tasks, self.rewards or (0.0, 1.0))

        def distance(task: Task) -> float:
            return abs(draws[task.id].betavariate(*posteriors[task.id]) - 0.5)

        nearest = sorted(longest[waiting:], key=distance)[: places - waiting]
        return sorted(longest[:waiting] + nearest, key=lambda task: order[task.id])

    def kept(self) -> float:
        """Return the weight that a measurement keeps from one epoch to the next."""
        return float(0.5 ** (self.share / _HALF_LIFE))


@dataclass(slots=True)
class _Rewards:
    """Weighted sums over the episodes of a task.

    :param aborted: episodes of epochs in which none of its episodes ended.
    """

    episodes: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    aborted: float = 0.0


class Measured:
    """What the episodes of a dataset have shown about its tasks, over the epochs so far.

    :ivar epochs: the number of epochs that are included.
    :ivar last: by task id, the last epoch in which it was rolled out.
    """

    def __init__(self) -> None:
        self.epochs = 0
        self.last: dict[str, int] = {}
        self._rewards: dict[str, _Rewards] = {}
        self._least, self._greatest = math.inf, -math.inf

    def add(self, counts: Mapping[str, GroupCounts], kept: float = 1.0) -> None:
        """Include the next epoch.

        :param counts: of its episodes, by task id.
        :param kept: the weight that the epochs before keep.
        """
        self.epochs += 1
        for history in self._rewards.values():
            history.episodes *= kept
            history.total *= kept
            history.squares *= kept
            history.aborted *= kept
        for name, of_task in counts.items():
            if not (of_task.ended or of_task.aborted):
                continue
            self.last[name] = self.epochs
            history = self._rewards.setdefault(name, _Rewards())
            mean, std = of_task.reward_mean, of_task.reward_std
            if mean is not None and std is not None:
                history.episodes += of_task.ended
                history.total += of_task.ended * mean
                history.squares += of_task.ended * (mean**2 + std**2)
                self._least = min(self._least, mean)
                self._greatest = max(self._greatest, mean)
            elif not of_task.ended:
                history.aborted += of_task.aborted

    def success_rate(self, task_id: str, rewards: tuple[float, float]) -> float | None:
        """Return the success rate of a task's episodes so far, None if none has a reward.

        :param rewards: the least and the greatest reward.
        """
        history = self._rewards.get(task_id)
        if history is None or not history.episodes:
            return None
        least, greatest = min(rewards[0], self._least), max(rewards[1], self._greatest)
        mean = history.total / history.episodes
        variance = (history.squares / history.episodes - mean**2) / (greatest - least) ** 2
        # p (1 - p) = variance, on the side of the mean; of rewards of 0 and 1, p is the mean.
        aside = math.sqrt(0.25 - min(max(variance, 0.0), 0.25))
        return 0.5 + math.copysign(aside, mean - (least + greatest) / 2)

    def posteriors(
        self, tasks: Sequence[Task], rewards: tuple[float, float]
    ) -> dict[str, tuple[float, float]]:
        """Return both parameters of the Beta distribution of each task's success rate.

        :param rewards: the least and the greatest reward.
        :raises RequestError: a task has a difficulty that is not between 0 and 1.
        """
        known: dict[str, tuple[float, float]] = {}
        alike: dict[str, tuple[str, float | None]] = {}
        pools: dict[tuple[str, float | None], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for task in tasks:
            history = self._rewards.get(task.id)
            rate = self.success_rate(task.id, rewards)
            episodes = 0.0 if history is None else history.episodes
            succeeded = episodes * (rate or 0.0)
            failed = episodes - succeeded + (0.0 if history is None else history.aborted)
            known[task.id] = (succeeded, failed)
            pool = alike[task.id] = (task.tag, _to_one_decimal(task))
            pools[pool][0] += succeeded
            pools[pool][1] += failed
        priors = {}
        for (tag, difficulty), (succeeded, failed) in pools.items():
            first = 0.5 if difficulty is None else 1 - difficulty
            priors[tag, difficulty] = (_PRIOR_EPISODES * first + succeeded) / (
                _PRIOR_EPISODES + succeeded + failed
            )
        return {
            name: (
                1 + _PRIOR_EPISODES * priors[alike[name]] + succeeded,
                1 + _PRIOR_EPISODES * (1 - priors[alike[name]]) + failed,
            )
            for name, (succeeded, failed) in known.items()
        }


def _to_one_decimal(task: Task) -> float | None:
    if task.difficulty is None:
        return None
    if not 0 <= task.difficulty <= 1:
        raise RequestError(
            f"task {task.id!r} has the difficulty {task.difficulty}; a curriculum needs it between "
            "0 (easy) and 1, or None",
            param="tasks",
        )
    return round(task.difficulty, 1)
