"""Curves and evaluations of a run, as parts of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ajet_cli.charts import CHARTS, PHASES
from ajet_cli.report.curves import MOST_LINES, Line, chart
from ajet_cli.report.evaluations import METHOD, Ends, MeasuredEvaluation
from ajet_cli.report.markup import NAME_CHARS, Html, between, cut, joined, table, tag
from ajet_cli.report.reading import RunReport
from ajet_cli.words import number
from ajet_core.protocol import Evaluation

REPORT_CHARTS = (*CHARTS, ("Gradient norm", ("grad_norm",), ""))
"""The charts of a report: title, metrics and unit."""

WITH_ENDS = "with intervals of 95 %"
_POINTS = 100
_EVALUATION_ROWS = 40


def charts(report: RunReport) -> Html:
    """Return the curves of one run."""
    if report.curves.total == 0:
        return Html("")
    tags = [name for name in report.curves.names if name.startswith("reward_mean/")]
    drawn: list[Html] = []
    for title, names, unit in REPORT_CHARTS:
        more = tags[: MOST_LINES - 1] if title == "Reward" else []
        drawn.append(chart(title, unit, _lines(report, (*names, *more))))
        if title == "Reward":
            drawn += evaluation_charts(report.evaluations)
    drawn.append(chart("Time by phase", "s", _lines(report, PHASES), stacked=True))
    points = len(report.curves.steps)
    note = (
        f"A point is the mean of consecutive steps ({number(report.curves.total)} steps as "
        f"{points} points); the band goes from the least to the greatest value."
        if points < report.curves.total
        else "A point is a step."
    )
    if not any(drawn):
        return Html("")
    return joined(
        tag("p", {"class": "dim"}, f"{note} docs/metrics.md explains the metrics."),
        tag("div", {"class": "charts"}, *drawn),
    )


def _lines(report: RunReport, names: Iterable[str]) -> list[Line]:
    curves = report.curves
    return [
        Line(cut(name, NAME_CHARS), curves.steps, curve.mean, curve.low, curve.high)
        for name in names
        if (curve := curves.curves.get(name)) is not None
    ]


def evaluation_charts(evaluations: Sequence[MeasuredEvaluation]) -> list[Html]:
    """Return curves of pass@k and rewards with intervals, a line for each task set."""
    by_set: dict[tuple[str, str], list[MeasuredEvaluation]] = {}
    for one in evaluations:
        by_set.setdefault(one.task_set, []).append(one)
    sets = [(set_name(key, by_set), points) for key, points in list(by_set.items())[:MOST_LINES]]
    ks = sorted({k for one in evaluations for k in one.evaluation.pass_at})
    passed = [
        (f"pass@{k} of evaluations", [pass_line(*each, k) for each in sets])
        for k in dict.fromkeys([*ks[:1], *ks[-1:]])
    ]
    rewards = [_reward_line(*each) for each in sets]
    return [
        chart(title, WITH_ENDS, lines, bars=True)
        for title, lines in [*passed, ("Reward of evaluations", rewards)]
    ]


def set_name(key: tuple[str, str], others: Iterable[tuple[str, str]]) -> str:
    """Return the name of a task set, with its client if another client has one of that name."""
    name = cut(key[0], NAME_CHARS) or "(no tag)"
    return name if sum(other[0] == key[0] for other in others) == 1 else f"{name} by {key[1]}"


def pass_line(label: str, evaluations: Sequence[MeasuredEvaluation], k: int) -> Line:
    """Return pass@k of a task set over the steps."""
    return _line(label, evaluations, lambda e: (e.evaluation.pass_at.get(k), e.pass_ends.get(k)))


def _reward_line(label: str, evaluations: Sequence[MeasuredEvaluation]) -> Line:
    return _line(label, evaluations, lambda one: (one.reward_mean, one.reward_ends))


def _line(
    label: str,
    evaluations: Sequence[MeasuredEvaluation],
    value: Callable[[MeasuredEvaluation], tuple[float | None, Ends]],
) -> Line:
    """Return at most 100 points, the last one among them."""
    every = -(-len(evaluations) // _POINTS)
    shown = evaluations[::-1][::every][::-1]
    values = [value(one) for one in shown]
    return Line(
        label,
        [one.evaluation.step for one in shown],
        [mean for mean, _ in values],
        [ends[0] if ends else None for _, ends in values],
        [ends[1] if ends else None for _, ends in values],
    )


def last_of_each(evaluations: Sequence[MeasuredEvaluation]) -> list[MeasuredEvaluation]:
    """Return the evaluation at the last step of each task set, of at most 40."""
    last = {one.task_set: one for one in sorted(evaluations, key=lambda one: one.evaluation.step)}
    return [last[key] for key in sorted(last)][:_EVALUATION_ROWS]


def passes(one: MeasuredEvaluation) -> str:
    """Return pass@k with intervals as text."""
    texts = [
        f"pass@{k} {number(value)}{between(one.pass_ends.get(k))}"
        for k, value in one.evaluation.pass_at.items()
    ]
    return ", ".join(texts[:10]) or "-"


def evaluations(report: RunReport) -> Html:
    """Return the first and the last evaluation of each task set as a table."""
    if not report.evaluations:
        return tag("p", {"class": "dim"}, "The run has no finished evaluation episode.")
    sets = list(dict.fromkeys(one.task_set for one in report.evaluations))
    firsts = {one.task_set: one for one in reversed(report.evaluations)}
    rows: list[list[str]] = []
    for last in last_of_each(report.evaluations):
        name = set_name(last.task_set, sets)
        first = firsts[last.task_set]
        rows += [
            [name, *_evaluation_row(one)]
            for one in ([first, last] if first is not last else [last])
        ]
    return joined(
        table(
            "The first and the last evaluation of each task set",
            ["task set", "step", "tasks", "episodes", "mean reward", "pass@k", "aborted", "mixed"],
            rows,
            right="12367",
        ),
        tag("p", {"class": "dim"}, METHOD),
    )


def _evaluation_row(one: MeasuredEvaluation) -> list[str]:
    evaluation: Evaluation = one.evaluation
    return [
        number(evaluation.step),
        number(evaluation.tasks),
        number(evaluation.episodes),
        f"{number(one.reward_mean)}{between(one.reward_ends)}",
        passes(one),
        number(evaluation.aborted),
        number(evaluation.mixed),
    ]
