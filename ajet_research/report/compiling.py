"""Compiles the report from the rows of a ledger. Pure: the same rows give the same bytes.

``report.md``, ``report.html`` and ``report.json`` say what came out. They depend on the study and
on its outcomes alone, so that they are the same however often the study was interrupted.
``record.md`` and ``record.html`` say how it ran: leaders, failed attempts, clocks and cost.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ajet_research.analysis import final_verdicts, outcomes, sign
from ajet_research.events import (
    AttemptFailed,
    ClockJumped,
    Exhausted,
    LeaderStarted,
    LookFinding,
    Registered,
    Reported,
)
from ajet_research.inference import paired
from ajet_research.ledger import LedgerRow
from ajet_research.report.document import (
    Cell,
    Document,
    Exact,
    Quote,
    Reference,
    Span,
    TableRow,
    Text,
)
from ajet_research.report.figure import Bar, intervals
from ajet_research.state import StudyState, TrialState, fold
from ajet_research.study import Compare, arm_name

_STUDY = "study"
_FIGURE = "intervals"


@dataclass(frozen=True, slots=True)
class CompiledReport:
    """The files of a report, by their paths in its directory."""

    files: dict[str, str]

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file."""
        return {
            name: hashlib.sha256(content.encode()).hexdigest()
            for name, content in self.files.items()
        }


@dataclass(slots=True)
class _Numbers:
    """The numbers of a document: each is defined once, with its formula and what it comes from."""

    rows: dict[str, TableRow] = field(default_factory=dict)

    def __call__(
        self, id_: str, value: float | None, formula: str, *, of: Cell = (), digits: int = 4
    ) -> Reference:
        """Define a number, and return a link that shows it."""
        shown = "none" if value is None else _shown(value, digits)
        exact = "none" if value is None else repr(value)
        target = f"number-{id_}"
        cells: list[Cell] = [(Exact(id_),), (Exact(exact),), (Exact(formula),), of]
        self.rows[target] = TableRow(cells, target)
        return Reference(shown, target)


def _shown(value: float, digits: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def compile_report(rows: Iterable[LedgerRow]) -> CompiledReport:
    """Compile the report of a decided study from the rows before it was reported."""
    before = [row for row in rows if not isinstance(row.event, Reported)]
    state = fold(before)
    study = state.registered
    numbers = _Numbers()
    report = Document("Report of a study")
    _answer(report, state, numbers)
    _results(report, state, numbers)
    _expectations(report, state)
    _path(report, state, numbers)
    _plan(report, state, numbers)
    _failures(report, state, numbers)
    _limits(report, state, numbers)
    _trials(report, state)
    report.heading("Numbers")
    report.paragraph(Text("Each number of this report, with its formula and its trials."))
    report.table(["name", "value", "formula", "from"], numbers.rows.values())
    report.heading("Registered study")
    content = study.model_dump(mode="json", by_alias=True)
    report.source(_STUDY, json.dumps(content, indent=1, sort_keys=True))
    record = _record(before, state)
    figure, data = _figure(state)
    return CompiledReport(
        {
            "report.md": report.markdown(),
            "report.html": report.html(),
            "report.json": _json(state),
            "record.md": record.markdown(),
            "record.html": record.html(),
            f"{_FIGURE}.svg": figure,
            f"{_FIGURE}.csv": data,
        }
    )


def _answer(report: Document, state: StudyState, numbers: _Numbers) -> None:
    study = state.registered
    report.heading("Question")
    report.paragraph(Quote(study.topic.question, _STUDY), quoted=True)
    report.heading("Answer")
    assert state.decided is not None
    report.paragraph(Quote(study.decide[state.decided.branch].conclude, _STUDY), quoted=True)
    report.items(_sentence(state, numbers, one) for one in study.compare)


def _sentence(state: StudyState, numbers: _Numbers, one: Compare) -> list[Span]:
    """Return what the verdict of a comparison means, in a fixed phrase."""
    study = state.registered
    finding = state.verdicts.get(one.id)
    arm, against = Quote(arm_name(one.arm), _STUDY), Quote(arm_name(one.against), _STUDY)
    smallest = numbers("smallest", study.outcome.smallest, "outcome.smallest of the study")
    start: list[Span] = [Reference(one.id, f"finding-{one.id}"), Text(": ")]
    metric = Quote(study.outcome.metric, _STUDY)
    if finding is None:
        return [*start, Text("undecided. No look was taken: the budget ended before.")]
    verdict = final_verdicts(state)[one.id]
    difference = [Text(" The difference is "), *_interval(numbers, one.id, finding), Text(".")]
    match verdict:
        case "better" | "worse":
            words: list[Span] = [
                *(arm, Text(f" is {verdict} than "), against, Text(" in "), metric),
                *(Text(" by more than the smallest effect of interest, "), smallest, Text(".")),
            ]
        case "equivalent":
            words = [
                *(arm, Text(" and "), against, Text(" are equivalent in "), metric),
                *(Text(": they differ by less than "), smallest, Text(".")),
            ]
        case "undecided":
            words = [
                *(Text("undecided whether "), arm, Text(" and "), against),
                *(Text(" differ in "), metric, Text(" by more or less than "), smallest),
                Text("."),
            ]
        case _:
            words = [Text("invalid: nothing can be concluded.")]
    why: list[Span] = []
    if finding.reason:
        why = [Text(" Reason: "), Quote(finding.reason, f"finding-{one.id}"), Text(".")]
    return [*start, *words, *(difference if finding.gain is not None else []), *why]


def _interval(numbers: _Numbers, id_: str, finding: LookFinding) -> list[Span]:
    of = (Reference("pairs", f"finding-{id_}"),)
    gain = numbers(
        f"{id_}.gain",
        finding.gain,
        "mean over pairs of the outcome of the arm minus that of the other with the same seed; "
        "positive if the arm is better",
        of=of,
    )
    level = numbers(
        f"{id_}.confidence",
        1 - finding.alpha,
        "1 - alpha of the look / number of comparisons",
    )
    low = numbers(
        f"{id_}.low", finding.low, "lower end of the interval that inverts the test", of=of
    )
    high = numbers(
        f"{id_}.high", finding.high, "upper end of the interval that inverts the test", of=of
    )
    return [
        *(gain, Text(" (from "), low, Text(" to "), high),
        *(Text(" with confidence "), level, Text(")")),
    ]


def _results(report: Document, state: StudyState, numbers: _Numbers) -> None:
    study = state.registered
    report.heading("Results")
    figure, _ = _figure(state)
    report.figure(
        figure, "Difference of each comparison, with its seeds", f"{_FIGURE}.svg", f"{_FIGURE}.csv"
    )
    rows = []
    for one in study.compare:
        finding = state.verdicts.get(one.id)
        if finding is None:
            rows.append(
                TableRow(
                    [(Quote(one.id, _STUDY),), (Text("undecided"),), *[(Text(""),)] * 7],
                    f"finding-{one.id}",
                )
            )
            continue
        by_seed = _trials_by_seed(state, one)
        pairs: list[Span] = []
        for seed in finding.seeds:
            for id_ in by_seed.get(seed, ()):
                pairs += [Reference(id_, f"trial-{id_}"), Text(" ")]
        of: Cell = (Reference("pairs", f"finding-{one.id}"),)
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
        missing = numbers(f"{one.id}.missing", len(finding.missing), "pairs without outcomes")
        shown = _interval(numbers, one.id, finding) if finding.gain is not None else [Text("")]
        rows.append(
            TableRow(
                [
                    (Quote(one.id, _STUDY),),
                    (Text(final_verdicts(state)[one.id]),),
                    (means[0],),
                    (means[1],),
                    shown,
                    (p,),
                    (wins,),
                    (missing,),
                    pairs,
                ],
                f"finding-{one.id}",
            )
        )
    header = ["comparison", "verdict", "arm", "against", "difference", "p", "wins", "missing"]
    report.table([*header, "pairs"], rows)
    if study.outcome.guardrails:
        report.paragraph(
            Text("Guardrails: an arm is not called better or equivalent unless all of them hold.")
        )
        report.table(
            ["comparison", "metric", "difference", "lower end", "margin", "state"],
            _guardrail_rows(state, numbers),
        )


def _guardrail_rows(state: StudyState, numbers: _Numbers) -> Iterable[TableRow]:
    for id_, finding in state.verdicts.items():
        for guard in state.registered.outcome.guardrails:
            its = finding.guardrails.get(guard.metric)
            if its is None:
                continue
            name = f"{id_}.{guard.metric}"
            of: Cell = (Reference("pairs", f"finding-{id_}"),)
            gain = numbers(f"{name}.gain", its.gain, "mean difference of the guardrail", of=of)
            low = numbers(f"{name}.low", its.low, "lower end of its interval", of=of)
            margin = numbers(f"{guard.metric}.margin", guard.margin, "margin of the guardrail")
            word = "holds" if its.holds else "not shown to hold"
            yield TableRow(
                [
                    (Reference(id_, f"finding-{id_}"),),
                    (Quote(guard.metric, _STUDY),),
                    *((gain,), (low,), (margin,), (Text(word),)),
                ]
            )


def _expectations(report: Document, state: StudyState) -> None:
    report.heading("Expected and observed")
    verdicts = final_verdicts(state)
    items: list[Cell] = []
    for one in state.registered.compare:
        said = f"expected {one.expect}" if one.expect else "no expectation was registered"
        observed = f": {said}; observed {verdicts[one.id]}."
        items.append((Reference(one.id, f"finding-{one.id}"), Text(observed)))
    report.items(items)


def _path(report: Document, state: StudyState, numbers: _Numbers) -> None:
    report.heading("Path to the decision")
    study = state.registered
    items: list[Cell] = []
    for index, findings in enumerate(state.findings):
        seeds = numbers(
            f"look-{index + 1}.seeds", study.inference.looks[index].seeds, "seeds of the look"
        )
        spans: list[Span] = [Text("Look after "), seeds, Text(" seeds:")]
        for id_, finding in findings.items():
            spans += [Text(" "), Reference(id_, f"finding-{id_}"), Text(f" {finding.verdict};")]
        items.append(spans)
    if state.exhausted is not None:
        items.append(
            (Text("The budget was exhausted: "), Text(state.exhausted.resource), Text("."))
        )
    assert state.decided is not None
    branch = numbers("branch", state.decided.branch + 1, "first branch of the study that applies")
    items.append((Text("Branch "), branch, Text(" of the registered decisions applies.")))
    report.items(items)


def _plan(report: Document, state: StudyState, numbers: _Numbers) -> None:
    study = state.registered
    report.heading("What was registered")
    alpha = numbers("alpha", study.inference.alpha, "inference.alpha of the study")
    arms = numbers("arms", len(study.arms), "arms that are compared")
    outcome = state.metrics[study.outcome.metric]
    better = "more" if outcome.direction == "max" else "less"
    report.items(
        [
            (
                Text("Before the first result, with the digest "),
                Reference(state.digest, _STUDY),
                Text("."),
            ),
            (
                *(Text("Outcome: "), Quote(study.outcome.metric, _STUDY)),
                Text(f"; {better} is better. Unit of inference: the seed; arms are paired by it."),
            ),
            (Text("Arms: "), arms, Text(". Probability of any false verdict: "), alpha, Text(".")),
            (Text("Amendments: none."),),
        ]
    )


def _failures(report: Document, state: StudyState, numbers: _Numbers) -> None:
    report.heading("Failures and exclusions")
    of_status = {
        "failed": [
            (id_, trial)
            for id_, trial in state.trials.items()
            if trial.outcome is not None and trial.outcome.failed
        ],
        "lost": [(id_, one) for id_, one in state.trials.items() if one.status == "lost"],
        "planned": [(id_, one) for id_, one in state.trials.items() if one.status == "planned"],
    }
    counts = {
        name: numbers(f"trials.{name}", len(trials), f"trials that are {name}")
        for name, trials in of_status.items()
    }
    items: list[Cell] = [
        (
            Text("Trials that failed by what their arm does, and count with the registered "),
            *(Text("outcome of a failure: "), counts["failed"], Text(".")),
            *_listed(of_status["failed"]),
        ),
        (
            Text("Trials that were lost with the machine and are missing: "),
            *(counts["lost"], Text(".")),
            *_listed(of_status["lost"]),
        ),
        (Text("Trials that were not needed: "), counts["planned"], Text(".")),
        (Text("Outcomes that were excluded: none. Finished trials cannot be excluded."),),
    ]
    undecided = [id_ for id_, one in final_verdicts(state).items() if one == "undecided"]
    spans: list[Span] = [
        Text("Comparisons that remain undecided:" + ("" if undecided else " none."))
    ]
    for id_ in undecided:
        spans += [Text(" "), Reference(id_, f"finding-{id_}")]
    report.items([*items, spans])


def _listed(trials: Sequence[tuple[str, TrialState]]) -> list[Span]:
    spans: list[Span] = []
    for id_, trial in trials:
        spans += [Text(" "), Reference(id_, f"trial-{id_}")]
        if trial.outcome is not None and trial.outcome.failed:
            spans += [Text(" ("), Quote(trial.outcome.failed, f"trial-{id_}"), Text(")")]
    return spans


def _limits(report: Document, state: StudyState, numbers: _Numbers) -> None:
    report.heading("Limits")
    study = state.registered
    items: list[Cell] = [
        (
            Text("What holds for these seeds, tasks and settings may not hold for others. "),
            Text("The verdicts speak of the mean over seeds, not of single runs."),
        )
    ]
    metric = study.outcome.metric
    for id_, trial in state.trials.items():
        if not trial.blueprint.repeat or trial.outcome is None or trial.outcome.failed:
            continue
        twin = next(
            (
                (other, one.outcome)
                for other, one in state.trials.items()
                if one.arm == trial.arm
                and one.blueprint.seed == trial.blueprint.seed
                and not one.blueprint.repeat
            ),
            None,
        )
        if twin is None or twin[1] is None or twin[1].failed:
            continue
        noise = numbers(
            f"noise.{id_}",
            abs(trial.outcome.metrics[metric] - twin[1].metrics[metric]),
            "difference between two trials of one arm with one seed",
            of=(Reference(twin[0], f"trial-{twin[0]}"), Text(" "), Reference(id_, f"trial-{id_}")),
        )
        items.append(
            (Text("A trial that was repeated with the same seed differed by "), noise, Text("."))
        )
    report.items(items)
    report.paragraph(
        Text(
            "How it ran is in record.md beside this file. To check this report against the raw "
            "stores, run: ajet research verify DIR. To repeat the study with fresh seeds, run: "
            "ajet research replicate DIR."
        )
    )


def _trials(report: Document, state: StudyState) -> None:
    report.heading("Trials")
    study = state.registered
    metrics = [study.outcome.metric, *(one.metric for one in study.outcome.guardrails)]
    metrics = list(dict.fromkeys(metrics))
    rows = []
    for id_, trial in state.trials.items():
        outcome = trial.outcome
        status: str = trial.status
        if outcome is not None and outcome.failed:
            status = "time limit" if outcome.limit else "failed"
        elif status == "planned":
            status = "not run"
        if trial.blueprint.repeat:
            status += ", repeated"
        target = f"trial-{id_}"
        values: list[Cell] = [
            (Exact(repr(outcome.metrics[metric])),)
            if outcome is not None and not outcome.failed
            else ()
            for metric in metrics
        ]
        seed = str(trial.blueprint.seed)
        rows.append(
            TableRow(
                [
                    (Exact(id_),),
                    (Exact(trial.arm),),
                    (Exact(seed),),
                    (Text(status),),
                    *values,
                ],
                target,
            )
        )
    report.paragraph(Text("The raw store of a trial is the directory store of its directory."))
    # A metric's name may have digits, which a header may not.
    names = ["outcome", *("guardrail" for _ in metrics[1:])]
    report.table(["trial", "arm", "seed", "status", *names], rows)


def _figure(state: StudyState) -> tuple[str, str]:
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
        metric = study.outcome.metric
        points = paired(
            outcomes(state, arm_name(one.arm), metric),
            outcomes(state, arm_name(one.against), metric),
            sign=sign(state, metric),
        )
        chosen = {seed: points[seed] for seed in finding.seeds if seed in points}
        for seed, value in chosen.items():
            writer.writerow([one.id, seed, repr(value)])
        labels = [
            ("" if value is None else _shown(value, 3), f"number-{one.id}.{name}")
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


def _trials_by_seed(state: StudyState, one: Compare) -> dict[int, list[str]]:
    """Return by seed the trials of both arms of a comparison."""
    names = (arm_name(one.arm), arm_name(one.against))
    its: dict[int, list[str]] = {}
    for id_, trial in state.trials.items():
        if trial.arm in names and not trial.blueprint.repeat:
            its.setdefault(trial.blueprint.seed, []).append(id_)
    return its


def _record(rows: Sequence[LedgerRow], state: StudyState) -> Document:
    record = Document("Record of a study")
    numbers = _Numbers()
    record.heading("Leaders and clocks")
    items: list[Cell] = []
    failed: list[Cell] = []
    for row in rows:
        place = f"row-{row.seq}"
        match row.event:
            case LeaderStarted():
                items.append((Reference(f"{row.time}: a leader started", place),))
            case ClockJumped():
                items.append(
                    (Reference(f"the clock moved by {row.event.seconds} s before this row", place),)
                )
            case Exhausted():
                text = f"{row.event.resource} was exhausted: {row.event.used} of {row.event.limit}"
                items.append((Reference(text, place),))
            case AttemptFailed():
                text = f"trial {row.event.trial}, attempt {row.event.attempt}: {row.event.cause}"
                failed.append((Reference(text, place),))
            case _:
                pass
    record.items(items)
    record.heading("Attempts that the machine let fail")
    record.items(failed or [(Text("none"),)])
    record.heading("Cost")
    attempts = sum(trial.attempts for trial in state.trials.values())
    record.items(
        [
            (Text("Attempts: "), numbers("attempts", attempts, "attempts that were reserved")),
            (
                Text("Seconds of attempts: "),
                numbers("seconds", round(state.settled, 3), "wall time of all attempts that ended"),
            ),
            (
                Text("Seconds of leaders: "),
                numbers("wall", round(state.wall, 3), "time in which a leader was at work"),
            ),
        ]
    )
    record.heading("Versions")
    first = rows[0].event
    assert isinstance(first, Registered)
    record.items(
        (Text(f"{name}: "), Reference(version, "row-1")) for name, version in first.versions.items()
    )
    if first.warnings:
        record.heading("Warnings at registration")
        record.items((Quote(text, "row-1"),) for text in first.warnings)
    record.heading("Numbers")
    record.table(["name", "value", "formula", "from"], numbers.rows.values())
    record.heading("Ledger")
    record.table(
        ["row", "time", "kind", "hash"],
        (
            TableRow(
                [
                    (Exact(str(row.seq)),),
                    (Exact(row.time),),
                    (Text(row.event.kind),),
                    (Exact(row.hash),),
                ],
                f"row-{row.seq}",
            )
            for row in rows
        ),
    )
    # What formulas link to.
    record.source(_STUDY, state.digest)
    return record


def _json(state: StudyState) -> str:
    study = state.registered
    assert state.decided is not None
    content = {
        "schema": 1,
        "digest": state.digest,
        "question": study.topic.question,
        "conclusion": study.decide[state.decided.branch].conclude,
        "branch": state.decided.branch,
        "verdicts": final_verdicts(state),
        "findings": {id_: one.model_dump(mode="json") for id_, one in state.verdicts.items()},
        "looks": len(state.findings),
        "exhausted": state.exhausted.resource if state.exhausted else None,
        "trials": {
            id_: {
                "arm": trial.arm,
                "seed": trial.blueprint.seed,
                "repeat": trial.blueprint.repeat,
                "status": trial.status,
                "failed": trial.outcome.failed if trial.outcome else "",
                "metrics": trial.outcome.metrics if trial.outcome else {},
            }
            for id_, trial in state.trials.items()
        },
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"
