"""The history of versions as one HTML page without scripts: pictures, and all of its rows."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ajet_research.versions.history import VersionRow, VersionStatus
from ajet_research.versions.measures import MEASURES

_COLOURS: dict[VersionStatus, str] = {
    "regressed": "#c0392b",
    "not worse": "#1e8449",
    "undecided": "#7f8c8d",
    "invalid": "#8e44ad",
}
_LEFT, _STEP, _HEIGHT, _TOP, _BOTTOM = 64, 42, 150, 12, 20
_MOST = 4.0
"""Differences in margins beyond which a picture ends."""
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:13px}td,th{border:1px solid #ccc;padding:2px 6px;"
    "text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "div{overflow-x:auto}code{font-size:12px}"
)
_INTRODUCTION = (
    "Each point compares two installed versions that were measured by turns with the same seeds "
    "on one machine, and each bar is the interval of their ratio. The shaded band is the margin. "
    "A version has regressed if its whole interval lies above the band. It is not worse if the "
    "whole interval lies below the upper edge. Points of different days are not compared: only "
    "the two versions of a point are."
)


def history_page(rows: Sequence[VersionRow]) -> str:
    """Return the page of a history, the oldest row first."""
    measures = [name for name in MEASURES if any(row.measure == name for row in rows)]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Performance by version</title><style>{_STYLE}</style></head><body>",
        f"<h1>Performance by version</h1><p>{_INTRODUCTION}</p><p>",
        ", ".join(f'<b style="color:{colour}">{name}</b>' for name, colour in _COLOURS.items()),
        "</p>",
    ]
    for measure in measures:
        of_measure = [row for row in rows if row.measure == measure]
        parts.append(f"<h2>{html.escape(measure)}</h2>")
        parts.append(f"<p>{html.escape(MEASURES[measure].summary)}; less is better.</p>")
        parts.append(f"<div>{_picture(of_measure)}</div><div>{_table(of_measure)}</div>")
    if not rows:
        parts.append("<p>There are no comparisons yet.</p>")
    return "".join([*parts, "</body></html>\n"])


def shown_change(row: VersionRow, value: float | None) -> str:
    """Return a ratio as a signed percentage, or a difference; "" for an end that is missing."""
    if value is None:
        return ""
    return f"{(value - 1) * 100:+.1f} %" if row.relative else f"{value:+.3f}"


def _picture(rows: Sequence[VersionRow]) -> str:
    """Return the SVG of one measure."""
    (margin, *_) = (row.margin for row in rows)
    most = max([1.5, *(_margins(row, value) for row in rows for value in _ends(row))])
    least = min([-1.5, *(_margins(row, value) for row in rows for value in _ends(row))])
    width = _LEFT + _STEP * len(rows) + 20

    def y(margins: float) -> float:
        return _TOP + (most - margins) / (most - least) * _HEIGHT

    label = f"{margin * 100:g} %" if rows[0].relative else f"{margin:g}"
    height = _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"',
        ' font-family="sans-serif" font-size="11" role="img">',
        f'<rect x="{_LEFT}" y="{y(1):.1f}" width="{width - _LEFT}"',
        f' height="{y(-1) - y(1):.1f}" fill="#eef3f8"/>',
        f'<line x1="{_LEFT}" x2="{width}" y1="{y(0):.1f}" y2="{y(0):.1f}" stroke="#999"/>',
    ]
    for place, text in ((1.0, f"+{label}"), (0.0, "0"), (-1.0, f"-{label}")):
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y(place) + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for index, row in enumerate(rows):
        x = _LEFT + _STEP * index + _STEP / 2
        colour = _COLOURS[row.status]
        shown = f"{row.candidate} against {row.baseline}: {shown_change(row, row.ratio)}"
        parts.append(f"<g><title>{html.escape(shown)}, {row.status}</title>")
        if row.low is not None and row.high is not None:
            ends = " ".join(
                f'y{number}="{y(_margins(row, value)):.1f}"'
                for number, value in ((1, row.low), (2, row.high))
            )
            parts.append(f'<line x1="{x}" x2="{x}" {ends} stroke="{colour}" stroke-width="3"/>')
        if row.ratio is not None:
            centre = y(_margins(row, row.ratio))
            parts.append(f'<circle cx="{x}" cy="{centre:.1f}" r="5" fill="{colour}"/>')
        parts.append(
            f'<text x="{x}" y="{_TOP + _HEIGHT + 14}" text-anchor="middle">'
            f"{html.escape(row.date[5:])}</text></g>"
        )
    return "".join([*parts, "</svg>"])


def _ends(row: VersionRow) -> list[float]:
    return [value for value in (row.low, row.ratio, row.high) if value is not None]


def _margins(row: VersionRow, value: float) -> float:
    """Return a change in margins, cut off where pictures end."""
    change = value - 1 if row.relative else value
    return max(-_MOST, min(_MOST, change / row.margin))


def _table(rows: Sequence[VersionRow]) -> str:
    heads = ["date", "candidate", "baseline", "change", "interval", "status", "seeds", "failed"]
    heads += ["machine", "ledger"]
    lines = ["<table><tr>", *(f"<th>{head}</th>" for head in heads), "</tr>"]
    for row in reversed(rows):
        interval = " to ".join(filter(None, (shown_change(row, v) for v in (row.low, row.high))))
        machine = f"{row.machine.get('cpu', '')} {row.machine['fingerprint']}".strip()
        cells = [
            (row.date, ""),
            (f"{row.candidate} ({row.commits[1][:12] or row.agentjet[1]})", ""),
            (f"{row.baseline} ({row.commits[0][:12] or row.agentjet[0]})", ""),
            (shown_change(row, row.ratio), "n"),
            (interval, "n"),
            (row.status, ""),
            (str(len(row.seeds)), "n"),
            (str(row.failed), "n"),
            (machine, ""),
        ]
        lines.append("<tr>")
        for text, kind in cells:
            lines.append(f'<td class="{kind}">{html.escape(text)}</td>')
        lines.append(f"<td><code>{row.ledger[:12]}</code></td></tr>")
    return "".join([*lines, "</table>"])
