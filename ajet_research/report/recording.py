"""The record of a study: how it ran."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_research.events import (
    Asked,
    AttemptFailed,
    ClockJumped,
    Exhausted,
    Hindered,
    Interpreted,
    LeaderStarted,
    Registered,
    ResearcherAnswered,
    ResearcherAsked,
    Steering,
)
from ajet_research.ledger import LedgerRow
from ajet_research.report.document import Cell, Document, Exact, Quote, Reference, TableRow, Text
from ajet_research.report.numbers import STUDY, DefinedNumbers
from ajet_research.report.steered import interventions
from ajet_research.state import StudyState, shown_time

_TOKENS = "that requests took; those that were set aside where that is not known"


def compile_record(rows: Sequence[LedgerRow], state: StudyState) -> Document:
    """Return what happened besides outcomes, and all rows of the ledger."""
    record = Document("Record of a study")
    numbers = DefinedNumbers()
    record.heading("Leaders and clocks")
    items: list[Cell] = []
    failed: list[Cell] = []
    acts = iter(interventions(state))
    steered: list[Cell] = []
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
            case Hindered():
                text = f"{row.time}: {row.event.cause}: {' '.join(row.event.said.split())}"
                failed.append((Reference(text, place),))
            case AttemptFailed():
                text = f"trial {row.event.trial}, attempt {row.event.attempt}: {row.event.cause}"
                failed.append((Reference(text, place),))
            case Steering():
                steered.append((Reference(next(acts).line, place),))
            case Asked():
                deadline = shown_time(row.event.deadline)
                text = f"{row.time}: the question {row.event.question} opened until {deadline}"
                steered.append((Reference(text, place),))
            case _:
                pass
    record.items(items)
    record.heading("Pauses, questions and amendments")
    record.items(steered or [(Text("none"),)])
    record.heading("Attempts that the machine let fail")
    record.items(failed or [(Text("none"),)])
    _researchers(record, rows)
    _cost(record, state, numbers)
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
    record.source(STUDY, state.digest)
    return record


def _cost(record: Document, state: StudyState, numbers: DefinedNumbers) -> None:
    record.heading("Cost")
    attempts = sum(trial.attempts for trial in state.trials.values())
    spent: list[Cell] = []
    if state.spending.requests:
        spending = state.spending
        spent = [
            (
                *(Text("Tokens of researchers: "), numbers("tokens", spending.tokens, _TOKENS)),
                *(
                    Text(". Their price: "),
                    numbers("money", spending.money, "by researcher_prices"),
                ),
            )
        ]
    record.items(
        [
            *spent,
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


def _researchers(record: Document, rows: Sequence[LedgerRow]) -> None:
    """Write which requests were made, and what became of them."""
    items: list[Cell] = []
    for row in rows:
        match row.event:
            case ResearcherAsked(researcher=name, purpose=purpose, tokens=tokens):
                text = f"{name} was asked ({purpose}): at most {tokens} tokens"
            case ResearcherAnswered(number=number, tokens=tokens, problem=problem):
                text = f"request {number} took {tokens} tokens: {problem or 'accepted'}"
            case Interpreted(researcher=name, problem=problem):
                text = f"interpretation of {name}: {problem or 'accepted'}"
            case _:
                continue
        items.append((Reference(" ".join(text.split()), f"row-{row.seq}"),))
    if items:
        record.heading("Researchers")
        record.items(items)
