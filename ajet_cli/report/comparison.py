"""Several runs side by side as a page."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_cli.charts import PHASES
from ajet_cli.report.curves import MOST_LINES, Line, chart
from ajet_cli.report.evaluations import METHOD, MeasuredEvaluation
from ajet_cli.report.markup import (
    NAME_CHARS,
    TEXT_CHARS,
    Html,
    between,
    cut,
    document,
    items,
    joined,
    section,
    table,
    tag,
)
from ajet_cli.report.reading import RunReport
from ajet_cli.report.run_curves import REPORT_CHARTS, WITH_ENDS, last_of_each, pass_line, passes
from ajet_cli.report.run_page import MOST_SETTINGS, comparable, problems, sentence, style, versions
from ajet_cli.words import number

MOST_RUNS = MOST_LINES
"""How many runs can be told apart in a chart."""

_LETTERS = "ABCDEF"
_TASK_SETS = 6
_MISSING = "(not set)"


def comparison_page(reports: Sequence[RunReport]) -> str:
    """Return the page of two to six runs; the same reports give the same page."""
    title = f"Comparison of {len(reports)} runs"
    content = joined(
        tag("h1", {}, title),
        items(
            joined(tag("strong", {}, f"{name}: "), sentence(report))
            for name, report in _named(reports)
        ),
        problems(
            [
                f"{name}: {one}"
                for name, each_report in _named(reports)
                for one in each_report.problems
            ]
        ),
        tag(
            "main",
            {},
            section("Final numbers", _final(reports)),
            section("Evaluations", _evaluations(reports)),
            section("Curves", _charts(reports)),
            section("Settings that differ", _settings(reports)),
            section("Findings", _findings(reports)),
            section(
                "Versions and hardware",
                *(
                    section(name, shown)
                    for name, report in _named(reports)
                    if (shown := versions(report))
                ),
            ),
        ),
    )
    return document(title, style(), content, [comparable(report) for report in reports])


def _named(reports: Sequence[RunReport]) -> list[tuple[str, RunReport]]:
    """Return a short name for each run: a letter and the name of its directory."""
    return [
        (f"{letter} {cut(report.name, NAME_CHARS)}", report)
        for letter, report in zip(_LETTERS, reports, strict=False)
    ]


def _final(reports: Sequence[RunReport]) -> Html:
    names = [name for _, metrics, _ in REPORT_CHARTS for name in metrics] + list(PHASES)
    rows = [
        [
            name,
            *(
                f"{number(one.mean)}{between(one.ends)}"
                if (one := each_report.final.get(name))
                else "-"
                for each_report in reports
            ),
        ]
        for name in names
        if any(name in report.final for report in reports)
    ]
    steps = ["steps", *(number(report.curves.total) for report in reports)]
    return joined(
        table(
            "Means of the last steps",
            ["metric", *(name for name, _ in _named(reports))],
            [steps, *rows],
            right="123456",
        ),
        tag(
            "p",
            {"class": "dim"},
            "Of the last fifth of the steps, at least 5 and at most 20. Intervals are normal ones "
            "of 95 % with the standard error between steps, as if steps were independent. They "
            "say how much the steps of a run vary, and not how much other seeds would: for that, "
            "compare several runs of each setting.",
        ),
    )


def _evaluations(reports: Sequence[RunReport]) -> Html:
    by_tag = [_by_tag(report) for report in reports]
    tags = sorted({tag_ for evaluations in by_tag for tag_ in evaluations})
    if not tags:
        return Html("")
    rows = []
    for tag_ in tags:
        lasts = [evaluations[tag_][-1] if tag_ in evaluations else None for evaluations in by_tag]
        rows.append([_shown(tag_), *map(_evaluation, lasts)])
    drawn = []
    for tag_ in tags[:_TASK_SETS]:
        ks = {
            k
            for evaluations in by_tag
            for one in evaluations.get(tag_, ())[-1:]
            for k in one.evaluation.pass_at
        }
        lines = [
            pass_line(name, evaluations[tag_], min(ks))
            for (name, _), evaluations in zip(_named(reports), by_tag, strict=True)
            if ks and tag_ in evaluations
        ]
        title = f"pass@{min(ks, default=1)} of {_shown(tag_)}"
        drawn.append(chart(title, WITH_ENDS, lines, bars=True))
    return joined(
        table(
            "The last evaluation of each task set",
            ["task set", *(name for name, _ in _named(reports))],
            rows,
        ),
        tag("p", {"class": "dim"}, METHOD),
        tag("div", {"class": "charts"}, *drawn),
    )


def _shown(name: str) -> str:
    return cut(name, NAME_CHARS) or "evaluations without a tag"


def _by_tag(report: RunReport) -> dict[str, list[MeasuredEvaluation]]:
    """Return the evaluations of each tag by step; of clients, the one with the last step."""
    lasts = sorted(last_of_each(report.evaluations), key=lambda one: one.evaluation.step)
    last = {one.evaluation.tag: one.task_set for one in lasts}
    chosen: dict[str, list[MeasuredEvaluation]] = {}
    for one in report.evaluations:
        if last.get(one.evaluation.tag) == one.task_set:
            chosen.setdefault(one.evaluation.tag, []).append(one)
    return chosen


def _evaluation(one: MeasuredEvaluation | None) -> str:
    if one is None:
        return "-"
    evaluation = one.evaluation
    reward = f"reward {number(one.reward_mean)}{between(one.reward_ends)}"
    return (
        f"step {number(evaluation.step)}, {number(evaluation.tasks)} tasks: {passes(one)}; {reward}"
    )


def _charts(reports: Sequence[RunReport]) -> Html:
    drawn = []
    several = [(title, (name,), unit) for title, names, unit in REPORT_CHARTS for name in names]
    for title, (name,), unit in [*several, *((p, (p,), "s") for p in PHASES)]:
        lines = []
        for label, report in _named(reports):
            curve = report.curves.curves.get(name)
            if curve is not None:
                # Bands of several runs would hide each other.
                lines.append(Line(label, report.curves.steps, curve.mean))
        heading = title if title == name else f"{title}: {name}"
        drawn.append(chart(heading, unit, lines))
    return tag("div", {"class": "charts"}, *drawn)


def _settings(reports: Sequence[RunReport]) -> Html:
    names = sorted({name for report in reports for name in report.config})
    differing = [
        name for name in names if len({each_report.config.get(name) for each_report in reports}) > 1
    ]
    if not differing:
        return tag("p", {}, "All settings are the same.")
    rows = [
        [
            cut(name, NAME_CHARS),
            *(cut(report.config.get(name, _MISSING), TEXT_CHARS) for report in reports),
        ]
        for name in differing[:MOST_SETTINGS]
    ]
    left = len(differing) - len(rows)
    return joined(
        table("Settings", ["setting", *(name for name, _ in _named(reports))], rows),
        tag("p", {"class": "dim"}, f"{number(left)} more settings are left out.") if left else None,
    )


def _findings(reports: Sequence[RunReport]) -> Html:
    codes = sorted({one.code for each_report in reports for one in each_report.findings})
    if not codes:
        return tag("p", {"class": "good"}, "No check found anything wrong in a step of any run.")
    rows = []
    for code in codes:
        cells = []
        for report in reports:
            steps = [
                f"{one.first} to {'the end' if one.last is None else one.last}"
                for one in report.findings
                if one.code == code
            ]
            more = f", {len(steps) - 5} more times" if len(steps) > 5 else ""
            cells.append(f"steps {', '.join(steps[:5])}{more}" if steps else "-")
        rows.append([code.replace("_", " "), *cells])
    return table("Steps with a finding", ["finding", *(name for name, _ in _named(reports))], rows)
