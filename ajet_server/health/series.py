"""Series of a run's metrics: robust levels of before and now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, median

ENOUGH = 5
"""Steps before which a change is not judged."""

WINDOW = 20
"""Steps that tell what was usual before."""

_NOW = 3
# The standard deviation of a normal distribution over its median absolute deviation.
_MAD = 1.4826


@dataclass(frozen=True, slots=True)
class Change:
    """A level.

    :param now: the median of the last steps.
    :param before: the median of the steps before them.
    :param newest: the last step alone.
    """

    now: float
    before: float
    newest: float

    def growth(self, limit: float, least: float) -> float:
        """How much it grew relative to `limit`; for a single step, to its square.

        :param least: levels below it count as it.
        """
        before = max(self.before, least)
        return max(self.now / before / limit, self.newest / before / limit**2)


@dataclass(frozen=True, slots=True)
class Trend:
    """How the mean reward went, as means of a few batches.

    :param best: the highest.
    :param now: the last.
    :param risen: of the best above the lowest before it.
    :param height: `risen`, or the spread of single episodes if that is more.
    :param noise: the standard error of `now`, judged by how much batches differ from those before them, and by the spread
        of single episodes.
    """

    best: float
    now: float
    risen: float
    height: float
    noise: float


def values(history: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """A metric of the steps that report it."""
    return [metrics[name] for metrics in history if name in metrics]


def of_most_tasks(
    history: Sequence[Mapping[str, float]],
) -> Sequence[Mapping[str, float]]:
    """The steps that trained at least half of their tasks.

    What a trainer measures is about what it computed. Of a batch in which few tasks have a signal that is little, and
    not like the rest.
    """
    return [m for m in history if 2 * m.get("tasks_equal", 0.0) <= m.get("tasks", 0.0)]


def ratios(history: Sequence[Mapping[str, float]], part: str, whole: str) -> list[float]:
    """The ratio of two metrics in the steps that report them; 0 where the whole is 0."""
    return [
        metrics[part] / metrics[whole] if metrics[whole] else 0.0
        for metrics in history
        if part in metrics and whole in metrics
    ]


def too_few(known: int, needed: int) -> str:
    """Why there is no reading yet."""
    return f"{known} of the {needed} steps that it needs"


def change(found: Sequence[float]) -> Change | None:
    """The level of a series now and before; None if it is too short."""
    before = found[:-_NOW][-WINDOW:]
    if len(before) < ENOUGH - _NOW + 1:
        return None
    return Change(median(found[-_NOW:]), median(before), found[-1])


def reward_trend(history: Sequence[Mapping[str, float]]) -> Trend | None:
    """How the mean reward went; None if there are too few steps."""
    rewards = values(history, "reward_mean")
    if len(rewards) < ENOUGH:
        return None
    smooth = [fmean(rewards[i : i + _NOW]) for i in range(len(rewards) - _NOW + 1)]
    best = max(smooth)
    at_best = smooth.index(best)
    spreads = values(history, "reward_std")
    risen = best - min(smooth[: at_best + 1])
    spread = sqrt(fmean([spread**2 for spread in spreads])) if spreads else 0.0
    height = max(risen, spread)
    steps = [abs(b - a) for a, b in pairwise(rewards)]
    # A difference of two batches has twice the variance of one, the mean of n batches an nth of it.
    noise = _MAD * median(steps) / sqrt(2 * _NOW)
    if tasks := values(history, "tasks"):
        # A few batches may be alike by chance, above all if most rewards are. At worst tasks differ, and their episodes do not.
        noise = max(noise, spread / sqrt(_NOW * max(1.0, median(tasks))))
    return Trend(best, smooth[-1], risen, height, noise)


def solved(history: Sequence[Mapping[str, float]]) -> bool:
    """Whether the mean reward is what was learnt at best, so that there is little left to learn.

    Rewards that no step with a signal came near are not learnt, however good they are.
    """
    taught = [metrics for metrics in history if not metrics.get("no_signal")]
    trend, rewards = reward_trend(taught), values(history, "reward_mean")[-_NOW:]
    if trend is None or not trend.height or 2 * trend.risen < trend.height:
        return False
    return abs(max(values(taught, "reward_mean")) - fmean(rewards)) <= 0.25 * trend.height
