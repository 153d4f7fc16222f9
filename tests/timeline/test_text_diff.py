"""What changed between two texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ajet_server.page.text_diff import diff_parts, text_diff

TEXTS = st.lists(st.sampled_from(["one", "two", " ", "\n", "-", "t"]), max_size=25).map("".join)


@given(TEXTS, TEXTS)
def test_the_parts_give_both_texts(before: str, after: str) -> None:
    parts = diff_parts(before, after)
    assert "".join(text for kind, text in parts if kind != "new") == before
    assert "".join(text for kind, text in parts if kind != "gone") == after


def test_a_changed_word_is_shown_whole() -> None:
    assert diff_parts("it is 10:01 now", "it is 10:02 now") == [
        ("same", "it is 10:"),
        ("gone", "01"),
        ("new", "02"),
        ("same", " now"),
    ]


def test_long_texts_are_cut_where_they_agree() -> None:
    parts = diff_parts("x" * 10**6 + " a " + "y" * 10**6, "x" * 10**6 + " b " + "y" * 10**6)
    assert [kind for kind, _ in parts] == ["same", "gone", "new", "same"]
    assert sum(len(text) for _, text in parts) < 1000
    assert "[...]" in parts[0][1]


def test_two_long_texts_with_little_in_common_take_no_time() -> None:
    before, after = "a b " * 10**5, "c d " * 10**5
    assert [kind for kind, _ in diff_parts(before, after)][:2] == ["gone", "new"]


def test_a_line_shows_what_is_gone_and_what_is_new() -> None:
    assert text_diff("It is 10:31.", "It is 10:32.") == "It is 10:[-31-]{+32+}."
    assert text_diff("", "new {word}") == "{+new {word}+}"
    assert text_diff("same", "same") == "same"


def test_the_line_of_long_texts_is_short() -> None:
    long = "word " * 2000
    shown = text_diff(long + "a" + long, long + "b" + long)
    assert "[-a" in shown
    assert "{+b" in shown
    assert len(shown) < 600
