"""A study's status as one page, which refreshes itself while the study runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ajet_cli.report.markup import Child, Html, document, items, section, tag
from ajet_cli.studies.lines import waiting_lines
from ajet_cli.words import number
from ajet_research.status import StudyStatus

PAGE = "page.html"
_STYLE = """
body { max-width: 1000px; }
h1 { font-size: 1.3rem; margin: 1.2rem 0 .3rem; }
.phase { border: 1px solid var(--line); border-radius: 4px; padding: 0 .5rem; }
.waits { background: var(--warn); padding: .5rem 1rem; list-style: none; }
.meter { fill: var(--panel); stroke: var(--line); }
.done { fill: var(--good); } .failed { fill: var(--bad); } .running { fill: var(--accent); }
.lost { fill: var(--dim); }
table svg { display: block; width: 220px; height: 14px; }
td { overflow-wrap: anywhere; }
"""
_WIDTH = 220.0


def study_page(status: StudyStatus, directory: Path, *, seconds: int | None = None) -> str:
    """Return the page.

    :param seconds: after which the browser loads the page again; None for a page that stays.
    """
    waits = list(waiting_lines(status, directory))
    content = tag(
        "main",
        {},
        tag("h1", {}, status.question),
        tag("p", {}, *_state(status)),
        items(waits, "waits") if waits else None,
        section("Trials", _arms(status)),
        section("Budget", _budget(status)),
        section("Verdicts", _verdicts(status)),
        section("What people did", items(status.interventions)) if status.interventions else None,
        section("Last events", items(reversed(status.events))),
    )
    return document(
        f"Study: {status.question[:80]}", _STYLE, content, asdict(status), refresh=seconds
    )


def _state(status: StudyStatus) -> Iterator[Child]:
    yield tag("span", {"class": "phase"}, status.phase)
    leader = (
        f"led by process {status.leader}" if status.leader else "without a leader on this machine"
    )
    yield f" {status.looks} of {status.planned_looks} looks taken, {leader}. "
    if not status.looks:
        yield "Outcomes are hidden until the first look. "
    if status.ended:
        yield f"Ended early by {status.ended}. "
    if status.exhausted:
        yield f"The budget's {status.exhausted} was used up. "
    if status.conclusion:
        yield tag("strong", {}, status.conclusion)


def _arms(status: StudyStatus) -> Html:
    head = ("arm", "", "done", "failed", "running", "lost", "left")
    rows = []
    for arm in status.arms:
        parts = {
            "done": arm.done - arm.failed,
            "failed": arm.failed,
            "running": arm.running,
            "lost": arm.lost,
        }
        counts = (arm.done, arm.failed, arm.running, arm.lost, arm.left)
        bar = _bar(parts, sum(parts.values()) + arm.left)
        rows.append((arm.arm, bar, *(str(count) for count in counts)))
    return _table(head, rows)


def _budget(status: StudyStatus) -> Html:
    rows = [
        (one.name, _bar({"running": one.used}, one.limit), number(one.used), number(one.limit))
        for one in status.budget
    ]
    return _table(("part", "", "used", "limit"), rows)


def _verdicts(status: StudyStatus) -> Html | None:
    return (
        _table(("comparison", "verdict"), list(status.verdicts.items()))
        if status.verdicts
        else None
    )


def _bar(parts: Mapping[str, float], whole: float) -> Html:
    """Return a bar of parts of a whole, one after the other."""
    x, drawn = 0.0, []
    for name, value in parts.items():
        width = min(_WIDTH - x, _WIDTH * value / whole) if whole else 0.0
        drawn.append(
            tag("rect", {"class": name, "x": f"{x:.1f}", "width": f"{width:.1f}", "height": 14})
        )
        x += width
    back = tag("rect", {"class": "meter", "width": _WIDTH, "height": 14})
    return tag("svg", {"viewBox": f"0 0 {_WIDTH:g} 14", "aria-hidden": "true"}, back, *drawn)


def _table(head: tuple[str, ...], rows: Sequence[tuple[Child, ...]]) -> Html:
    cells = tag("tr", {}, *(tag("th", {}, name) for name in head))
    body = [tag("tr", {}, *(tag("td", {}, cell) for cell in row)) for row in rows]
    return tag("table", {}, tag("thead", {}, cells), tag("tbody", {}, *body))
