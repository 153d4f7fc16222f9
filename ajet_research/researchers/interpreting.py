"""``ajet research interpret``: a researcher's words about a report, under its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError, StoreError
from ajet_research.analysis import final_verdicts
from ajet_research.events import Interpreted
from ajet_research.leader import MachineClock, StudyClock, StudyLeader
from ajet_research.ledger import LEDGER, StudyLedger, read_ledger
from ajet_research.report import (
    MOST_CHARACTERS,
    Referents,
    interpretation_problems,
    normalized,
    referents_of,
)
from ajet_research.researchers.accounts import RequestAccount
from ajet_research.researchers.asking import RefusedError, ResearcherDialogue
from ajet_research.researchers.interface import (
    Request,
    Researcher,
    ResearcherFailedError,
    read_answer,
)
from ajet_research.researchers.proposing import tighter
from ajet_research.runners import InlineRunner
from ajet_research.spending import ResearcherLimits
from ajet_research.state import StudyState, fold
from ajet_research.steering import held
from ajet_research.study import arm_name

_MOST_PROBLEM = 2000
_INSTRUCTIONS = f"""\
You interpret the report of a finished study, in at most {MOST_CHARACTERS} characters of plain
English, in paragraphs. Say what the verdicts mean for the question, what may explain them, and what
they leave open. Answer with {{"prose": TEXT}}, or with {{"declined": "reason"}}.

Your words may have neither numbers, nor number words, nor words that compare or claim certainty,
such as better, more, than, same, significant. Write references instead:

- {{{{number NAME}}}} shows a number; `numbers` has their names.
- {{{{claim COMPARISON VERDICT}}}} says what a verdict means. It needs that verdict, and is a
  sentence of its own: "{{{{claim b-vs-a better}}}}."
- {{{{finding COMPARISON}}}}, {{{{arm COMPARISON}}}} and {{{{against COMPARISON}}}} are names.

Write ASCII, without Markdown and without addresses. `problems` lists why your previous answer was
refused. Remove all of them.
"""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What came of a request for prose. The report is complete in either case.

    :param prose: "" if none was accepted.
    :param problem: why none was; "" if one was.
    """

    prose: str
    problem: str
    requests: int
    tokens: int
    money: float


def interpret_study(
    directory: Path,
    researcher: Researcher,
    *,
    tries: int = 5,
    limits: ResearcherLimits | None = None,
    wait_seconds: float = 300.0,
    clock: StudyClock | None = None,
    on_problem: Callable[[str], object] | None = None,
) -> Interpretation:
    """Let a researcher write about a study that has its report, and compile the report again.

    If no prose is accepted, the report states this and the ledger records the reason.

    :param tries: answers that may be refused.
    :param limits: of all requests about this study; those of its budget are applied as well.
    :param wait_seconds: how long to wait for an endpoint that cannot be reached.
    :raises ConfigError: there is no study with a report.
    :raises BusyError: a leader has the directory.
    """
    if not (directory / LEDGER).exists():
        raise ConfigError(f"There is no study in {directory}.")
    its_clock = clock or MachineClock()
    try:
        with held(directory), closing(StudyLedger(directory / LEDGER)) as ledger:
            state = fold(ledger.rows)
            if state.reported is None:
                raise ConfigError(
                    f"The study in {directory} has no report yet: ajet research run {directory}"
                )
            referents = referents_of(state)

            def accept(text: str) -> str:
                return accepted_prose(text, referents)

            prose, problem = "", ""
            account = RequestAccount(
                researcher=researcher.name,
                purpose="interpretation",
                ledger=ledger,
                spending=state.spending,
                directory=directory,
                limits=tighter(limits, ResearcherLimits.of(state.budget)),
                clock=its_clock,
            )
            dialogue = ResearcherDialogue(researcher, account, tries, wait_seconds, on_problem)
            try:
                prose = dialogue.accepted(interpretation_request(state, referents), accept)
            except ResearcherFailedError as error:
                problem = error.message.encode(errors="replace").decode()[:_MOST_PROBLEM]
            event = Interpreted(researcher=researcher.name, prose=prose, problem=problem)
            now = its_clock.now().isoformat(timespec="seconds")
            ledger.append(event, time=now, elapsed=0.0)
            # No trial is left to run.
            StudyLeader(ledger, InlineRunner(), directory, its_clock).lead()
    except OSError as error:
        raise StoreError(f"Cannot write in {directory}: {error.strerror}") from error
    spent = state.spending
    return Interpretation(prose, problem, spent.requests, spent.tokens, spent.money)


def prose_problems(directory: Path, prose: str) -> list[str]:
    """Return why prose about a study may not be printed, and change nothing.

    :raises ConfigError: there is no study with a report.
    """
    if not prose.strip():
        return ["the prose is empty"]
    return interpretation_problems(normalized(prose), referents_of(_reported(directory)))


def request_about(directory: Path) -> Request:
    """Return what a researcher of a study with a report is asked.

    :raises ConfigError: there is none.
    """
    state = _reported(directory)
    return interpretation_request(state, referents_of(state))


def _reported(directory: Path) -> StudyState:
    if not (directory / LEDGER).exists():
        raise ConfigError(f"There is no study in {directory}.")
    state = fold(read_ledger(directory / LEDGER))
    if state.reported is None:
        raise ConfigError(
            f"The study in {directory} has no report yet: ajet research run {directory}"
        )
    return state


def accepted_prose(answer: str, referents: Referents) -> str:
    """Return the prose of an answer.

    :raises RefusedError: it may not be printed.
    :raises DeclinedError: the researcher has nothing to say.
    """
    try:
        prose = read_answer(answer, "prose")
    except ValueError as error:
        raise RefusedError(str(error)) from None
    if not isinstance(prose, str):
        raise RefusedError("'prose' is not a text")
    prose = normalized(prose)
    if problems := interpretation_problems(prose, referents):
        raise RefusedError(*problems)
    return prose


def interpretation_request(state: StudyState, referents: Referents) -> Request:
    """Return what a researcher is asked."""
    study, verdicts = state.registered, final_verdicts(state)
    assert state.decided is not None
    comparisons: list[dict[str, Any]] = []
    for one in study.compare:
        finding = state.verdicts.get(one.id)
        comparisons.append(
            {
                "id": one.id,
                "arm": arm_name(one.arm),
                "against": arm_name(one.against),
                "expected": one.expect,
                "verdict": verdicts[one.id],
                "reason": finding.reason if finding else "no look was taken",
            }
        )
    causes = {one.outcome.failed for one in state.trials.values() if one.outcome} - {""}
    return {
        "task": "interpret",
        "instructions": _INSTRUCTIONS,
        "question": study.topic.question,
        "conclusion": study.decide[state.decided.branch].conclude,
        "comparisons": comparisons,
        "numbers": {name: link.content for name, link in referents.numbers.items()},
        "causes_of_failures": [cause[:200] for cause in sorted(causes)[:10]],
        "exhausted": state.exhausted.resource if state.exhausted else None,
    }
