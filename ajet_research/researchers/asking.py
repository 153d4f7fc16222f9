"""Requests to a researcher: each is set aside in a ledger, sent, and settled, in this order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from ajet_core.files import write_whole
from ajet_research.events import AnyEvent, ResearcherAnswered, ResearcherAsked
from ajet_research.leader import MachineClock, StudyClock
from ajet_research.ledger import StudyLedger
from ajet_research.researchers.interface import (
    DeclinedError,
    Request,
    Researcher,
    ResearcherAnswer,
    ResearcherFailedError,
    as_text,
    printable,
)
from ajet_research.spending import ResearcherLimits, ResearcherSpending

TRANSCRIPTS = "researchers"
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_MOST_PROBLEM = 2000
_MOST_PREVIOUS = 20_000

T = TypeVar("T")


class RefusedError(Exception):
    """An answer is refused.

    :param problems: why, one a line.
    :param read_as: what the problems are about, if it is not the answer itself.
    """

    def __init__(self, *problems: str, read_as: str = "") -> None:
        super().__init__(*problems)
        self.problems = list(problems)
        self.read_as = read_as


@dataclass(slots=True)
class ResearcherDialogue:
    """What is asked of one researcher, for one purpose.

    :param ledger: of the study or of the proposal, held by this process.
    :param spending: that of the ledger's rows.
    :param directory: of the ledger. Requests and answers are kept below it.
    :param tries: answers that may be refused.
    :param wait_seconds: how long an endpoint that is away is waited for, in all.
    """

    researcher: Researcher
    purpose: Literal["proposal", "interpretation"]
    ledger: StudyLedger
    spending: ResearcherSpending
    directory: Path
    limits: ResearcherLimits
    tries: int
    wait_seconds: float
    clock: StudyClock = field(default_factory=MachineClock)
    on_problem: Callable[[str], object] | None = None

    def accepted(self, request: Request, check: Callable[[str], T]) -> T:
        """Ask until an answer is accepted.

        :param check: returns what an answer means, or raises `RefusedError`.
        :raises ResearcherFailedError: there is no such answer. The message has the last problems.
        """
        asked = dict(request)
        waited, failures = 0.0, 0
        problems: list[str] = []
        tried = 0
        while tried < self.tries:
            try:
                answer, number = self._asked(asked)
            except ResearcherFailedError as error:
                self._note(error.message)
                pause = min(_FIRST_WAIT * 2 ** min(failures, 10), _LONGEST_WAIT)
                if not error.temporary or waited + pause > self.wait_seconds:
                    raise
                self.clock.pause(pause)
                waited += pause
                failures += 1
                continue
            tried += 1
            try:
                result = check(answer.text)
            except RefusedError as refused:
                problems = [printable(problem) for problem in refused.problems]
                self._settle(number, answer, "; ".join(problems))
                previous = (refused.read_as or answer.text)[:_MOST_PREVIOUS]
                asked = {**request, "problems": problems, "previous": previous}
                for problem in problems:
                    self._note(problem)
            except DeclinedError as declined:
                self._settle(number, answer, f"declined: {declined}")
                raise ResearcherFailedError(
                    f"The researcher {self.researcher.name} declined: {declined}"
                ) from None
            else:
                self._settle(number, answer, "")
                return result
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ResearcherFailedError(
            f"None of {tried} answers of the researcher {self.researcher.name} was accepted. The "
            f"last one has these problems:\n{listed}"
        )

    def _asked(self, request: Request) -> tuple[ResearcherAnswer, int]:
        tokens, money = self.researcher.worst_case(request)
        if excess := self.spending.excess(tokens, money, self.limits):
            raise ResearcherFailedError(
                f"The budget of researchers does not allow another request: {excess}."
            )
        number = self.spending.requests + 1
        text = as_text(request)
        self._keep(f"{number:03}-request.json", text)
        self._append(
            ResearcherAsked(
                number=number,
                researcher=self.researcher.name,
                purpose=self.purpose,
                request=_digest(text),
                tokens=tokens,
                money=money,
            )
        )
        try:
            answer = self.researcher.answer(request)
        except ResearcherFailedError as error:
            spent = ResearcherAnswer("") if error.unpaid else ResearcherAnswer("", tokens, money)
            self._settle(number, spent, error.message)
            raise
        # JSON may have half a surrogate pair, which no file can hold.
        text = answer.text.encode("utf-8", errors="replace").decode()
        return replace(answer, text=text), number

    def _settle(self, number: int, answer: ResearcherAnswer, problem: str) -> None:
        if answer.text:
            self._keep(f"{number:03}-answer.txt", answer.text)
        self._append(
            ResearcherAnswered(
                number=number,
                tokens=answer.tokens,
                money=answer.money,
                answer=_digest(answer.text) if answer.text else "",
                problem=problem.encode("utf-8", errors="replace").decode()[:_MOST_PROBLEM],
            )
        )

    def _append(self, event: AnyEvent) -> None:
        now = self.clock.now().isoformat(timespec="seconds")
        self.ledger.append(event, time=now, elapsed=0.0)
        if isinstance(event, ResearcherAsked | ResearcherAnswered):
            self.spending.apply(event)

    def _keep(self, name: str, text: str) -> None:
        folder = self.directory / TRANSCRIPTS
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, text.encode(), mode=0o644)

    def _note(self, problem: str) -> None:
        if self.on_problem is not None:
            self.on_problem(problem)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
