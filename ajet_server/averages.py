"""Means and sums that do not overflow for any finite inputs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LARGEST_TERM = 1e290
"""Millions of terms up to this magnitude can be added without overflow."""


def mean(values: Sequence[float]) -> float:
    """Return the mean of finite numbers, rounded once; the result is always finite.

    :param values: [N], N >= 1.
    """
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        # The sum overflows a float, but the mean never does.
        largest = max(map(abs, values))
        return math.fsum(value / largest for value in values) / len(values) * largest


def term(value: float) -> float:
    """Clamp `value` so that it can be added to a running sum without overflow."""
    return max(-LARGEST_TERM, min(LARGEST_TERM, value))


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return Pearson's correlation of finite numbers, None if either list is constant.

    :param xs: [N].
    :param ys: [N].
    """
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    scaled = [[value / max(map(abs, values)) for value in values] for values in (xs, ys)]
    try:
        return max(-1.0, min(1.0, statistics.correlation(*scaled)))
    except statistics.StatisticsError:
        # The values differ by less than a float can tell from their mean.
        return None
