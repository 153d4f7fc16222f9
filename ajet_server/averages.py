"""Means and sums that no finite numbers can overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence

LARGEST_TERM = 1e290
"""Numbers bounded by this may be added up by the million without an overflow."""


def mean(values: Sequence[float]) -> float:
    """The mean of finite numbers, rounded once; finite for any of them.

    :param values: [N], N >= 1.
    """
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        # The sum is too large for a float; the mean never is.
        largest = max(map(abs, values))
        return math.fsum(value / largest for value in values) / len(values) * largest


def term(value: float) -> float:
    """`value` as a term of a running sum that must not overflow."""
    return max(-LARGEST_TERM, min(LARGEST_TERM, value))
