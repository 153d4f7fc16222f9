"""Scores of Inspect as numbers."""

from __future__ import annotations

import pytest
from ajet_sources_inspect.scores import parts_of, reward_of


def test_words_and_numbers_are_converted_as_inspect_does() -> None:
    values = {"a": "C", "b": "I", "c": "P", "d": "N", "e": "Yes", "f": "0.25", "g": True, "h": 2}
    assert list(parts_of(values).values()) == [1.0, 0.0, 0.5, 0.0, 1.0, 0.25, 1.0, 2.0]


@pytest.mark.parametrize("value", ["good", None, [1, 2], float("inf"), "nan", {"x": "bad"}])
def test_what_is_no_number_is_never_zero(value: object) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        parts_of({"scorer": value})


def test_the_first_score_is_the_reward_unless_another_is_chosen() -> None:
    parts = parts_of({"a": 1, "b": {"x": 2, "y": 3}})
    assert reward_of(parts, "") == 1.0
    assert reward_of(parts, "b.y") == 3.0
    with pytest.raises(ValueError, match=r"a, b\.x, b\.y"):
        reward_of(parts, "b")
    with pytest.raises(ValueError, match="not scored"):
        reward_of({}, "")
