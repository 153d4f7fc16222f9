"""HTML that escapes what is not its own."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from ajet_cli.report.markup import clock, cut, table, tag
from ajet_cli.words import number
from tests.report.pages import ParsedPage

HOSTILE = "</td></script><img src=x onerror=alert(1)>\"'&<!-- \u202e \x1b[2J \ud83d"


@given(st.text() | st.just(HOSTILE))
def test_texts_and_attributes_stay_what_they_are(text: str) -> None:
    page = table(text, [text], [[text]]) + tag("p", {"title": text}, text)
    page.encode()
    parsed = ParsedPage.of(page)
    names = [name for name, _ in parsed.elements]
    assert names == ["div", "table", "caption", "thead", "tr", "th", "tbody", "tr", "td", "p"]
    for char in "".join(parsed.texts):
        assert char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co"}


def test_hidden_characters_are_shown_by_their_numbers() -> None:
    assert ParsedPage.of(tag("p", {}, "a\u202eb\x00\n")).texts == ["a\\u202eb\\u0000\n"]


@given(st.floats() | st.integers(-(10**30), 10**30))
def test_numbers_are_short(value: float) -> None:
    assert len(number(value)) <= 20


def test_numbers_are_those_that_people_read() -> None:
    shown = [number(value) for value in (0.123456, 12345, 1234.5678, 1e-9, None, float("nan"))]
    assert shown == ["0.1235", "12,345", "1235", "1.00e-09", "-", "nan"]


def test_a_cut_text_says_how_much_is_missing() -> None:
    assert cut("abcdef", 4) == "abcd [2 more characters]"
    assert cut("abcd", 4) == "abcd"


def test_times_are_in_utc_and_impossible_ones_are_not_shown() -> None:
    assert clock(1700000000.0) == "2023-11-14 22:13:20 UTC"
    assert [clock(None), clock(0), clock(1e300)] == ["-", "-", "-"]
