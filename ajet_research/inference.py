"""Exact inference from paired seeds: the sign-flip test, the interval that inverts it, verdicts.

The unit is the seed. `differences` are one number per seed: the outcome of one arm minus that of
the other, turned so that a positive one favours the arm. Under the hypothesis that the true
difference is `theta`, each ``d - theta`` is as likely as its negative. The test statistic is the
absolute sum over all 2^n assignments of signs.

Its inversion needs no search. For ``theta`` below the mean, an assignment is at least as extreme as
what was observed if and only if the mean over the seeds that it flips, or over those that it does
not flip, is at most ``theta``; both cannot hold. So the two-sided p value is
``2 * (1 + #{subsets with mean <= theta}) / 2^n``, and the interval lies between two order
statistics of the means of all 2^n - 1 nonempty subsets: Hartigan's typical values (J. A. Hartigan,
"Using subsample values as typical values", JASA 64, 1969). Test and interval cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["better", "worse", "equivalent", "undecided", "invalid"]
VERDICTS: tuple[Verdict, ...] = ("better", "worse", "equivalent", "undecided", "invalid")
MOST_SEEDS = 20
"""All 2^n assignments of signs are enumerated."""
_ROUNDING = 1e-12
"""Relative to the largest difference; what lies closer to a limit counts as on it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What paired seeds say about a difference.

    :param seeds: number of pairs.
    :param gain: mean difference; positive ones favour the arm.
    :param low: lower end of the interval; minus infinity if `alpha` is out of reach.
    :param high: upper end.
    :param p: two-sided p value of the exact sign-flip test that the true difference is 0.
    :param alpha: error rate of the interval.
    :param wins: share of seeds in which the arm had the better outcome; half of the ties count.
    """

    seeds: int
    gain: float
    low: float
    high: float
    p: float
    alpha: float
    wins: float


def least_p(seeds: int) -> float:
    """Return the smallest two-sided p value that so many pairs can reach."""
    return 2.0 / 2.0**seeds


def least_seeds(alpha: float) -> int:
    """Return the smallest number of pairs that can reach a p value of `alpha`."""
    seeds = 1
    while least_p(seeds) > alpha:
        seeds += 1
    return seeds


def estimate(differences: Sequence[float], alpha: float) -> Estimate:
    """Test and estimate the mean of paired differences.

    :raises ValueError: there are no differences, more than `MOST_SEEDS`, or some are not finite.
    """
    n = len(differences)
    if not 1 <= n <= MOST_SEEDS or not all(map(math.isfinite, differences)):
        raise ValueError(f"between 1 and {MOST_SEEDS} finite differences are needed")
    slack = _ROUNDING * max(abs(value) for value in differences)
    means = _subset_means(differences)
    assignments = 2**n
    below = int((means <= slack).sum())
    above = int((means >= -slack).sum())
    p = min(1.0, 2.0 * (1 + min(below, above)) / assignments)
    low, high = -math.inf, math.inf
    if (rank := _rank(alpha, n)) > 0:
        ordered = np.partition(means, [rank - 1, len(means) - rank])
        low, high = float(ordered[rank - 1]), float(ordered[len(means) - rank])
    wins = sum(1.0 if d > slack else 0.5 if d >= -slack else 0.0 for d in differences) / n
    gain = math.fsum(differences) / n
    # Zero, not its negative, so that both have the same bytes in a report.
    return Estimate(n, gain + 0.0, low + 0.0, high + 0.0, p, alpha, wins)


def _rank(alpha: float, seeds: int) -> int:
    """Return which subset mean, counted from the least, is the lower end of the interval."""
    # A product a rounding error below a whole number is that number.
    return math.floor(alpha * 2.0 ** (seeds - 1) * (1 + 1e-12))


def _subset_means(differences: Sequence[float]) -> np.ndarray:
    """Return the means of all nonempty subsets; shape ``[2^n - 1]``.

    Additions happen in one order on every machine, so results are the same to the last bit.
    """
    sums = np.zeros(1)
    sizes = np.zeros(1)
    for value in differences:
        sums = np.concatenate([sums, sums + value])
        sizes = np.concatenate([sizes, sizes + 1])
    means: np.ndarray = sums[1:] / sizes[1:]
    return means


def verdict_of(estimated: Estimate, smallest: float) -> Verdict:
    """Compare an interval with the smallest effect of interest.

    ``better`` means by more than `smallest`: the whole interval lies above it. So an effect below
    the smallest of interest is called better with at most half of the registered error rate,
    however many seeds there are. ``equivalent`` means that the whole interval lies within
    ``±smallest``.
    """
    slack = _ROUNDING * max(abs(estimated.gain), smallest)
    if estimated.low > smallest + slack:
        return "better"
    if estimated.high < -smallest - slack:
        return "worse"
    if estimated.low > -smallest + slack and estimated.high < smallest - slack:
        return "equivalent"
    return "undecided"


def holds(estimated: Estimate, margin: float) -> bool:
    """Return whether a guardrail holds: the arm is shown to be worse by less than `margin`."""
    return estimated.low > -margin + _ROUNDING * max(abs(estimated.gain), margin)


def paired(
    arm: Mapping[int, float], against: Mapping[int, float], *, sign: float
) -> dict[int, float]:
    """Return the differences by seed, of seeds that both arms have, turned by `sign`."""
    return {
        seed: sign * (value - against[seed])
        for seed, value in sorted(arm.items())
        if seed in against
    }
