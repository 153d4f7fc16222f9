"""Compiles the report from the rows of a ledger. Pure: the same rows give the same bytes.

``report.md``, ``report.html`` and ``report.json`` say what came out. They depend on the study and
on its outcomes alone, so that they are the same however often the study was interrupted.
``record.md`` and ``record.html`` say how it ran: leaders, failed attempts, clocks and cost.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ajet_research.analysis import final_verdicts
from ajet_research.events import AnyEvent, Registered
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
from ajet_research.report.interpretation import Referents, interpretation_spans
from ajet_research.report.numbers import STUDY, DefinedNumbers, interval_of
from ajet_research.report.recording import compile_record
from ajet_research.report.results import FIGURE, figure_of, write_results
from ajet_research.report.searched import write_search
from ajet_research.report.steered import (
    amendments_cell,
    interventions,
    path_cells,
    write_interventions,
)
from ajet_research.state import StudyState, TrialState, fold
from ajet_research.study import Compare, arm_name


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


def compile_report(rows: Iterable[LedgerRow]) -> CompiledReport:
    """Compile the report of a decided study from all rows before the one that reports it."""
    before = list(rows)
    state = fold(before)
    study = state.registered
    report, numbers = _findings(state)
    _earlier(report, before[0].event)
    _code(report, before[0].event)
    _interpretations(report, state, numbers)
    _trials(report, state)
    report.heading("Numbers")
    report.paragraph(Text("Each number of this report, with its formula and its trials."))
    report.table(["name", "value", "formula", "from"], numbers.rows.values())
    report.heading("Registered study")
    content = study.model_dump(mode="json", by_alias=True)
    report.source(STUDY, json.dumps(content, indent=1, sort_keys=True))
    record = compile_record(before, state)
    figure, data = figure_of(state)
    return CompiledReport(
        {
            "report.md": report.markdown(),
            "report.html": report.html(),
            "report.json": _json(state),
            "record.md": record.markdown(),
            "record.html": record.html(),
            f"{FIGURE}.svg": figure,
            f"{FIGURE}.csv": data,
        }
    )


def referents_of(state: StudyState) -> Referents:
    """Return what prose about a decided study may refer to."""
    _, numbers = _findings(state)
    return Referents(state, numbers.links)


def _findings(state: StudyState) -> tuple[Document, DefinedNumbers]:
    """Begin a report with what follows from the study alone."""
    numbers = DefinedNumbers()
    report = Document("Report of a study")
    _answer(report, state, numbers)
    write_results(report, state, numbers)
    write_search(report, state, numbers)
    _expectations(report, state)
    _path(report, state, numbers)
    _plan(report, state, numbers)
    write_interventions(report, state)
    _failures(report, state, numbers)
    _limits(report, state, numbers)
    return report, numbers


def _earlier(report: Document, first: AnyEvent) -> None:
    """List the studies of the same directory: one that was repeated until it pleased is seen."""
    assert isinstance(first, Registered)
    if not first.earlier:
        return
    report.heading("Other studies in the same directory")
    report.paragraph(
        Text(
            "They were there when this study was registered. Each has its own probability of a "
            "false verdict, so that one of many may be false by chance."
        )
    )
    rows = []
    for index, one in enumerate(first.earlier, 1):
        said = ", ".join(f"{id_} {verdict}" for id_, verdict in one.verdicts.items())
        question = " ".join(one.question.split())
        texts = (one.name, question, one.digest[:12], one.phase, said)
        rows.append(TableRow([(Exact(text),) for text in texts], f"earlier-{index}"))
    report.table(["directory", "question", "digest", "phase", "verdicts"], rows)


def _code(report: Document, first: AnyEvent) -> None:
    """Show the code of arms as it was registered."""
    assert isinstance(first, Registered)
    if not first.files:
        return
    report.heading("Code of arms")
    report.paragraph(
        Text(
            "It ran in a sandbox, without the answers of tasks and what scores them. Its text "
            "is in the first row of the ledger."
        )
    )
    rows = []
    for index, (path, text) in enumerate(first.files.items(), 1):
        digest = hashlib.sha256(text.encode()).hexdigest()
        rows.append(TableRow([(Exact(path),), (Exact(digest),)], f"code-{index}"))
    report.table(["file", "digest"], rows)


def _interpretations(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
    """Write what researchers say, each under its name."""
    if not state.interpretations:
        return
    report.heading("Interpretations")
    report.paragraph(
        Text(
            "Words of researchers, and not findings. Each number is one of this report, and each "
            "claim links to the verdict that carries it. The other words were checked for numbers "
            "and comparisons, not for sense."
        )
    )
    referents = Referents(state, dict(numbers.links))
    for index, one in enumerate(state.interpretations, 1):
        target = f"interpretation-{index}"
        state_of = "accepted" if one.prose else "none was accepted; the reason is in the record"
        cells: list[Cell] = [(Exact(one.researcher),), (Text(state_of),)]
        report.table(["researcher", "interpretation"], [TableRow(cells, target)])
        if one.prose:
            for spans in interpretation_spans(one.prose, referents):
                report.paragraph(*spans, quoted=True)


def _answer(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
    study = state.registered
    report.heading("Question")
    report.paragraph(Quote(study.topic.question, STUDY), quoted=True)
    report.heading("Answer")
    assert state.decided is not None
    report.paragraph(Quote(study.decide[state.decided.branch].conclude, STUDY), quoted=True)
    report.items(_sentence(state, numbers, one) for one in study.compare)


def _sentence(state: StudyState, numbers: DefinedNumbers, one: Compare) -> list[Span]:
    """Return what the verdict of a comparison means, in a fixed phrase."""
    study = state.registered
    finding = state.verdicts.get(one.id)
    arm, against = Quote(arm_name(one.arm), STUDY), Quote(arm_name(one.against), STUDY)
    smallest = numbers("smallest", study.outcome.smallest, "outcome.smallest of the study")
    start: list[Span] = [Reference(one.id, f"finding-{one.id}"), Text(": ")]
    metric = Quote(study.outcome.metric, STUDY)
    if finding is None:
        ended = "a person ended the study" if state.ended else "the budget ended"
        return [*start, Text(f"undecided. No look was taken: {ended} before.")]
    verdict = final_verdicts(state)[one.id]
    difference = [Text(" The difference is "), *interval_of(numbers, one.id, finding), Text(".")]
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
        why = [Text(" Reason: "), *_reason(state, one.id, finding.reason), Text(".")]
    return [*start, *words, *(difference if finding.gain is not None else []), *why]


def _reason(state: StudyState, id_: str, reason: str) -> list[Span]:
    """Return the reason of a verdict, in which the ids of trials link to the trials."""
    # An id has digits and letters: in a quote, each of its numerals would be a link of its own.
    spans: list[Span] = []
    ids = "|".join(state.trials) or "(?!)"
    for index, part in enumerate(re.split(f" ({ids}) ", f"{reason} ")):
        if index % 2:
            spans += [Text(" "), Reference(part, f"trial-{part}"), Text(" ")]
        else:
            # A quote has no space at its ends.
            spans.append(Quote(part.strip(), f"finding-{id_}"))
    return spans


def _expectations(report: Document, state: StudyState) -> None:
    report.heading("Expected and observed")
    verdicts = final_verdicts(state)
    items: list[Cell] = []
    for one in state.registered.compare:
        said = f"expected {one.expect}" if one.expect else "no expectation was registered"
        observed = f": {said}; observed {verdicts[one.id]}."
        items.append((Reference(one.id, f"finding-{one.id}"), Text(observed)))
    report.items(items)


def _path(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
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
    items += path_cells(state)
    assert state.decided is not None
    branch = numbers("branch", state.decided.branch + 1, "first branch of the study that applies")
    items.append((Text("Branch "), branch, Text(" of the registered decisions applies.")))
    report.items(items)


def _plan(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
    study = state.registered
    report.heading("What was registered")
    alpha = numbers("alpha", study.inference.alpha, "inference.alpha of the study")
    arms = numbers("arms", len(study.arms), "arms that are compared")
    outcome = state.metrics[study.outcome.metric]
    better = "more" if outcome.direction == "max" else "less"
    proposed: list[Cell] = []
    if study.topic.proposed_by:
        quote = Quote(study.topic.proposed_by, STUDY)
        proposed = [(Text("Written by the researcher "), quote, Text(", conclusions included."))]
    report.items(
        [
            *proposed,
            (
                Text("Before the first result, with the digest "),
                Reference(state.digest, STUDY),
                Text("."),
            ),
            (
                *(Text("Outcome: "), Quote(study.outcome.metric, STUDY)),
                Text(f"; {better} is better. Unit of inference: the seed; arms are paired by it."),
            ),
            (Text("Arms: "), arms, Text(". Probability of any false verdict: "), alpha, Text(".")),
            amendments_cell(state),
        ]
    )


def _failures(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
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
        (
            Text(f"Trials that were not {'run' if state.over else 'needed'}: "),
            *(counts["planned"], Text(".")),
        ),
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


def _limits(report: Document, state: StudyState, numbers: DefinedNumbers) -> None:
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
            status = outcome.failed if outcome.limit else "failed"
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


def _searched(state: StudyState) -> dict[str, object]:
    return {
        "chosen": [] if state.searching else state.entered,
        "candidates": [
            {"candidate": one.candidate, "values": one.values, "by": one.by}
            | {"refused": one.refused}
            for one in state.candidates
        ],
    }


def _json(state: StudyState) -> str:
    study = state.registered
    assert state.decided is not None
    written = [{"researcher": one.researcher, "prose": one.prose} for one in state.interpretations]
    content = {
        "schema": 1,
        "digest": state.digest,
        "question": study.topic.question,
        "conclusion": study.decide[state.decided.branch].conclude,
        "branch": state.decided.branch,
        "verdicts": final_verdicts(state),
        "findings": {id_: one.model_dump(mode="json") for id_, one in state.verdicts.items()},
        "looks": len(state.findings),
        **({"search": _searched(state)} if study.search else {}),
        **({"interpretations": written} if written else {}),
        "exhausted": state.exhausted.resource if state.exhausted else None,
        "ended_by": (state.ended.by or "the registered default") if state.ended else None,
        "interventions": [
            {"time": one.time, "by": one.by, "what": one.what}
            | {"outcomes": one.outcomes, "why": one.why}
            for one in interventions(state)
            if one.changes
        ],
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
