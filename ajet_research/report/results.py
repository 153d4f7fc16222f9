"""The results of a report: findings, guardrails, pairs of trials, and their picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from ajet_research.analysis import final_verdicts, outcomes, sign
from ajet_research.inference import paired
from ajet_research.report.document import (
    Cell,
    Document,
    Exact,
    Quote,
    Reference,
    TableRow,
    Text,
)
from ajet_research.report.figure import Bar, intervals
from ajet_research.report.numbers import STUDY, DefinedNumbers, interval_of, shown
from ajet_research.state import StudyState
from ajet_research.study import Compare, arm_name

FIGURE = "intervals"


def write_results(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
    """Write what the looks say about each comparison."""
    study = state.registered
    report.heading("Results")
    figure, _ = figure_of(state)
    report.figure(
        figure, "Difference of each comparison, with its seeds", f"{FIGURE}.svg", f"{FIGURE}.csv"
    )
    header = ["comparison", "verdict", "arm", "against", "difference", "p", "wins", "pairs"]
    report.table([*header, "missing"], (_result_row(state, numbers, one) for one in study.compare))
    if study.outcome.guardrails:
        report.paragraph(
            Text("Guardrails: an arm is not called better or equivalent unless all of them hold.")
        )
        report.table(
            ["comparison", "metric", "difference", "lower end", "margin", "state"],
            _guardrail_rows(state, numbers),
        )
    report.heading("Pairs")
    report.table(["comparison", "seed", "arm", "against", "difference"], _pair_rows(state))


def _result_row(state: StudyState, numbers: DefinedNumbers, one: Compare) -> TableRow:
    finding = state.verdicts.get(one.id)
    verdict = Text(final_verdicts(state)[one.id])
    if finding is None:
        cells: list[Cell] = [(Quote(one.id, STUDY),), (verdict,), *[()] * 7]
        return TableRow(cells, f"finding-{one.id}")
    of: Cell = (Reference("pairs", f"pairs-{one.id}"),) if finding.seeds else ()
    p = numbers(
        f"{one.id}.p",
        finding.p,
        "share of the assignments of signs that are at least as extreme (exact sign-flip test)",
        of=of,
        digits=3,
    )
    wins = numbers(
        f"{one.id}.wins",
        finding.wins,
        "share of pairs in which the arm has the better outcome; a tie counts as 1/2",
        of=of,
    )
    means = [
        numbers(f"{one.id}.{side}_mean", value, f"mean outcome of '{side}' over pairs", of=of)
        for side, value in (("arm", finding.arm_mean), ("against", finding.against_mean))
    ]
    pairs = numbers(f"{one.id}.pairs", len(finding.seeds), "pairs with outcomes", of=of)
    missing = numbers(f"{one.id}.missing", len(finding.missing), "pairs without outcomes")
    shown_interval = interval_of(numbers, one.id, finding) if finding.gain is not None else ()
    cells = [(Quote(one.id, STUDY),), (verdict,), (means[0],), (means[1],), shown_interval]
    return TableRow([*cells, (p,), (wins,), (pairs,), (missing,)], f"finding-{one.id}")


def _pair_rows(state: StudyState) -> Iterable[TableRow]:
    """Yield each pair with its trials; the first row of a comparison has its id."""
    for one in state.registered.compare:
        finding = state.verdicts.get(one.id)
        if finding is None:
            continue
        arm, against = arm_name(one.arm), arm_name(one.against)
        differences = _differences(state, one)
        trials = {
            (trial.arm, trial.blueprint.seed): id_
            for id_, trial in state.trials.items()
            if not trial.blueprint.repeat
        }
        for index, seed in enumerate(finding.seeds):
            pair = [trials[name, seed] for name in (arm, against) if (name, seed) in trials]
            id_ = f"pairs-{one.id}-{seed}" if index else f"pairs-{one.id}"
            difference = repr(differences[seed]) if seed in differences else ""
            yield TableRow(
                [
                    (Reference(one.id, f"finding-{one.id}"),),
                    (Exact(str(seed)),),
                    *((Reference(trial, f"trial-{trial}"),) for trial in pair),
                    (Exact(difference),),
                ],
                id_,
            )


def _guardrail_rows(state: StudyState, numbers: DefinedNumbers) -> Iterable[TableRow]:
    for id_, finding in state.verdicts.items():
        for guard in state.registered.outcome.guardrails:
            guarded = finding.guardrails.get(guard.metric)
            if guarded is None:
                continue
            name = f"{id_}.{guard.metric}"
            of: Cell = (Reference("pairs", f"pairs-{id_}"),)
            gain = numbers(f"{name}.gain", guarded.gain, "mean difference of the guardrail", of=of)
            low = numbers(f"{name}.low", guarded.low, "lower end of its interval", of=of)
            margin = numbers(f"{guard.metric}.margin", guard.margin, "margin of the guardrail")
            word = "holds" if guarded.holds else "not shown to hold"
            yield TableRow(
                [
                    (Reference(id_, f"finding-{id_}"),),
                    (Quote(guard.metric, STUDY),),
                    *((gain,), (low,), (margin,), (Text(word),)),
                ]
            )


def figure_of(state: StudyState) -> tuple[str, str]:
    """Return the picture, and its data as CSV."""
    study = state.registered
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["comparison", "seed", "difference"])
    bars = []
    for one in study.compare:
        finding = state.verdicts.get(one.id)
        if finding is None or finding.gain is None:
            continue
        points = _differences(state, one)
        chosen = {seed: points[seed] for seed in finding.seeds if seed in points}
        for seed, value in chosen.items():
            writer.writerow([one.id, seed, repr(value)])
        labels = [
            ("" if value is None else shown(value, 3), f"number-{one.id}.{name}")
            for name, value in (
                ("gain", finding.gain),
                ("low", finding.low),
                ("high", finding.high),
            )
        ]
        bars.append(
            Bar(one.id, finding.gain, finding.low, finding.high, list(chosen.values()), labels)
        )
    svg = intervals(bars, study.outcome.smallest, "number-smallest")
    return svg, text.getvalue()


def _differences(state: StudyState, one: Compare) -> dict[int, float]:
    """Return the differences of the outcome by seed; positive ones favour the arm."""
    metric = state.registered.outcome.metric
    return paired(
        outcomes(state, arm_name(one.arm), metric),
        outcomes(state, arm_name(one.against), metric),
        sign=sign(state, metric),
    )
