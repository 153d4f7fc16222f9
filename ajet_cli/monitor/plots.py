"""Curves as text."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_cli.monitor.layout import Glyphs
from ajet_cli.words import number

_LABEL = 10


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs) -> str:
    """Return a curve as one line of at most `width` cells; gaps are spaces.

    Each cell is the mean of consecutive points.
    """
    cells = _cells(values, width)
    known = [value for value in cells if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    return "".join(
        " " if value is None else glyphs.bars[_level(value, low, high, len(glyphs.bars))]
        for value in cells
    )


def plot(
    values: Sequence[float | None], steps: Sequence[int], width: int, height: int, glyphs: Glyphs
) -> list[str]:
    """Return a curve as `height` lines: bars with the greatest and the least value, and the steps.

    :param values: [P] of P points.
    :param steps: [P] the last step of each point.
    """
    rows = max(1, height - 1)
    room = max(1, width - _LABEL - 1)
    each = max(1, room // max(1, len(values)))
    # A few points are drawn as wide bars.
    cells = [value for value in _cells(values, room) for _ in range(each)]
    known = [value for value in cells if value is not None]
    if not known:
        return ["no step has this metric"[:width]]
    low, high = min(known), max(known)
    parts = len(glyphs.bars)
    # A bar has at least one part, so that the least value can be told from a gap.
    sizes = [0 if value is None else 1 + _level(value, low, high, rows * parts) for value in cells]
    lines = []
    for row in range(rows):
        below = (rows - 1 - row) * parts
        label = _label(high) if row == 0 else _label(low) if row == rows - 1 else ""
        bars = "".join(
            glyphs.bars[min(parts, size - below) - 1] if size > below else " " for size in sizes
        )
        lines.append(f"{label:>{_LABEL}} {bars}".rstrip())
    first, last = f"step {steps[0]}", f"{steps[-1]}"
    gap = max(1, len(cells) - len(first) - len(last))
    lines.append(" " * (_LABEL + 1) + first + (" " * gap + last if steps[0] != steps[-1] else ""))
    return [each[:width] for each in lines]


def _label(value: float) -> str:
    text = number(value)
    return text if len(text) <= _LABEL else f"{value:.2e}"


def _cells(values: Sequence[float | None], width: int) -> list[float | None]:
    size = len(values)
    count = min(size, width)
    cells: list[float | None] = []
    for at in range(count):
        some = values[at * size // count : (at + 1) * size // count]
        known = [value for value in some if value is not None]
        cells.append(sum(value / len(known) for value in known) if known else None)
    return cells


def _level(value: float, low: float, high: float, levels: int) -> int:
    """Return which of `levels` a value is in; the middle one if all values are equal."""
    # Divided first, so that no difference overflows.
    scale = max(abs(low), abs(high)) or 1.0
    span = high / scale - low / scale
    if span == 0:
        return (levels - 1) // 2
    return min(levels - 1, int((value / scale - low / scale) / span * levels))
