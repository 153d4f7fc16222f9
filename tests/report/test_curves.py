"""Curves as SVG."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from ajet_cli.charts import CHARTS, PHASES
from ajet_cli.report.curves import MOST_LINES, Line, chart
from ajet_server.page import assets

_VALUES = st.none() | st.floats(allow_nan=False, allow_infinity=False)


def coordinates(figure: str) -> list[tuple[float, float]]:
    """Of the points of lines, bands and areas."""
    found = []
    for path in re.findall(r'class="(?:line|band|area) c\d" d="([^"]*)"', figure):
        numbers = [float(text) for text in re.findall(r"-?[\d.]+(?:e[+-]?\d+)?", path)]
        found += list(zip(numbers[::2], numbers[1::2], strict=False))
    return found


@given(
    lines=st.lists(st.lists(_VALUES, min_size=1, max_size=12), max_size=8),
    stacked=st.booleans(),
)
def test_all_points_are_inside_the_picture(lines: list[list[float | None]], stacked: bool) -> None:
    if stacked:
        size = min(map(len, lines), default=0)
        lines = [[abs(v) if v else v for v in values[:size]] for values in lines]
    drawn = [Line(f"m{i}", range(1, len(v) + 1), v) for i, v in enumerate(lines)]
    figure = chart("Title", "unit", drawn, stacked=stacked)
    assert bool(figure) == any(v is not None for values in lines for v in values)
    if not figure:
        return
    ElementTree.fromstring(figure)
    points = coordinates(figure)
    assert points
    assert all(0 <= x <= 420 and 0 <= y <= 200 for x, y in points), points


def test_charts_are_those_of_the_live_page() -> None:
    script = assets.text("overview.js")
    (listed,) = re.findall(r"const CHARTS = (\[.*?\n\]);", script, re.DOTALL)
    of_page = json.loads(re.sub(r",\s*\]", "]", listed))
    assert of_page == [[title, list(names), unit] for title, names, unit in CHARTS]
    (phases,) = re.findall(r"const PHASES = (\[.*?\]);", script)
    assert json.loads(phases) == list(PHASES)


def test_lines_are_told_apart_without_colours() -> None:
    lines = [Line(f"run {i}", [1, 2], [i, i + 1]) for i in range(MOST_LINES)]
    root = ElementTree.fromstring(chart("Reward", "", lines))
    drawn = [e for e in root.iter("path") if e.get("class", "").startswith("line")]
    in_chart, in_legend = drawn[:MOST_LINES], drawn[MOST_LINES:]
    assert len({line.get("stroke-dasharray") for line in in_chart}) == MOST_LINES
    assert [line.get("stroke-dasharray") for line in in_chart] == [
        line.get("stroke-dasharray") for line in in_legend
    ]
    marks = [e.get("d", "") for e in root.iter("path") if e.get("class", "").startswith("mark")]
    shapes = [re.sub(r"^M[\d. -]+?m", "m", mark.split("z")[0]) for mark in marks[:MOST_LINES]]
    assert len(set(shapes)) == MOST_LINES


def test_a_screen_reader_gets_the_values() -> None:
    figure = chart("Reward", "", [Line("reward_mean", [1, 2, 3], [0.0, None, 0.5])])
    root = ElementTree.fromstring(figure)
    (picture,) = [e for e in root.iter("svg") if e.get("role") == "img"]
    assert picture.get("aria-label") == "Reward: reward_mean 0.5; steps 1 to 3"
    cells = [cell.text for cell in root.iter("td")]
    assert cells == ["reward_mean", "1", "0", None, "reward_mean", "3", "0.5", None]


def test_intervals_are_bars_at_their_points() -> None:
    line = Line("held-out", [0, 10], [0.5, 0.75], [0.25, 0.5], [0.75, 1.0])
    figure = chart("pass@1", "", [line], bars=True)
    (bars,) = re.findall(r'd="(M[^"]*V[^"]*)"', figure)
    ends = [float(text) for text in re.findall(r"-?[\d.]+", bars)]
    (x1, low1, high1, x2, low2, high2) = ends
    assert x1 < x2
    # The y axis points down.
    assert low1 > high1
    assert low1 - high1 == low2 - high2


def test_bounds_are_drawn_as_a_band() -> None:
    figure = chart("Loss", "", [Line("loss", [5, 10], [0.5, 0.4], [0.1, 0.2], [0.9, 0.8])])
    assert figure.count('class="band c1"') == 1
