"""The metrics of a run's steps, as a whole and by tag of a mixture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Self

from ajet_server.health.series import WINDOW

Figures = Mapping[str, float]
"""Values by name."""

_COUNTS = ("tasks", "episodes", "calls", "calls_malformed")
_OF_TAGS = frozenset({*_COUNTS, "reward_mean", "reward_std", "tokens_per_call", "sampled_entropy"})
# Fewer tasks of a tag give no meaningful values.
_TASKS = 4
# The mixtures of two batches must not differ by more than this share to be comparable.
_LIKE = 0.25


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of a step, parsed once, because many checks read many steps.

    :ivar of_tags: the values of each tag, named without the tag.
    :ivar episodes: by tag of the mixture; empty without one.
    :ivar shares: of the tags in the episodes.
    """

    metrics: Figures
    of_tags: Mapping[str, Figures]
    episodes: Figures
    shares: Figures

    @classmethod
    def of(cls, metrics: Figures) -> Self:
        """Parse the metrics of a step."""
        of_tags: dict[str, dict[str, float]] = {}
        episodes: dict[str, float] = {}
        for name, value in metrics.items():
            kind, slash, tag = name.partition("/")
            if slash and kind in _OF_TAGS:
                of_tags.setdefault(tag, {})[kind] = value
                if kind == "episodes":
                    episodes[tag] = value
        total = sum(episodes.values())
        shares = {tag: value / total for tag, value in episodes.items()} if total > 0 else {}
        return cls(metrics, of_tags, episodes, shares)


class Past:
    """Consecutive steps, the newest last, with the views that checks need, each computed once.

    :ivar steps: all of them.
    """

    def __init__(self, steps: Sequence[StepMetrics]) -> None:
        self._steps = steps
        self.steps = [step.metrics for step in steps]

    @classmethod
    def of(cls, steps: Iterable[Figures]) -> Self:
        """Create the past of a run from its metrics by step."""
        return cls([StepMetrics.of(metrics) for metrics in steps])

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def of_like_tags(self) -> Sequence[Figures]:
        """The steps with a mixture of tags similar to the newest one's.

        A trainer's measurements cover all it computed. After a change of the mixture they are not
        comparable, whatever the weights.
        """
        newest = self._steps[-1].shares
        return [s.metrics for s in self._steps if _distance(s.shares, newest) <= _LIKE]

    @cached_property
    def by_tag(self) -> dict[str, list[tuple[int, Figures]]]:
        """The values of each tag of a mixture, each with its first index in `steps`.

        Steps in which a tag has less than `_TASKS` tasks are joined, because few tasks are noisy. A
        gap of more than `WINDOW` steps discards what the tag had before, and a tag without tasks in
        the last `WINDOW` steps is left out. Empty if the newest step had no mixture.
        """
        if not self._steps[-1].episodes:
            return {}
        tags = {tag for step in self._steps[-WINDOW:] for tag in step.episodes}
        histories = {tag: self._of_tag(tag) for tag in tags}
        return {tag: known for tag, known in histories.items() if known is not None}

    def _of_tag(self, tag: str) -> list[tuple[int, Figures]] | None:
        known: list[tuple[int, Figures]] = []
        joined: list[Figures] = []
        tasks, begins, last = 0.0, 0, -1
        for place, step in enumerate(self._steps):
            figures = step.of_tags.get(tag)
            if figures is None or not figures.get("tasks"):
                continue
            if last >= 0 and place - last > WINDOW:
                known, joined = [], []
            last = place
            if not joined:
                tasks, begins = 0.0, place
            joined.append(figures)
            tasks += figures["tasks"]
            if tasks >= _TASKS:
                known.append((begins, _as_one(joined)))
                joined = []
        return None if last < 0 or len(self._steps) - last > WINDOW else known


def _as_one(steps: Sequence[Figures]) -> Figures:
    """Combine a tag's values of several steps as if they were one step."""
    if len(steps) == 1:
        return steps[0]

    def average(name: str, weight: str, power: int = 1) -> float:
        parts = [(m[weight], m[name] ** power) for m in steps if m.get(weight) and name in m]
        total = sum([of for of, _ in parts])
        return sum([of * value for of, value in parts]) / total if total else 0.0

    joined = {name: sum([m.get(name, 0.0) for m in steps]) for name in _COUNTS}
    if joined["episodes"]:
        mean = average("reward_mean", "episodes")
        square = average("reward_mean", "episodes", 2) + average("reward_std", "episodes", 2)
        joined |= {"reward_mean": mean, "reward_std": sqrt(max(0.0, square - mean**2))}
    if joined["calls"]:
        joined["tokens_per_call"] = average("tokens_per_call", "calls")
        if any("sampled_entropy" in metrics for metrics in steps):
            joined["sampled_entropy"] = average("sampled_entropy", "calls")
    return joined


def _distance(a: Figures, b: Figures) -> float:
    """Return the total variation distance, 0 to 1 for shares that sum to 1."""
    return sum(abs(a.get(tag, 0.0) - b.get(tag, 0.0)) for tag in {*a, *b}) / 2
