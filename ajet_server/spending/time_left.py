"""How long the remaining steps will take, from the durations of recent ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev

from ajet_core.protocol import TimeLeft

WINDOW = 32
"""Steps that an estimate is based on."""
FEWEST = 5
"""Steps without which there is no interval."""

# Quantiles 0.95 of Student's t distribution, by degrees of freedom from 1 to WINDOW - 1.
_T95 = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796),
    *(1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717),
    *(1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697, 1.696),
)
_MOST_CORRELATION = 0.6


def time_left(durations: Sequence[float], steps: int, elapsed: float = 0.0) -> TimeLeft | None:
    """Estimate how long `steps` more steps take.

    The estimate is the mean duration d times the steps R. The interval is the prediction interval
    of Student's t for the sum of R more values after n (Hahn 1969, "Factors for calculating
    two-sided prediction intervals"), with the standard deviation s:
    ``R d ± t s sqrt(R (1 + R / n) c)``. The factor ``c = (1 + r) / (1 - r)`` is the growth of the
    variance of a sum whose neighbours have the correlation r (a process AR(1)).

    :param durations: seconds of the last steps, in order; the last 32 are used.
    :param elapsed: seconds since the last of them ended.
    :return: None if there are no durations.
    """
    last = durations[-WINDOW:]
    if not last:
        return None
    mean = fmean(last)
    # What has passed of a step that takes longer than usual says little about its end.
    passed = min(elapsed, mean) if steps else 0.0
    seconds = max(0.0, mean * steps - passed)
    n = len(last)
    if n < FEWEST:
        return TimeLeft(steps=steps, seconds=seconds)
    r = _correlation(last, mean)
    spread = stdev(last) * math.sqrt(steps * (1 + steps / n) * (1 + r) / (1 - r))
    reach = _T95[n - 2] * spread
    low, high = max(0.0, seconds - reach), seconds + reach
    return TimeLeft(steps=steps, seconds=seconds, low=low, high=high)


def _correlation(values: Sequence[float], mean: float) -> float:
    """Return the correlation of neighbours, between 0 and a limit.

    Few values underestimate it, by (1 + 3 r) / n on average (Kendall 1954), which is added.
    """
    n = len(values)
    total = math.fsum((value - mean) ** 2 for value in values)
    if not total:
        return 0.0
    r = math.fsum((a - mean) * (b - mean) for a, b in pairwise(values)) / total
    return min(max(r + (1 + 3 * r) / n, 0.0), _MOST_CORRELATION)
