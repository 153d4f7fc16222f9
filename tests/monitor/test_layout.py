"""Lines of text: whatever comes from a server fits, and moves no cursor."""

from __future__ import annotations

import math
import unicodedata
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from ajet_cli.monitor.layout import (
    ASCII,
    UNICODE,
    Column,
    Columns,
    Glyphs,
    fit,
    paragraph,
    wrapped,
)
from ajet_cli.monitor.lines import strip_of
from ajet_cli.monitor.plots import plot, sparkline
from ajet_cli.words import duration, number

HIDDEN: Final = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
GLYPHS = st.sampled_from([UNICODE, ASCII])
VALUES = st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=60)


@given(text=st.text(), glyphs=GLYPHS)
@example(text="\x1b]52;c;aGk=\x07\u202e\x9b1m\ud800", glyphs=UNICODE)
def test_no_text_has_a_character_that_a_terminal_obeys(text: str, glyphs: Glyphs) -> None:
    for shown in (glyphs.text(text), *glyphs.lines(text)):
        assert not [char for char in shown if unicodedata.category(char) in HIDDEN]
        assert shown.isascii() or not glyphs.ascii_only
    drawn = strip_of(((text, ""),), 40, glyphs)
    assert not [char for char in drawn.text if unicodedata.category(char) in HIDDEN]
    assert drawn.cell_length == 40


@given(text=st.text(st.characters(exclude_categories=HIDDEN)), width=st.integers(2, 40))
@example(text="words and words " * 8, width=20)
@example(text="\u6f22\u5b57 " * 20, width=5)
def test_wrapping_loses_only_the_spaces_it_breaks_at(text: str, width: int) -> None:
    pieces = list(wrapped(text, width))
    assert all(cell_len(piece) <= width for piece in pieces)
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
    at = 0
    for piece in pieces:
        assert text.startswith(piece, at) or text.startswith(piece, at + 1)
        at = text.index(piece, at) + len(piece)


@given(
    parts=st.lists(st.tuples(st.text("ab c\u6f22"), st.sampled_from(["", "dim"]))),
    width=st.integers(6, 30),
)
def test_a_paragraph_keeps_its_tones(parts: list, width: int) -> None:
    lines = paragraph(parts, width, "  ")
    assert all(sum(cell_len(text) for text, _ in each) <= width for each in lines)
    for tone in ("", "dim"):
        given_text = "".join(text for text, its in parts if its == tone)
        shown = "".join(text for each in lines for text, its in each if its == tone)
        assert shown.replace(" ", "") == given_text.replace(" ", "")


@given(text=st.text("ab\u6f22\u0301"), width=st.integers(0, 12), right=st.booleans())
def test_a_fitted_text_has_exactly_its_width(text: str, width: int, right: bool) -> None:
    assert cell_len(fit(text, width, UNICODE, right=right)) == width


@pytest.mark.parametrize("width", [20, 39, 40, 60, 81])
def test_a_narrow_table_leaves_out_what_need_not_stay(width: int) -> None:
    columns = Columns(
        (Column("name"), Column("a", 10, keep=False), Column("b", 20, keep=False), Column("c", 9)),
        width,
        UNICODE,
    )
    assert cell_len(columns.head()) == width
    assert columns.head().split()[0] == "name"
    assert columns.head().split()[-1] == "c"
    assert ("b" in columns.head().split()) is (width >= 50)


@given(values=VALUES, width=st.integers(1, 30), height=st.integers(2, 10), glyphs=GLYPHS)
@example(values=[-1.7e308, 1.7e308], width=30, height=5, glyphs=UNICODE)
@example(values=[5e-324, 0.0], width=30, height=5, glyphs=UNICODE)
def test_curves_fit_whatever_their_values(
    values: list[float | None], width: int, height: int, glyphs: Glyphs
) -> None:
    assert cell_len(sparkline(values, width, glyphs)) <= width
    steps = list(range(1, len(values) + 1))
    lines = plot(values, steps, width + 20, height, glyphs)
    assert len(lines) <= height
    assert all(cell_len(each) <= width + 20 for each in lines)


def test_a_curve_rises_with_its_values_and_has_gaps() -> None:
    assert sparkline([0.0, None, 1.0, 0.5], 10, UNICODE) == "▁ █▅"
    # Cells are means if there are more points than cells.
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2, UNICODE) == "▁█"
    assert sparkline([None], 10, UNICODE) == ""
    # Values that do not change are in the middle.
    assert sparkline([3.0, 3.0], 10, ASCII) == "=="


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (12345.0, "12,345"),
        (0.123456, "0.1235"),
        (-0.5, "-0.5"),
        (1234.56, "1235"),
        (0.00001, "1.00e-05"),
        (12345678.5, "1.23e+07"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_numbers_are_those_of_the_page(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (3.14, "3.1 s"), (60, "1 min"), (3725, "1 h 2 min"), (200_000, "2 d 7 h")],
)
def test_durations_are_those_of_the_page(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
