"""The picture of a study: each comparison's interval and seeds against the smallest effect.

It is written as SVG directly. The bytes of a plotting library depend on its version, and the
report has to be the same wherever it is compiled.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

_LEFT, _WIDTH, _ROW, _TOP = 170, 700, 56, 34


@dataclass(frozen=True, slots=True)
class Bar:
    """One comparison.

    :param points: difference of each seed.
    :param labels: of gain, low and high, with the ids of their definitions.
    """

    name: str
    gain: float
    low: float | None
    high: float | None
    points: Sequence[float]
    labels: Sequence[tuple[str, str]]


def intervals(bars: Sequence[Bar], smallest: float, smallest_id: str) -> str:
    """Return the SVG; its only numerals are links."""
    values = [-2 * smallest, 2 * smallest]
    for bar in bars:
        values += [*bar.points, bar.gain, *(x for x in (bar.low, bar.high) if x is not None)]
    least, most = min(values), max(values)

    def x(value: float) -> str:
        return f"{_LEFT + (value - least) / (most - least) * _WIDTH:.1f}"

    height = _TOP + _ROW * len(bars) + 10
    total = _LEFT + _WIDTH + 30
    shade = float(x(smallest)) - float(x(-smallest))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" width="{total}"',
        f' height="{height}" font-family="sans-serif" font-size="13" role="img">',
        f'<rect x="{x(-smallest)}" y="{_TOP - 8}" width="{shade:.1f}" height="{height - _TOP}"',
        ' fill="#e8eef7"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{_TOP - 8}" y2="{height - 8}" stroke="#777"/>',
        f'<text x="{x(0)}" y="16" text-anchor="middle">no difference; shaded: below ',
        f'<a href="#{smallest_id}">the smallest of interest</a></text>',
    ]
    for index, bar in enumerate(bars):
        y = _TOP + _ROW * index + 18
        name = html.escape(bar.name)
        parts.append(f'<a href="#finding-{name}"><text x="4" y="{y + 5}">{name}</text></a>')
        parts += [
            f'<circle cx="{x(point)}" cy="{y}" r="3" fill="#999" fill-opacity="0.6"/>'
            for point in bar.points
        ]
        low = x(bar.low) if bar.low is not None else str(_LEFT)
        high = x(bar.high) if bar.high is not None else str(_LEFT + _WIDTH)
        parts.append(
            f'<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" stroke="#0645ad" stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{x(bar.gain)}" cy="{y}" r="5" fill="#0645ad"/>')
        for (label, target), value in zip(bar.labels, (bar.gain, bar.low, bar.high), strict=True):
            if value is not None:
                parts.append(
                    f'<a href="#{target}"><text x="{x(value)}" y="{y + 21}" font-size="11" '
                    f'text-anchor="middle">{html.escape(label)}</text></a>'
                )
    return "".join([*parts, "</svg>"])
