"""The state of a study, folded from its ledger. Pure: the same rows give the same state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ajet_core.errors import DamagedRecordError
from ajet_research.arenas.interface import TrialBlueprint
from ajet_research.events import (
    AttemptFailed,
    ClockJumped,
    Decided,
    Exhausted,
    Finished,
    Interpreted,
    KnownMetric,
    LeaderStarted,
    Looked,
    LookFinding,
    Lost,
    Registered,
    Reported,
    ResearcherAnswered,
    ResearcherAsked,
    Reserved,
)
from ajet_research.ledger import LedgerRow
from ajet_research.spending import ResearcherSpending
from ajet_research.study import Study

_AFTER_THE_REPORT = (ResearcherAsked, ResearcherAnswered, Interpreted)


@dataclass(slots=True)
class TrialState:
    """A trial that the study may need.

    :param attempts: how many were reserved.
    :param outcome: what it measured; None until it has finished.
    """

    blueprint: TrialBlueprint
    arm: str
    status: Literal["planned", "reserved", "finished", "lost"] = "planned"
    attempts: int = 0
    outcome: Finished | None = None


@dataclass(slots=True)
class StudyState:
    """All that is known about a study.

    :param trials: in the order in which they start.
    :param findings: of each look that was taken.
    :param settled: seconds that ended attempts took.
    :param reserved: seconds set aside for attempts that have not ended.
    :param wall: seconds in which leaders of the past were at work, and the present one until its
        last row.
    :param interpretations: what researchers wrote about the report. After each, the report has to
        be compiled again.
    """

    study: Study | None = None
    digest: str = ""
    metrics: dict[str, KnownMetric] = field(default_factory=dict)
    trials: dict[str, TrialState] = field(default_factory=dict)
    findings: list[dict[str, LookFinding]] = field(default_factory=list)
    exhausted: Exhausted | None = None
    decided: Decided | None = None
    reported: Reported | None = None
    settled: float = 0.0
    reserved: float = 0.0
    wall: float = 0.0
    spending: ResearcherSpending = field(default_factory=ResearcherSpending)
    interpretations: list[Interpreted] = field(default_factory=list)
    _session: float = 0.0

    @property
    def registered(self) -> Study:
        """The study.

        :raises DamagedRecordError: the ledger has none.
        """
        if self.study is None:
            raise DamagedRecordError("The ledger does not begin with a registered study.")
        return self.study

    @property
    def verdicts(self) -> dict[str, LookFinding]:
        """The last finding of each comparison."""
        latest: dict[str, LookFinding] = {}
        for findings in self.findings:
            latest.update(findings)
        return latest

    def apply(self, row: LedgerRow) -> None:
        """Take one more row.

        :raises DamagedRecordError: it cannot follow the rows before it.
        """
        event = row.event
        if isinstance(event, LeaderStarted):
            self._session = 0.0
        self.wall += max(0.0, row.elapsed - self._session)
        self._session = row.elapsed
        if (self.study is None) != isinstance(event, Registered):
            raise _misplaced(row)
        if self.reported is not None and not isinstance(event, _AFTER_THE_REPORT):
            raise _misplaced(row)
        match event:
            case Registered():
                self._register(row, event)
            case Reserved():
                trial = self._trial(row, event.trial, "planned")
                if event.attempt != trial.attempts + 1 or self.decided is not None:
                    raise _misplaced(row)
                trial.status, trial.attempts = "reserved", event.attempt
                self.reserved += event.seconds
            case AttemptFailed():
                trial = self._settle(row, event)
                trial.status = "planned"
            case Finished():
                trial = self._settle(row, event)
                if event.metrics.keys() != (set() if event.failed else self.metrics.keys()):
                    raise _misplaced(row)
                trial.status, trial.outcome = "finished", event
            case Lost():
                self._trial(row, event.trial, "planned").status = "lost"
            case _:
                self._conclude(row)

    def _conclude(self, row: LedgerRow) -> None:
        """Take a row that is not about a trial."""
        event = row.event
        match event:
            case Looked(look=look) if look == len(self.findings) and self.decided is None:
                if look >= len(self.registered.inference.looks):
                    raise _misplaced(row)
                self.findings.append(event.findings)
            case Decided() if self.decided is None:
                self.decided = event
            case Reported() if self.decided is not None:
                self.reported = event
            case Exhausted() if self.exhausted is None:
                self.exhausted = event
            case ResearcherAsked() | ResearcherAnswered():
                try:
                    self.spending.apply(event)
                except ValueError:
                    raise _misplaced(row) from None
            case Interpreted() if self.reported is not None:
                self.interpretations.append(event)
                self.reported = None
            case LeaderStarted() | ClockJumped():
                pass
            case _:
                raise _misplaced(row)

    def _register(self, row: LedgerRow, event: Registered) -> None:
        try:
            self.study = Study.model_validate(event.study)
        except ValueError:
            raise _misplaced(row) from None
        if self.study.digest() != event.digest:
            raise _misplaced(row)
        used = {self.study.outcome.metric, *(one.metric for one in self.study.outcome.guardrails)}
        if event.arms.keys() != {one.id for one in event.blueprints} or used - event.metrics.keys():
            raise _misplaced(row)
        self.digest, self.metrics = event.digest, event.metrics
        self.trials = {one.id: TrialState(one, event.arms[one.id]) for one in event.blueprints}

    def _settle(self, row: LedgerRow, event: AttemptFailed | Finished) -> TrialState:
        trial = self._trial(row, event.trial, "reserved")
        if event.attempt != trial.attempts:
            raise _misplaced(row)
        self.reserved -= trial.blueprint.seconds
        self.settled += event.seconds
        return trial

    def _trial(self, row: LedgerRow, id_: str, status: str) -> TrialState:
        trial = self.trials.get(id_)
        if trial is None or trial.status != status:
            raise _misplaced(row)
        return trial


def _misplaced(row: LedgerRow) -> DamagedRecordError:
    return DamagedRecordError(
        f"Row {row.seq} of the ledger ({row.event.kind}) cannot follow the rows before it."
    )


def fold(rows: Iterable[LedgerRow]) -> StudyState:
    """Return the state that a ledger describes."""
    state = StudyState()
    for row in rows:
        state.apply(row)
    return state
