"""Means of numbers whose sum no float can hold."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from ajet_server.averages import mean

NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1)


@given(NUMBERS)
@example([5e-324, 0.0])
def test_a_mean_is_finite_and_within_its_values(values: list[float]) -> None:
    found = mean(values)
    assert math.isfinite(found)
    exact = sum(map(Fraction, values), Fraction()) / len(values)
    # Next to 0, floats are no closer to each other than the smallest one is to 0.
    bound = Fraction(max(abs(value) for value in values)) * 4 / 2**52 + Fraction(math.ulp(0.0))
    assert abs(Fraction(found) - exact) <= bound


def test_a_sum_that_overflows_has_a_mean() -> None:
    assert mean([sys.float_info.max] * 3) == sys.float_info.max
    assert mean([1e308, 1e308, -1e308, -1e308]) == 0.0
