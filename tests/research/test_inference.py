"""The exact test, its interval and the verdicts, against definitions and another implementation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_research.inference import (
    Estimate,
    estimate,
    holds,
    least_p,
    least_seeds,
    paired,
    verdict_of,
)

# Quarters, so that sums are exact and ties are frequent.
VALUES = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=8)
ALPHAS = st.sampled_from([0.0125, 0.05, 0.1, 0.25, 0.5])


def brute_p(differences: list[float], theta: float) -> float:
    """The definition: the share of sign assignments whose sum is at least as far from 0."""
    moved = [value - theta for value in differences]
    observed = abs(sum(moved))
    signs = itertools.product((1, -1), repeat=len(moved))
    sums = [abs(sum(s * d for s, d in zip(row, moved, strict=True))) for row in signs]
    return sum(one >= observed - 1e-9 for one in sums) / len(sums)


@given(VALUES)
@settings(deadline=None)
def test_p_is_the_share_of_sign_assignments_as_extreme(differences: list[float]) -> None:
    assert estimate(differences, 0.05).p == pytest.approx(brute_p(differences, 0.0))


@given(VALUES, ALPHAS)
@settings(deadline=None)
def test_the_interval_has_the_values_that_the_test_does_not_reject(
    differences: list[float], alpha: float
) -> None:
    its = estimate(differences, alpha)
    for theta in (n / 8 + 0.01 for n in range(-48, 48)):
        rejected = brute_p(differences, theta) <= alpha
        assert rejected == (theta < its.low or theta > its.high), theta


@given(VALUES, ALPHAS)
@settings(deadline=None)
def test_test_and_interval_agree_about_zero(differences: list[float], alpha: float) -> None:
    its = estimate(differences, alpha)
    assert (its.p <= alpha) == (its.low > 1e-12 or its.high < -1e-12)


@given(VALUES, ALPHAS, st.sampled_from([0.25, 1.0, 3.0]))
@settings(deadline=None)
def test_the_mirror_image_has_the_opposite_verdict(
    differences: list[float], alpha: float, smallest: float
) -> None:
    other = {"better": "worse", "worse": "better"}
    verdict = verdict_of(estimate(differences, alpha), smallest)
    mirrored = verdict_of(estimate([-value for value in differences], alpha), smallest)
    assert mirrored == other.get(verdict, verdict)


@pytest.mark.parametrize("seeds", [3, 8, 12])
def test_p_is_that_of_scipy(seeds: int) -> None:
    from scipy import stats

    differences = np.random.default_rng(seeds).normal(0.4, 1, seeds)
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert estimate(list(differences), 0.05).p == pytest.approx(theirs.pvalue)


def test_twenty_seeds_are_enumerated() -> None:
    its = estimate([1.0] * 20, 0.05)
    assert its == Estimate(20, 1.0, 1.0, 1.0, least_p(20), 0.05, 1.0)


def test_twenty_one_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="between 1 and 20"):
        estimate([1.0] * 21, 0.05)


@pytest.mark.parametrize(("alpha", "seeds"), [(0.05, 6), (0.0125, 8), (0.25, 3), (0.04, 6)])
def test_least_seeds_reach_alpha_and_one_less_does_not(alpha: float, seeds: int) -> None:
    assert least_seeds(alpha) == seeds
    assert least_p(seeds) <= alpha < least_p(seeds - 1)


def test_an_alpha_out_of_reach_leaves_the_interval_open() -> None:
    its = estimate([1.0, 2.0], 0.05)
    assert (its.low, its.high) == (-math.inf, math.inf)
    assert verdict_of(its, 0.1) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.1, 2.0, "better"),
        (1.0, 2.0, "undecided"),
        (0.1, 2.0, "undecided"),
        (-0.9, 0.9, "equivalent"),
        (0.1, 0.9, "equivalent"),
        (-1.0, 0.9, "undecided"),
        (-2.0, -1.1, "worse"),
        (-2.0, -0.5, "undecided"),
    ],
)
def test_verdicts_compare_the_interval_with_the_smallest_effect(
    low: float, high: float, verdict: str
) -> None:
    assert verdict_of(Estimate(8, (low + high) / 2, low, high, 0.01, 0.05, 1.0), 1.0) == verdict


def test_equal_differences_at_the_smallest_effect_show_no_more_than_it() -> None:
    assert verdict_of(estimate([0.1 + 0.2 - 0.3 + 0.2] * 8, 0.05), 0.2) == "undecided"


@pytest.mark.parametrize(("low", "held"), [(-0.05, True), (-0.1, False), (-0.5, False)])
def test_a_guardrail_holds_if_the_loss_is_shown_to_be_below_its_margin(
    low: float, held: bool
) -> None:
    assert holds(Estimate(8, 0.0, low, 1.0, 1.0, 0.05, 0.5), 0.1) is held


def test_pairs_are_the_seeds_of_both_arms_in_order() -> None:
    pairs = paired({3: 1.0, 1: 5.0, 7: 2.0}, {1: 4.0, 3: 3.0, 9: 0.0}, sign=-1.0)
    assert list(pairs.items()) == [(1, -1.0), (3, 2.0)]


def test_an_alpha_a_rounding_error_below_a_rank_reaches_it() -> None:
    differences = [1.0, 2.0, 4.0, 8.0]
    exact, below = estimate(differences, 0.25), estimate(differences, math.nextafter(0.25, 0))
    assert (below.low, below.high) == (exact.low, exact.high) == (1.5, 6.0)


def test_a_tie_is_half_a_win() -> None:
    assert estimate([1.0, 0.5, 0.0, -1.0], 0.5).wins == 2.5 / 4
