"""Curves over the steps of runs, drawn as SVG: readable without a script and without colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ajet_cli.report.markup import Html, table, tag
from ajet_cli.words import number

Values = Sequence[float | None]

_WIDTH, _HEIGHT = 420.0, 200.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 10.0, 8.0, 24.0
# Lines differ in colour, dashes and marks.
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2")
_MARKS = ("circle", "square", "triangle", "diamond", "down", "cross")
MOST_LINES = len(_MARKS)
_MARKED = 8
_ROWS = 10


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart with P points.

    :param xs: [P] steps.
    :param ys: [P] values, None where there is none.
    :param low: [P] lower ends of a band or of intervals; empty if there are none.
    :param high: [P] likewise, the upper ends.
    """

    label: str
    xs: Sequence[float]
    ys: Values
    low: Values = field(default_factory=list)
    high: Values = field(default_factory=list)


def chart(
    title: str, unit: str, lines: Sequence[Line], *, stacked: bool = False, bars: bool = False
) -> Html:
    """Draw at most six lines; nothing if none of them has a value.

    :param stacked: draw them on top of each other; they have the same steps.
    :param bars: draw the ends as an interval at each point instead of a band.
    """
    lines = [line for line in lines if any(value is not None for value in line.ys)][:MOST_LINES]
    if not lines:
        return Html("")
    drawn = _stack(lines) if stacked else lines
    scale = _Scale.of(drawn, from_zero=stacked)
    parts = [*_axes(scale)]
    if stacked:
        parts += _areas(drawn, scale)
    for place, line in enumerate(drawn):
        parts += _line(line, place, scale, bars=bars, band=not stacked)
    last = ", ".join(f"{line.label} {number(_last(line.ys))}" for line in lines)
    picture = tag(
        "svg",
        {
            "viewBox": f"0 0 {_WIDTH:g} {_HEIGHT:g}",
            "role": "img",
            "aria-label": f"{title}: {last}; steps {scale.x0:g} to {scale.x1:g}",
        },
        *parts,
    )
    return tag(
        "figure",
        {"class": "chart"},
        tag("figcaption", {}, tag("strong", {}, title), f" ({unit})" if unit else None),
        picture,
        tag("ul", {"class": "legend"}, *(_key(place, line) for place, line in enumerate(lines))),
        tag("details", {}, tag("summary", {}, "values"), _values(title, lines)),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    x0: float
    x1: float
    y0: float
    y1: float

    @classmethod
    def of(cls, lines: Sequence[Line], *, from_zero: bool) -> _Scale:
        xs = [x for line in lines for x in line.xs]
        given = [[*line.ys, *line.low, *line.high] for line in lines]
        ys = [_bounded(y) for values in given for y in values if y is not None]
        low, high = (0.0 if from_zero else min(ys)), max(ys)
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            half = abs(high) / 2 or 0.5
            low, high = (0.0 if from_zero else low - half), high + half
        return cls(min(xs), max(*xs, min(xs) + 1), low, high)

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self.x0) / (self.x1 - self.x0)

    def y(self, value: float) -> float:
        share = (_bounded(value) - self.y0) / (self.y1 - self.y0)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _bounded(value: float) -> float:
    # Differences of larger numbers are not finite.
    return max(-1e300, min(1e300, value))


def _axes(scale: _Scale) -> Iterator[Html]:
    for y in _ticks(scale.y0, scale.y1, 4):
        at = f"{scale.y(y):.1f}"
        yield tag("path", {"class": "grid", "d": f"M{_LEFT:g} {at}H{_WIDTH - _RIGHT:g}"})
        yield tag(
            "text",
            {"x": f"{_LEFT - 5:g}", "y": f"{scale.y(y) + 4:.1f}", "text-anchor": "end"},
            _short(y),
        )
    for x in _ticks(scale.x0, scale.x1, 5):
        if x.is_integer():
            place = {"x": f"{scale.x(x):.1f}", "y": f"{_HEIGHT - 7:g}", "text-anchor": "middle"}
            yield tag("text", dict(place), number(x))


def _short(value: float) -> str:
    text = number(value)
    return text if len(text) <= 7 else f"{value:.2g}"


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Return round numbers of a range."""
    span = (high / about) - (low / about)
    if not 0 < span < math.inf:
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= span * 0.999), 10 * power)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [k * step for k in range(first, min(last, first + 3 * about) + 1)]


def _points(line: Line) -> list[tuple[float, float, float | None, float | None]]:
    """Return x, y, and the ends of the interval of the points with a value."""
    ends = bool(line.low)
    return [
        (x, y, line.low[i] if ends else None, line.high[i] if ends else None)
        for i, (x, y) in enumerate(zip(line.xs, line.ys, strict=True))
        if y is not None
    ]


def _line(line: Line, place: int, scale: _Scale, *, bars: bool, band: bool) -> Iterator[Html]:
    points = _points(line)
    ended = [(x, low, high) for x, _, low, high in points if low is not None and high is not None]
    if bars:
        path = "".join(
            f"M{scale.x(x):.1f} {scale.y(low):.1f}V{scale.y(high):.1f}" for x, low, high in ended
        )
        yield tag("path", {"class": f"line c{place + 1}", "d": path})
    elif ended and band:
        there = " ".join(f"{scale.x(x):.1f} {scale.y(high):.1f}" for x, _, high in ended)
        back = " ".join(f"{scale.x(x):.1f} {scale.y(low):.1f}" for x, low, _ in reversed(ended))
        yield tag("path", {"class": f"band c{place + 1}", "d": f"M{there} {back}Z"})
    way = " ".join(f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y, *_ in points)
    dashes = _DASHES[place] or None
    yield tag("path", {"class": f"line c{place + 1}", "d": f"M{way}", "stroke-dasharray": dashes})
    # The last point always has a mark; lines of one point have nothing else.
    every = max(1, math.ceil(len(points) / _MARKED))
    marked = points[::-1][::every]
    marks = "".join(_mark(place, scale.x(x), scale.y(y)) for x, y, *_ in marked)
    yield tag("path", {"class": f"mark c{place + 1}", "d": marks})


def _mark(place: int, x: float, y: float) -> str:
    shape = {
        "circle": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
        "square": "m-2.6 -2.6h5.2v5.2h-5.2z",
        "triangle": "m-3.4 2.6l3.4 -6l3.4 6z",
        "diamond": "m-3.4 0l3.4 -3.8l3.4 3.8l-3.4 3.8z",
        "down": "m-3.4 -2.6l3.4 6l3.4 -6z",
        "cross": "m-3.2 -1.1h2.1v-2.1h2.2v2.1h2.1v2.2h-2.1v2.1h-2.2v-2.1h-2.1z",
    }[_MARKS[place]]
    return f"M{x:.1f} {y:.1f}{shape}"


def _stack(lines: Sequence[Line]) -> list[Line]:
    sums = [0.0] * len(lines[0].xs)
    stacked = []
    for line in lines:
        below = list(sums)
        sums = [_bounded(total + (y or 0.0)) for total, y in zip(sums, line.ys, strict=True)]
        stacked.append(Line(line.label, line.xs, list(sums), below, list(sums)))
    return stacked


def _areas(lines: Sequence[Line], scale: _Scale) -> Iterator[Html]:
    for place, line in enumerate(lines):
        points = _points(line)
        there = " ".join(f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y, *_ in points)
        back = " ".join(
            f"{scale.x(x):.1f} {scale.y(low or 0.0):.1f}" for x, _, low, _ in reversed(points)
        )
        yield tag("path", {"class": f"area c{place + 1}", "d": f"M{there} {back}Z"})


def _key(place: int, line: Line) -> Html:
    swatch = tag(
        "svg",
        {"viewBox": "0 0 34 12", "width": "34", "height": "12", "aria-hidden": "true"},
        tag(
            "path",
            {
                "class": f"line c{place + 1}",
                "d": "M1 6H33",
                "stroke-dasharray": _DASHES[place] or None,
            },
        ),
        tag("path", {"class": f"mark c{place + 1}", "d": _mark(place, 17, 6)}),
    )
    return tag("li", {}, swatch, f" {line.label} {number(_last(line.ys))}")


def _last(values: Values) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _values(title: str, lines: Sequence[Line]) -> Html:
    """Return about ten values of each line as a table, the last one among them."""
    rows = []
    for line in lines:
        points = _points(line)
        every = max(1, math.ceil(len(points) / _ROWS))
        for x, y, low, high in points[::-1][::every][::-1]:
            ends = "" if low is None or high is None else f"{number(low)} to {number(high)}"
            rows.append([line.label, number(x), number(y), ends])
    return table(title, ["", "step", "value", "from, to"], rows, right="12")
