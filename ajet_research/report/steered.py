"""What people did to a study while it ran, in words: for reports, records and status."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_research.events import Amended, Answered, Paused, Resumed, Steering, Stopped
from ajet_research.report.document import Cell, Document, Exact, Reference, Span, TableRow, Text
from ajet_research.state import StudyState, shown_time


@dataclass(frozen=True, slots=True)
class Intervention:
    """One act.

    :param time: when the person requested it, in UTC.
    :param by: who; "the registered default" if no person answered in time.
    :param what: such as ``budget.compute_hours: 1 -> 12``.
    :param outcomes: whether outcomes were open at that moment.
    :param changes: whether the result can depend on it: pauses only delay it.
    """

    time: str
    by: str
    what: str
    outcomes: str
    why: str
    changes: bool

    @property
    def line(self) -> str:
        """All of it, in one line."""
        why = f": {self.why}" if self.why else ""
        return f"{self.time}, {self.by}: {self.what}; {self.outcomes}{why}"


def interventions(state: StudyState) -> list[Intervention]:
    """Return what people did, in order."""
    limits = state.registered.budget.model_dump()
    acts = []
    for event in state.steered:
        what = _words(event, limits)
        if isinstance(event, Amended):
            limits |= event.budget
        outcomes = f"outcomes open, after look {event.looks}" if event.looks else "outcomes hidden"
        acts.append(
            Intervention(
                time=shown_time(event.at),
                by=_line(event.by) or "the registered default",
                what=what,
                outcomes=outcomes,
                why=_line(event.why),
                changes=not isinstance(event, Paused | Resumed),
            )
        )
    return acts


def write_interventions(report: Document, state: StudyState) -> None:
    """Write what a person changed, if anything."""
    acts = [(n, one) for n, one in enumerate(interventions(state), 1) if one.changes]
    if not acts:
        return
    report.heading("Amendments, answers and stops")
    report.paragraph(
        Text("Looks, their alphas, the outcome and the decisions are those that were registered.")
    )
    report.table(
        ["time", "by", "what", "outcomes", "reason"],
        (
            TableRow(
                [(Exact(text),) for text in (one.time, one.by, one.what, one.outcomes, one.why)],
                f"steered-{n}",
            )
            for n, one in acts
        ),
    )


def amendments_cell(state: StudyState) -> Cell:
    """Return the line about amendments among what was registered."""
    spans: list[Span] = [Text("Amendments:")]
    for n, (event, one) in enumerate(zip(state.steered, interventions(state), strict=True), 1):
        if isinstance(event, Amended):
            spans += [Text(" "), Reference(one.what, f"steered-{n}"), Text(";")]
    return spans if len(spans) > 1 else [Text("Amendments: none.")]


def path_cells(state: StudyState) -> list[Cell]:
    """Return the lines about answers and the end that a person chose."""
    cells: list[Cell] = []
    for n, (event, one) in enumerate(zip(state.steered, interventions(state), strict=True), 1):
        if isinstance(event, Answered | Stopped):
            cells.append((Reference(f"{one.by}: {one.what}", f"steered-{n}"), Text(".")))
    if state.ended is not None:
        cells.append((Text("So nothing more was started, and open comparisons stay undecided."),))
    return cells


def _words(event: Steering, limits: dict[str, float]) -> str:
    match event:
        case Amended():
            return ", ".join(
                f"budget.{name}: {limits.get(name, 0):g} -> {limit:g}"
                for name, limit in sorted(event.budget.items())
            )
        case Answered():
            return f"the question {event.question} was answered with {event.answer}"
        case Stopped():
            return "the study was stopped"
        case Paused():
            return "the study was paused"
        case _:
            return "the study was resumed"


def _line(text: str) -> str:
    return " ".join(text.split())
