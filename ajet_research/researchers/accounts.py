"""What requests take: each is set aside in a ledger, sent, and settled, in this order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ajet_core.files import write_whole
from ajet_research.events import ResearcherAnswered, ResearcherAsked
from ajet_research.leader import MachineClock, StudyClock
from ajet_research.ledger import StudyLedger
from ajet_research.researchers.interface import ResearcherAnswer, ResearcherFailedError
from ajet_research.spending import ResearcherLimits, ResearcherSpending

TRANSCRIPTS = "researchers"
_MOST_PROBLEM = 2000


@dataclass(slots=True)
class RequestAccount:
    """The account of one researcher, for one purpose: rows of a ledger, and files beside it.

    :param ledger: of the study or of the proposal, held by this process.
    :param spending: that of the ledger's rows.
    :param directory: of the ledger. Requests and answers are kept below it.
    """

    researcher: str
    purpose: Literal["proposal", "interpretation"]
    ledger: StudyLedger
    spending: ResearcherSpending
    directory: Path
    limits: ResearcherLimits
    clock: StudyClock = field(default_factory=MachineClock)

    def set_aside(self, text: str, tokens: int, money: float) -> int:
        """Set the worst case of a request aside, and return the number of the request.

        :param text: what is asked.
        :raises ResearcherFailedError: the budget does not allow it; nothing was set aside.
        """
        if excess := self.spending.excess(tokens, money, self.limits):
            raise ResearcherFailedError(
                f"The budget of researchers does not allow another request: {excess}."
            )
        number = self.spending.requests + 1
        self._keep(f"{number:03}-request.json", text)
        self._append(
            ResearcherAsked(
                number=number,
                researcher=self.researcher,
                purpose=self.purpose,
                request=_digest(text),
                tokens=tokens,
                money=money,
            )
        )
        return number

    def settle(self, number: int, answer: ResearcherAnswer, problem: str) -> None:
        """Write what a request took.

        :param problem: why its answer was refused, or is missing; "" if neither is so.
        """
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

    def _append(self, event: ResearcherAsked | ResearcherAnswered) -> None:
        now = self.clock.now().isoformat(timespec="seconds")
        self.ledger.append(event, time=now, elapsed=0.0)
        self.spending.apply(event)

    def _keep(self, name: str, text: str) -> None:
        folder = self.directory / TRANSCRIPTS
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, text.encode(), mode=0o644)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
