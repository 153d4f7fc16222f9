"""95 % confidence intervals, without further libraries."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

# Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1; above, the normal
# distribution's.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
NORMAL = 1.96
_TAIL = 0.025


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of a mean by Student's t; there must be at least two values."""
    mean, freedom = statistics.mean(values), len(values) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the mean of shares, clipped; (0, 1) for a single value."""
    if len(values) < 2:
        return 0.0, 1.0
    low, high = mean_interval(values)
    return max(0.0, low), min(1.0, high)


def rate_interval(events: int, trials: int) -> tuple[float, float]:
    """Return the interval of the rate of `events` in independent trials (Clopper and Pearson)."""
    low = 0.0 if events == 0 else _root(lambda rate: 1 - _at_most(events - 1, trials, rate) - _TAIL)
    high = 1.0 if events == trials else _root(lambda rate: _TAIL - _at_most(events, trials, rate))
    return low, high


def _at_most(events: int, trials: int, rate: float) -> float:
    """Return the probability of at most so many events."""
    return sum(
        math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(events + 1)
    )


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
