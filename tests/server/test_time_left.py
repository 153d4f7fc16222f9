"""The estimate of the time left."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.spending.time_left import FEWEST, WINDOW, time_left

Durations = Callable[[random.Random, int], list[float]]


def _normal(rng: random.Random, n: int) -> list[float]:
    return [max(1.0, rng.gauss(60, 10)) for _ in range(n)]


def _lognormal(rng: random.Random, n: int) -> list[float]:
    return [rng.lognormvariate(4, 0.5) for _ in range(n)]


def _gamma(rng: random.Random, n: int) -> list[float]:
    return [20 + rng.gammavariate(1.5, 20) for _ in range(n)]


def _correlated(rng: random.Random, n: int) -> list[float]:
    values, x = [], rng.gauss(0, 1)
    for _ in range(n):
        x = 0.5 * x + rng.gauss(0, 0.75**0.5)
        values.append(60 + 10 * x)
    return values


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 10, 100])
@pytest.mark.parametrize(
    ("durations", "known", "least"),
    [
        (_normal, FEWEST, 0.88),
        (_normal, WINDOW, 0.88),
        (_lognormal, FEWEST, 0.83),
        (_lognormal, WINDOW, 0.87),
        (_gamma, FEWEST, 0.83),
        (_gamma, WINDOW, 0.87),
        (_correlated, WINDOW, 0.83),
    ],
)
def test_the_interval_contains_the_time_about_as_often_as_it_says(
    durations: Durations, known: int, least: float, steps: int
) -> None:
    rng = random.Random(7)
    cases, hits = 400, 0
    for _ in range(cases):
        values = durations(rng, known + steps)
        left = time_left(values[:known], steps)
        assert left is not None
        assert left.low is not None
        assert left.high is not None
        hits += left.low <= sum(values[known:]) <= left.high
    assert least <= hits / cases <= 0.99


@given(st.lists(st.floats(0, 1e6), max_size=80), st.integers(0, 10**6), st.floats(0, 1e7))
def test_the_estimate_is_within_its_interval(
    durations: list[float], steps: int, elapsed: float
) -> None:
    left = time_left(durations, steps, elapsed)
    if not durations:
        assert left is None
        return
    assert left is not None
    assert left.seconds >= 0
    assert (left.low is None) == (len(durations) < FEWEST)
    if left.low is not None and left.high is not None:
        assert 0 <= left.low <= left.seconds <= left.high


def test_old_steps_do_not_count() -> None:
    left = time_left([1000.0, *[10.0] * WINDOW], 3)
    assert left is not None
    assert (left.seconds, left.low, left.high) == (30.0, 30.0, 30.0)


def test_what_has_passed_of_a_step_is_not_left() -> None:
    left = time_left([10.0], 3, elapsed=4.0)
    assert left is not None
    assert left.seconds == 26.0
    slow = time_left([10.0], 3, elapsed=4000.0)
    assert slow is not None
    assert slow.seconds == 20.0
