"""The views of a run's steps are those of the metrics as they are, looked at one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_server.health.past import Past

# The second has the mark that parts names of metrics from tags.
TAGS = ("a", "b/c", "d")
WINDOW, TASKS, LIKE = 20, 4, 0.25


def shares(step: Mapping[str, float]) -> dict[str, float]:
    """What each tag has of the episodes."""
    had = {tag: step[f"episodes/{tag}"] for tag in TAGS if f"episodes/{tag}" in step}
    return {tag: n / sum(had.values()) for tag, n in had.items()} if sum(had.values()) else {}


def distance(step: Mapping[str, float], other: Mapping[str, float]) -> float:
    """How much of the episodes of one step would need another tag to be those of the other."""
    one, two = shares(step), shares(other)
    return sum(abs(one.get(tag, 0.0) - two.get(tag, 0.0)) for tag in TAGS) / 2


def parts(history: Sequence[Mapping[str, float]], tag: str) -> list[list[int]] | None:
    """The places of the steps that are joined to judge a tag; None if it is forgotten."""
    had = [place for place, step in enumerate(history) if step.get(f"tasks/{tag}")]
    if not had or len(history) - had[-1] > WINDOW:
        return None
    gaps = [after for before, after in pairwise(had) if after - before > WINDOW]
    had = [place for place in had if not gaps or place >= gaps[-1]]
    found: list[list[int]] = []
    joined: list[int] = []
    for place in had:
        joined.append(place)
        if sum(history[p][f"tasks/{tag}"] for p in joined) >= TASKS:
            found.append(joined)
            joined = []
    return found


def episodes_of(steps: Sequence[Mapping[str, float]], tag: str) -> tuple[float, float, float]:
    """How many episodes some steps had of a tag, with the mean and the spread of their rewards."""
    counts = [step[f"episodes/{tag}"] for step in steps]
    means = [step[f"reward_mean/{tag}"] for step in steps]
    total = sum(counts)
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / total
    squares = [m**2 + s[f"reward_std/{tag}"] ** 2 for m, s in zip(means, steps, strict=True)]
    square = sum(n * q for n, q in zip(counts, squares, strict=True)) / total
    return total, mean, sqrt(max(0.0, square - mean**2))


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    count = draw(st.sampled_from([1, 5, 50]))
    tags = draw(st.lists(st.sampled_from(TAGS), unique=True))
    away = draw(st.integers(0, 45))
    for number in range(count):
        step = {"tasks": 8.0, "rollout_corr/a": 1.0}
        for tag in tags:
            if (tag == "a" and away <= number < away + 21) or draw(st.integers(0, 3)) == 0:
                continue
            step[f"tasks/{tag}"] = float(draw(st.integers(0, 5)))
            step[f"episodes/{tag}"] = float(draw(st.integers(1, 9)))
            step[f"reward_mean/{tag}"] = draw(st.integers(0, 4)) / 4
            step[f"reward_std/{tag}"] = draw(st.integers(0, 4)) / 4
        found.append(step)
    return found


@settings(deadline=None)
@given(histories())
def test_the_views_are_those_of_the_metrics(history: list[dict[str, float]]) -> None:
    past = Past.of(history)
    assert past.steps == history
    like = {id(step) for step in past.of_like_tags}
    for step in history:
        # Just at the limit rounding decides.
        if abs((far := distance(step, history[-1])) - LIKE) > 1e-9:
            assert (id(step) in like) == (far < LIKE)
    recent = {tag for tag in TAGS for step in history[-WINDOW:] if f"episodes/{tag}" in step}
    known = {tag: parts(history, tag) for tag in recent if shares(history[-1])}
    assert past.by_tag.keys() == {tag for tag, joined in known.items() if joined is not None}
    for tag, views in past.by_tag.items():
        joined = known[tag] or []
        assert [begins for begins, _ in views] == [places[0] for places in joined]
        for (_, figures), places in zip(views, joined, strict=True):
            episodes, mean, spread = episodes_of([history[p] for p in places], tag)
            assert figures["tasks"] == sum(history[p][f"tasks/{tag}"] for p in places)
            assert figures["episodes"] == episodes
            assert figures["reward_mean"] == pytest.approx(mean)
            assert figures["reward_std"] == pytest.approx(spread, abs=1e-6)
