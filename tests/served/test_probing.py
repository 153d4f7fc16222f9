"""What is made of the logprobs that a server is asked for when it is met."""

from __future__ import annotations

import math

import pytest

from ajet_engines.served.probing import is_scaled, is_whole

SURE = [0.0, -41.0, -57.5]
EVEN = [math.log(0.25)] * 3
LIKELY = [-0.004, -5.5, -9.0]
WHOLE = pytest.mark.parametrize("whole", [SURE, EVEN, LIKELY, [-1.2, -1.3, -2.0]])


@WHOLE
def test_logprobs_of_low_precision_are_still_of_the_whole_distribution(whole: list[float]) -> None:
    assert is_whole(whole, whole)
    assert is_whole([logprob * 1.004 for logprob in whole], whole)


@WHOLE
@pytest.mark.parametrize("cut", [[0.0, -9999.0], [0.0, -math.inf], [-0.6, -0.8]])
def test_logprobs_of_what_is_left_are_told_from_them(whole: list[float], cut: list[float]) -> None:
    assert not is_whole(cut, whole)


@pytest.mark.parametrize("once", [SURE, LIKELY])
def test_logprobs_that_the_temperature_does_not_change_are_noticed(once: list[float]) -> None:
    # By the same number all of them are more or less.
    assert is_scaled(once, [logprob / 2 - 0.3 for logprob in once])
    assert not is_scaled(once, once)


def test_an_even_distribution_is_the_same_at_every_temperature() -> None:
    assert is_scaled(EVEN, EVEN)
