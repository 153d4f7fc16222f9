"""Lines of text for a terminal of any width, with or without Unicode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len

from ajet_server.page.visible_text import visible, visible_lines

Tone = Literal["", "strong", "dim", "good", "warn", "bad"]
Line = tuple[tuple[str, Tone], ...]
"""A line, as texts with their tones. No text has a control character."""

_LEAST_FLEXIBLE = 8


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What lines are drawn with.

    :param ascii_only: whether the terminal shows nothing else.
    :param bars: from the least to the greatest value.
    """

    ascii_only: bool
    bars: str
    full: str
    empty: str
    cut: str
    cursor: str

    def text(self, text: str) -> str:
        """Return `text` on one line, with everything escaped that the terminal does not show."""
        return self._known(visible(text))

    def lines(self, text: str) -> list[str]:
        """Return the lines of `text`, likewise."""
        return [self._known(line) for line in visible_lines(text)]

    def _known(self, text: str) -> str:
        if not self.ascii_only or text.isascii():
            return text
        return text.encode("ascii", "backslashreplace").decode()


UNICODE = Glyphs(
    ascii_only=False,
    bars="▁▂▃▄▅▆▇█",
    full="█",
    empty="░",
    cut="…",
    cursor="▶",
)
ASCII = Glyphs(ascii_only=True, bars="_.-=+*%#", full="#", empty=".", cut="~", cursor=">")


def line(text: str = "", tone: Tone = "") -> Line:
    """Return a line of one tone."""
    return ((text, tone),)


def fit(text: str, width: int, glyphs: Glyphs, *, right: bool = False) -> str:
    """Return `text` in exactly `width` cells, cut or padded."""
    if (size := cell_len(text)) > width:
        text = _head(text, 0, max(0, width - 1)) + glyphs.cut * (width > 0)
        size = cell_len(text)
    padding = " " * (width - size)
    return padding + text if right else text + padding


def wrapped(text: str, width: int) -> Iterator[str]:
    """Yield a line of text in pieces of at most `width` cells."""
    return (text[start:end] for start, end in _pieces(text, width, width))


def paragraph(parts: Iterable[tuple[str, Tone]], width: int, indent: str = "") -> list[Line]:
    """Return texts that follow each other, wrapped as one paragraph.

    :param indent: begins each line but the first.
    """
    given = [part for part in parts if part[0]]
    whole = "".join(text for text, _ in given)
    lines: list[Line] = []
    for start, end in _pieces(whole, width, width - len(indent)):
        styled: list[tuple[str, Tone]] = [(indent, "")] if lines and indent else []
        at = 0
        for text, tone in given:
            if piece := text[max(0, start - at) : max(0, end - at)]:
                styled.append((piece, tone))
            at += len(text)
        lines.append(tuple(styled))
    return lines


def _pieces(text: str, width: int, next_width: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the lines of `text`, broken at spaces if possible.

    :param width: cells of the first line.
    :param next_width: cells of the others.
    """
    at, room = 0, max(2, width)
    while True:
        end = at + (len(_head(text, at, room)) or 1)
        if end >= len(text):
            yield at, len(text)
            return
        # A word that takes a third of the line or more is broken itself.
        space = text.rfind(" ", at, end + 1)
        if space - at > room * 2 // 3:
            yield at, space
            at = space + 1
        else:
            yield at, end
            at = end
        room = max(2, next_width)


def _head(text: str, at: int, width: int) -> str:
    """Return as much of `text`, from `at` on, as fits into `width` cells."""
    piece = text[at : at + width]
    while (over := cell_len(piece) - width) > 0:
        piece = piece[: len(piece) - (over + 1) // 2]
    return piece


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    :param width: in cells; 0 to share what is left.
    :param keep: whether it stays in a terminal that is too narrow for all columns.
    """

    title: str
    width: int = 0
    right: bool = False
    keep: bool = True


class Columns:
    """The columns of a table in a given width. The last that need not stay are left out first."""

    def __init__(self, columns: Sequence[Column], width: int, glyphs: Glyphs) -> None:
        shown = list(range(len(columns)))
        while self._needed(columns, shown) > width:
            spare = [at for at in shown if not columns[at].keep]
            if not spare:
                break
            shown.remove(spare[-1])
        flexible = [at for at in shown if columns[at].width == 0]
        room = width - (self._needed(columns, shown) - _LEAST_FLEXIBLE * len(flexible))
        share, rest = divmod(max(len(flexible), room), len(flexible) or 1)
        self._columns = columns
        self._widths = {
            at: columns[at].width or share + (flexible.index(at) < rest) for at in shown
        }
        self._glyphs = glyphs

    @staticmethod
    def _needed(columns: Sequence[Column], shown: Sequence[int]) -> int:
        return sum((columns[at].width or _LEAST_FLEXIBLE) + 1 for at in shown) - 1

    def head(self) -> str:
        """Return the titles."""
        return self.row([column.title for column in self._columns])

    def row(self, cells: Sequence[str]) -> str:
        """Return a row as one text; `cells` has a visible text for each column."""
        return " ".join(
            fit(cells[at], width, self._glyphs, right=self._columns[at].right)
            for at, width in self._widths.items()
        )
