"""pass@k against its definition: the share of choices of k episodes with one that passed."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.pass_at import mean_pass_at, pass_at_k


@st.composite
def attempts(draw: st.DrawFn) -> tuple[int, int, int]:
    episodes = draw(st.integers(1, 9))
    return episodes, draw(st.integers(0, episodes)), draw(st.integers(1, episodes))


@given(attempts())
def test_it_is_the_share_of_choices_with_a_pass(drawn: tuple[int, int, int]) -> None:
    episodes, passed, k = drawn
    outcomes = [True] * passed + [False] * (episodes - passed)
    choices = list(itertools.combinations(outcomes, k))
    assert pass_at_k(episodes, passed, k) == float(Fraction(sum(map(any, choices)), len(choices)))


@given(st.integers(1, 10_000), st.data())
def test_it_is_exact_at_its_ends_and_for_one(episodes: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, episodes))
    assert pass_at_k(episodes, 0, episodes) == 0.0
    assert pass_at_k(episodes, episodes, 1) == 1.0
    assert pass_at_k(episodes, passed, 1) == passed / episodes


def test_small_chances_among_many_episodes_are_not_rounded_away() -> None:
    assert pass_at_k(10**6, 1, 10) == pytest.approx(1e-5, rel=1e-15)


def test_tasks_weigh_the_same_whatever_their_episodes() -> None:
    assert mean_pass_at({(8, 8): 1, (1, 0): 3}, [1]) == {1: 0.25}


def test_only_tasks_with_enough_episodes_count() -> None:
    tallies = {(4, 1): 1, (1, 1): 5}
    assert mean_pass_at(tallies, [1, 2, 8]) == {1: 5.25 / 6, 2: 0.5}
