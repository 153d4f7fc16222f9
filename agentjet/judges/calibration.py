"""How well a judge agrees with rewards that people gave."""

from __future__ import annotations

import asyncio
import inspect
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ajet_core.interfaces import EpisodeOutcome

_SHOWN = 60


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The agreement of a judge with given rewards.

    :param examples: task, result, given reward and the judge's reward of each example.
    :param tolerance: the largest difference that counts as agreement.
    """

    examples: Sequence[tuple[Any, Any, float, float]]
    tolerance: float

    @property
    def agreement(self) -> float:
        """The share of examples with rewards that agree."""
        return statistics.fmean(self._agrees(example) for example in self.examples)

    @property
    def correlation(self) -> float:
        """Spearman's rank correlation of the rewards; nan if one side gives the same to all."""
        given = [example[2] for example in self.examples]
        judged = [example[3] for example in self.examples]
        if len(set(given)) < 2 or len(set(judged)) < 2:
            return math.nan
        return statistics.correlation(_ranks(given), _ranks(judged))

    @property
    def bias(self) -> float:
        """The mean difference of the judge's rewards from those given."""
        return statistics.fmean(judged - given for _, _, given, judged in self.examples)

    @property
    def disagreements(self) -> list[tuple[Any, Any, float, float]]:
        """The examples that disagree, the largest difference first."""
        wrong = [example for example in self.examples if not self._agrees(example)]
        return sorted(wrong, key=lambda example: -abs(example[3] - example[2]))

    def __str__(self) -> str:
        summary = (
            f"{len(self.examples)} examples: agreement {self.agreement:.0%}, rank correlation "
            f"{self.correlation:.2f}, bias {self.bias:+.2f}"
        )
        lines = [summary]
        lines += [
            f"  given {given:g}, judged {judged:g}: {str(result)[:_SHOWN]!r}"
            for _, result, given, judged in self.disagreements
        ]
        return "\n".join(lines)

    def _agrees(self, example: tuple[Any, Any, float, float]) -> bool:
        return abs(example[3] - example[2]) <= self.tolerance


def calibrate(
    judge: Callable[[Any, Any], Any],
    examples: Sequence[tuple[Any, Any, float]],
    *,
    tolerance: float = 0.1,
) -> Calibration:
    """Judge examples whose rewards are known, eight at a time.

    ```python
    print(calibrate(judge, [(task, good, 1.0), (task, bad, 0.0)]))
    ```

    :param judge: a judge, or any reward function that is not a coroutine function of its own loop.
    :param examples: tasks, results and their rewards.
    :param tolerance: the largest difference that counts as agreement.
    :raises ValueError: there are no examples.
    """
    if not examples:
        raise ValueError("a calibration needs examples")

    def judged(example: tuple[Any, Any, float]) -> float:
        reward = judge(example[0], example[1])
        if inspect.isawaitable(reward):
            reward = asyncio.run(_result_of(reward))
        return EpisodeOutcome.of(reward).reward

    with ThreadPoolExecutor(8) as threads:
        rewards = list(threads.map(judged, examples))
    return Calibration(
        examples=[(*example, reward) for example, reward in zip(examples, rewards, strict=True)],
        tolerance=tolerance,
    )


async def _result_of(reward: Awaitable[Any]) -> Any:
    return await reward


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of theirs."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]
