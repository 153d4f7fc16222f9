"""Requests to a researcher, until an answer of it is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ajet_research.researchers.accounts import RequestAccount
from ajet_research.researchers.interface import (
    DeclinedError,
    Request,
    Researcher,
    ResearcherAnswer,
    ResearcherFailedError,
    as_text,
    printable,
)

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
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

    :param tries: answers that may be refused.
    :param wait_seconds: how long an endpoint that is away is waited for, in all.
    """

    researcher: Researcher
    account: RequestAccount
    tries: int
    wait_seconds: float
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
                self.account.clock.pause(pause)
                waited += pause
                failures += 1
                continue
            tried += 1
            try:
                result = check(answer.text)
            except RefusedError as refused:
                problems = [printable(problem) for problem in refused.problems]
                self.account.settle(number, answer, "; ".join(problems))
                previous = (refused.read_as or answer.text)[:_MOST_PREVIOUS]
                asked = {**request, "problems": problems, "previous": previous}
                for problem in problems:
                    self._note(problem)
            except DeclinedError as declined:
                self.account.settle(number, answer, f"declined: {declined}")
                raise ResearcherFailedError(
                    f"The researcher {self.researcher.name} declined: {declined}"
                ) from None
            else:
                self.account.settle(number, answer, "")
                return result
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ResearcherFailedError(
            f"None of {tried} answers of the researcher {self.researcher.name} was accepted. The "
            f"last one has these problems:\n{listed}"
        )

    def _asked(self, request: Request) -> tuple[ResearcherAnswer, int]:
        tokens, money = self.researcher.worst_case(request)
        number = self.account.set_aside(as_text(request), tokens, money)
        try:
            answer = self.researcher.answer_within(request, self.account)
        except ResearcherFailedError as error:
            spent = ResearcherAnswer("") if error.unpaid else ResearcherAnswer("", tokens, money)
            self.account.settle(number, spent, error.message)
            raise
        # JSON may have half a surrogate pair, which no file can hold.
        text = answer.text.encode("utf-8", errors="replace").decode()
        return replace(answer, text=text), number

    def _note(self, problem: str) -> None:
        if self.on_problem is not None:
            self.on_problem(problem)
