"""Texts of agents and models, with nothing in them that a terminal or a reader would not see."""

from __future__ import annotations

import unicodedata
from functools import cache

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


class _Escapes(dict[int, str]):
    """What stands for each character, by code point."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        shown = f"\\u{code:04x}" if unicodedata.category(char) in _HIDDEN else char
        self[code] = shown
        return shown


_MARKS = {ord("\n"): "\u21b5", ord("\t"): "\u21e5"}


@cache
def _escapes(keep: str) -> _Escapes:
    return _Escapes({**_MARKS, **{ord(char): char for char in keep}})


def visible(text: str, keep: str = "") -> str:
    """Return `text` on one line, with control and invisible characters escaped.

    :param keep: characters that stay what they are, such as newlines.
    """
    return text if text.isprintable() else text.translate(_escapes(keep))


def visible_lines(text: str) -> list[str]:
    """Return the lines of `text`, with tabs as spaces and the rest as `visible` has it."""
    return [visible(line.expandtabs(4)) for line in text.split("\n")]


def shorten(text: str, width: int) -> str:
    """Shorten `text` to at most `width` characters by omitting its middle."""
    if len(text) <= width:
        return text
    head = (width - 3) * 2 // 3
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"
