"""Differences between two texts by words, shortened for readers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Literal

DiffKind = Literal["same", "gone", "new"]
DiffPart = tuple[DiffKind, str]

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_CONTEXT = 120
_CHANGED = 2000
_LINE = 60
_QUADRATIC = 10**6
_CUT = " [...] "


def diff_parts(before: str, after: str) -> list[DiffPart]:
    """Return the parts of both texts in order; long parts lack their middle."""
    return [
        (kind, _cut(text, _CONTEXT if kind == "same" else _CHANGED))
        for kind, text in _parts(before, after)
        if text
    ]


def text_diff(before: str, after: str) -> str:
    """Return both texts in one, with [-removed-] and {+added+} parts, shortened in the middle."""
    marks = {"same": "{}", "gone": "[-{}-]", "new": "{{+{}+}}"}
    return "".join(
        marks[kind].format(_cut(text, _LINE if kind == "same" else 2 * _LINE))
        for kind, text in _parts(before, after)
        if text
    )


def _parts(before: str, after: str) -> Iterator[DiffPart]:
    start = _common(before, after)
    end = min(_common(before[::-1], after[::-1]), min(len(before), len(after)) - start)
    old = _WORD.findall(before[start : len(before) - end])
    new = _WORD.findall(after[start : len(after) - end])
    yield "same", before[:start]
    if len(old) * len(new) > _QUADRATIC:
        # The matcher is quadratic.
        yield "gone", "".join(old)
        yield "new", "".join(new)
    else:
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            if tag == "equal":
                yield "same", "".join(old[a:b])
            else:
                yield "gone", "".join(old[a:b])
                yield "new", "".join(new[c:d])
    yield "same", before[len(before) - end :] if end else ""


def _common(first: str, second: str) -> int:
    """Return the length of the common beginning, up to the last word boundary."""
    limit = min(len(first), len(second))
    size = next((i for i in range(limit) if first[i] != second[i]), limit)
    if size == len(first) == len(second):
        return size
    while size and first[size - 1].isalnum():
        size -= 1
    return size


def _cut(text: str, room: int) -> str:
    return text if len(text) <= 2 * room else f"{text[:room]}{_CUT}{text[-room:]}"
