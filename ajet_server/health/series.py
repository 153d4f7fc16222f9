"""Series of a run's metrics: robust statistics of earlier and recent steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, sqrt
from statistics import median

from ajet_server.averages import mean

ENOUGH = 5
"""The number of steps needed to judge a change."""

WINDOW = 20
"""The number of steps that define the usual level."""

_NOW = 3
# The share of tasks with equal rewards, in the last batches with a signal, if little is left to
# learn.
_FADED = 0.5
# Means of batches rarely differ by more than this many standard errors.
_NOISE = 3.0
# The standard deviation of a normal distribution over its median absolute deviation.
_MAD = 1.4826


@dataclass(frozen=True, slots=True)
class Change:
    """A recent level and earlier ones.

    :param now: the median of the last steps.
    :param before: the median of the steps before them.
    :param recent: the median of the last few of these.
    :param first: the median of the first steps.
    :param newest: the value of the last step.
    """

    now: float
    before: float
    recent: float
    first: float
    newest: float

    def growth(self, limit: float, least: float) -> float:
        """Return the recent growth over `limit`, or over its square what follows, if larger.

        A single step may grow more by chance, and a slow change since the first steps may be what
        the model learned.

        :param least: earlier levels below it count as it.
        """
        before, first = max(self.before, least), max(self.first, least)
        gross = max(self.newest / before, self.now / first)
        return max(self.now / before / limit, gross / limit**2)

    def fall(self, limit: float, least: float) -> float:
        """Return the recent fall over `limit`, or the fall since the first steps over its square.

        The fall counts from the recent level if that is higher, because a value that has grown from
        step to step is usually above its median.

        :param least: levels below it count as it.
        """
        now = max(self.now, least)
        return max(
            self.before / now / limit, self.recent / now / limit, self.first / now / limit**2
        )


@dataclass(frozen=True, slots=True)
class Trend:
    """The course of the mean reward, as means of a few batches.

    :param best: the highest.
    :param now: the last.
    :param risen: the difference between the best and the lowest before it.
    :param height: `risen`, or the spread of single episodes if that is more.
    :param noise: the standard error of `now`, estimated from the differences between successive
        batches and from the spread of single episodes.
    """

    best: float
    now: float
    risen: float
    height: float
    noise: float


def values(history: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """Return a metric for the steps that report it."""
    return [metrics[name] for metrics in history if name in metrics]


def ratios(history: Sequence[Mapping[str, float]], part: str, whole: str) -> list[float]:
    """Return the ratio of two metrics for the steps that report both; 0 where the whole is 0."""
    return [
        metrics[part] / metrics[whole] if metrics[whole] else 0.0
        for metrics in history
        if part in metrics and whole in metrics
    ]


def too_few(known: int, needed: int) -> str:
    """Return why there is no reading yet."""
    return f"it needs {needed} steps and has {known}"


def change(levels: Sequence[float]) -> Change | None:
    """Return the recent and the earlier levels of a series; None if it is too short."""
    before = levels[:-_NOW][-WINDOW:]
    if len(before) < ENOUGH - _NOW + 1:
        return None
    return Change(
        now=median(levels[-_NOW:]),
        before=median(before),
        recent=median(before[-ENOUGH:]),
        first=median(levels[:-_NOW][:ENOUGH]),
        newest=levels[-1],
    )


def reward_trend(history: Sequence[Mapping[str, float]]) -> Trend | None:
    """Return the course of the mean reward; None if there are too few steps."""
    rewards = values(history, "reward_mean")
    if len(rewards) < ENOUGH:
        return None
    smooth = [mean(rewards[i : i + _NOW]) for i in range(len(rewards) - _NOW + 1)]
    best = max(smooth)
    at_best = smooth.index(best)
    spreads = values(history, "reward_std")
    risen = best - min(smooth[: at_best + 1])
    spread = hypot(*spreads) / sqrt(len(spreads)) if spreads else 0.0
    height = max(risen, spread)
    steps = [abs(b - a) for a, b in pairwise(rewards)]
    # The difference of two batches has twice the variance of one, the mean of n batches 1/n of it.
    noise = _MAD * median(steps) / sqrt(2 * _NOW)
    if tasks := values(history, "tasks"):
        # A few batches may be alike by chance, especially if most rewards are. In the worst case,
        # tasks differ but their episodes do not.
        noise = max(noise, spread / sqrt(_NOW * max(1.0, median(tasks))))
    return Trend(best, smooth[-1], risen, height, noise)


def solved(history: Sequence[Mapping[str, float]]) -> bool:
    """Return whether the mean reward is the best that was learned, so that little is left to learn.

    Rewards that no step with a signal came near were not learned, however good they are. Nor is a
    model done that from one step to the next always acts the same way, so that it succeeds in all
    episodes of some tasks, and in none of others.
    """
    taught = [metrics for metrics in history if not metrics.get("no_signal")]
    trend, rewards = reward_trend(taught), values(history, "reward_mean")[-_NOW:]
    if trend is None or not trend.height or 2 * trend.risen < trend.height:
        return False
    # If the signal faded, batches differ only in their tasks, and the best one had easier tasks. A
    # broken reward, or sampling that became greedy, ends the signal at once.
    fading = mean(ratios(taught, "tasks_equal", "tasks")[-_NOW:] or [0.0]) >= _FADED
    now, near = mean(rewards), 0.25 * trend.height
    silent = [metrics for metrics in history[-_NOW:] if metrics.get("no_signal")]
    if silent and not fading and mean(values(silent, "reward_std") or [0.0]) > trend.height / 2:
        return False
    if abs(max(values(taught, "reward_mean")) - now) <= near:
        return True
    return fading and abs(trend.best - now) <= near + _NOISE * trend.noise
