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
_EPISODES = "episodes/"
_COUNTS = ("tasks", "episodes", "calls", "calls_malformed")
_OF_TAGS = (*_COUNTS, "reward_mean", "reward_std", "tokens_per_call")
# Tasks of a tag that make its figures worth a look.
_TASKS = 4
# The share of a batch that may have other tags than another's, for both to be compared.
_LIKE = 0.25
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


def by_tag(
    history: Sequence[Mapping[str, float]],
) -> dict[str, list[tuple[int, Mapping[str, float]]]]:
    """The figures of each tag of a mixture, named without it, with the places in `history` where they begin.

    Chance makes more of few tasks: steps in which a tag has less than `_TASKS` of them are joined. What a tag had before
    `WINDOW` steps without any is forgotten, and so is a tag that had none in the last ones.

    :return: nothing if the newest step had no mixture.
    """
    found: dict[str, list[tuple[int, Mapping[str, float]]]] = {}
    for tag in _tags(history[-1]) and {
        tag for metrics in history[-WINDOW:] for tag in _tags(metrics)
    }:
        had = [place for place, metrics in enumerate(history) if metrics.get(f"tasks/{tag}")]
        if not had or len(history) - had[-1] > WINDOW:
            continue
        joined: list[Mapping[str, float]] = []
        known = found[tag] = []
        begins = had[0]
        for before, place in zip([had[0], *had], had, strict=False):
            if place - before > WINDOW:
                known.clear()
                joined.clear()
            if not joined:
                begins = place
            joined.append(history[place])
            if sum(metrics[f"tasks/{tag}"] for metrics in joined) >= _TASKS:
                known.append((begins, _of_tag(tag, joined)))
                joined.clear()
    return found


def _of_tag(tag: str, steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What some steps had of a tag, as if they were one."""
    figures = [
        {name: step[f"{name}/{tag}"] for name in _OF_TAGS if f"{name}/{tag}" in step}
        for step in steps
    ]
    if len(figures) == 1:
        return figures[0]

    def average(name: str, weight: str, power: int = 1) -> float:
        parts = [(m[weight], m[name] ** power) for m in figures if m.get(weight) and name in m]
        total = sum(of for of, _ in parts)
        return sum(of * value for of, value in parts) / total if total else 0.0

    joined = {name: sum(m.get(name, 0.0) for m in figures) for name in _COUNTS}
    if joined["episodes"]:
        mean = average("reward_mean", "episodes")
        square = average("reward_mean", "episodes", 2) + average("reward_std", "episodes", 2)
        joined |= {"reward_mean": mean, "reward_std": sqrt(max(0.0, square - mean**2))}
    if joined["calls"]:
        joined["tokens_per_call"] = average("tokens_per_call", "calls")
    return joined


def of_like_tags(history: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    """The steps that had much the same mixture of tags as the newest one.

    What a trainer measures is about all it computed. After a change of the mixture that is something else, whatever the
    weights are like.
    """
    newest = _shares(history[-1])
    return [metrics for metrics in history if _distance(_shares(metrics), newest) <= _LIKE]


def _tags(metrics: Mapping[str, float]) -> dict[str, float]:
    """Episodes by tag of the mixture; nothing without one."""
    return {
        name.removeprefix(_EPISODES): metrics[name]
        for name in metrics
        if name.startswith(_EPISODES)
    }


def _shares(metrics: Mapping[str, float]) -> dict[str, float]:
    tags = _tags(metrics)
    total = sum(tags.values())
    return {tag: episodes / total for tag, episodes in tags.items()} if total > 0 else {}


def _distance(a: Mapping[str, float], b: Mapping[str, float]) -> float:
    """Total variation distance, 0 to 1 for shares that sum to 1."""
    return sum(abs(a.get(tag, 0.0) - b.get(tag, 0.0)) for tag in {*a, *b}) / 2


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
