"""Texts that say the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_sources.generation.duplicates import SeenTexts, normalized, shingles, similarity

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=12).map(" ".join), max_size=20)


@given(TEXTS, st.sampled_from([0.2, 0.5, 0.8, 1.0]))
def test_exactly_those_with_a_similar_one_before_are_near(texts: list[str], near: float) -> None:
    seen = SeenTexts(near)
    kept: list[str] = []
    for text in texts:
        plain = normalized(text)
        close = any(similarity(shingles(plain), shingles(one)) >= near for one in kept)
        expected = "duplicate" if plain in kept else "near_duplicate" if close else None
        assert seen.add(text) == expected
        if expected is None:
            kept.append(plain)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is it?", "what  is\nIT ?", True),
        ("\uff21\uff22", "ab", True),
        ("What is 3 + 5?", "What is 3 - 5?", False),
        ("It costs 3.5", "It costs 35", False),
        ("\u4f60\u597d\uff1f", "\u4f60\u597d", True),
    ],
)
def test_texts_are_the_same_whatever_their_case_and_space(
    one: str, other: str, *, same: bool
) -> None:
    assert (normalized(one) == normalized(other)) is same


def test_other_numbers_make_another_task() -> None:
    seen = SeenTexts(0.8)
    assert [seen.add(f"Ann has {n} apples and eats {n - 1} of them.") for n in range(5)] == [
        None
    ] * 5
