"""The state of a study, folded from its ledger. Pure: the same rows give the same state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from ajet_core.errors import DamagedRecordError
from ajet_research.arenas.interface import TrialBlueprint
from ajet_research.events import (
    Advanced,
    Amended,
    Answered,
    Asked,
    AttemptFailed,
    ClockJumped,
    Decided,
    Exhausted,
    Finished,
    Hindered,
    Interpreted,
    KnownMetric,
    LeaderStarted,
    Looked,
    LookFinding,
    Lost,
    Paused,
    Proposed,
    Registered,
    Reported,
    ResearcherAnswered,
    ResearcherAsked,
    Reserved,
    Resumed,
    Steering,
    Stopped,
)
from ajet_research.ledger import LedgerRow
from ajet_research.search.space import candidate_arm
from ajet_research.spending import ResearcherSpending
from ajet_research.study import FIXED_LIMITS, Budget, Study, StudyQuestion

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
        last row. Pauses and open questions do not count.
    :param limits: the budget with its amendments.
    :param steered: what people did, and the answers of questions, in order.
    :param paused: the pause that lasts.
    :param asked: the question that is open.
    :param ended: why nothing more starts, if a person ended the study.
    :param candidates: of a search, in the order in which they were proposed.
    :param entered: the numbers of those in the present rung. In the confirmation, of the chosen
        ones, the best first.
    :param rung: of a search, counted from 0. The one after the last is the confirmation.
    :param code: tree hash of the user's code; "" without.
    :param files: by path, the code of arms.
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
    limits: Budget | None = None
    steered: list[Steering] = field(default_factory=list)
    paused: Paused | None = None
    asked: Asked | None = None
    ended: Stopped | Answered | None = None
    spending: ResearcherSpending = field(default_factory=ResearcherSpending)
    interpretations: list[Interpreted] = field(default_factory=list)
    candidates: list[Proposed] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    rung: int = 0
    code: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
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
    def budget(self) -> Budget:
        """The limits that hold now.

        :raises DamagedRecordError: the ledger has no study.
        """
        return self.limits or self.registered.budget

    @property
    def searching(self) -> bool:
        """Whether a search has not chosen yet."""
        search = self.registered.search
        return search is not None and self.rung < len(search.rungs)

    @property
    def over(self) -> bool:
        """Whether nothing more starts."""
        return self.exhausted is not None or self.ended is not None

    @property
    def held(self) -> bool:
        """Whether the study waits for a person."""
        return self.paused is not None or self.asked is not None

    @property
    def due(self) -> StudyQuestion | None:
        """The question before the next look that has no answer yet."""
        answered = {one.question for one in self.steered if isinstance(one, Answered)}
        for question in self.registered.ask:
            if question.before_look == len(self.findings) + 1 and question.id not in answered:
                return question
        return None

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
        if not self.held:
            self.wall += max(0.0, row.elapsed - self._session)
        self._session = row.elapsed
        begun = (self.study is None) == isinstance(event, Registered)
        if not begun or (self.reported is not None and not isinstance(event, _AFTER_THE_REPORT)):
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
            case Steering():
                self._steer(row, event)
            case _:
                self._conclude(row)

    def _search(self, row: LedgerRow, event: Proposed | Advanced) -> None:
        if isinstance(event, Proposed):
            if self.rung or event.candidate != len(self.candidates) + 1:
                raise _misplaced(row)
            self.candidates.append(event)
            if not event.refused:
                self.entered.append(event.candidate)
            arms = dict.fromkeys(
                (one.id for one in event.blueprints), candidate_arm(event.candidate, 0)
            )
        else:
            if event.rung != self.rung + 1 or not set(event.candidates) <= set(self.entered):
                raise _misplaced(row)
            self.rung, self.entered, arms = event.rung, event.candidates, event.arms
        for one in event.blueprints:
            before = self.trials.pop(one.id, None)
            if one.id not in arms or (before is not None and before.status != "planned"):
                raise _misplaced(row)
            # Those that are known already start in the order of this row.
            self.trials[one.id] = TrialState(one, arms[one.id])

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
            case Asked() if self.due and not self.held and event.question == self.due.id:
                self.asked = event
            case ResearcherAsked() | ResearcherAnswered():
                try:
                    self.spending.apply(event)
                except ValueError:
                    raise _misplaced(row) from None
            case Interpreted() if self.reported is not None:
                self.interpretations.append(event)
                self.reported = None
            case Proposed() | Advanced() if self.searching and self.decided is None:
                self._search(row, event)
            case LeaderStarted() | ClockJumped() | Hindered():
                pass
            case _:
                raise _misplaced(row)

    def refusal(self, event: Steering) -> str:
        """Return why the study cannot be steered like this now; "" if it can."""
        reason = ""
        match event:
            case _ if self.decided is not None:
                reason = "The study has its decision, which nothing changes afterwards."
            case Answered():
                reason = self._wrong_answer(event)
            case _ if self.ended is not None:
                by = f" by {self.ended.by}" if self.ended.by else ""
                reason = f"The study was ended at {shown_time(self.ended.at)}{by}."
            case Paused() if self.paused is not None:
                reason = f"The study is paused since {shown_time(self.paused.at)}."
            case Resumed() if self.paused is None:
                reason = "The study is not paused."
            case Stopped() if not event.why:
                reason = "A study is stopped with a reason, which its report has."
            case Amended():
                reason = self._wrong_amendment(event)
            case _:
                pass
        return reason

    def _wrong_amendment(self, event: Amended) -> str:
        limits = self.budget.model_dump()
        numbers = {name for name, limit in limits.items() if isinstance(limit, int | float)}
        growing = sorted(numbers - FIXED_LIMITS)
        for name, limit in event.budget.items():
            if name not in growing:
                known = ", ".join(f"budget.{one}" for one in growing)
                return f"{name!r} cannot be amended: only these limits can grow: {known}."
            if not limit > limits[name]:
                return f"budget.{name} is {limits[name]:g}, and an amendment can only raise it."
        try:
            Budget.model_validate(limits | event.budget)
        except ValueError:
            given = ", ".join(f"budget.{name} = {value:g}" for name, value in event.budget.items())
            return f"The budget cannot have {given}."
        return "" if event.budget and event.why else "An amendment has a new limit and its reason."

    def _wrong_answer(self, event: Answered) -> str:
        if self.asked is None or event.question != self.asked.question:
            open_one = f"the open one is {self.asked.question!r}" if self.asked else "none is open"
            return f"There is no open question {event.question!r}: {open_one}."
        (question,) = (one for one in self.registered.ask if one.id == event.question)
        deadline = shown_time(self.asked.deadline)
        if event.default:
            right = event.at >= self.asked.deadline and event.answer == question.default
            return "" if right else f"The default of {event.question!r} applies at {deadline}."
        if event.at < self.asked.deadline:
            return ""
        return f"The deadline of {event.question!r} was {deadline}: its default applies."

    def _steer(self, row: LedgerRow, event: Steering) -> None:
        own = not isinstance(event, Answered) or not event.default
        known = {one.request for one in self.steered}
        if self.refusal(event) or event.looks != len(self.findings):
            raise _misplaced(row)
        if own != bool(event.by) or own != bool(event.request) or (own and event.request in known):
            raise _misplaced(row)
        self.steered.append(event)
        match event:
            case Paused():
                self.paused = event
            case Resumed():
                self.paused = None
            case Stopped():
                self.paused, self.asked, self.ended = None, None, event
            case Amended():
                limits = self.budget.model_dump() | event.budget
                self.limits = Budget.model_validate(limits)
                if self.exhausted is not None and self.exhausted.resource in event.budget:
                    self.exhausted = None
            case Answered():
                self.asked = None
                self.ended = event if event.answer == "no" else None

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
        self.code = event.blueprints[0].code if event.blueprints else ""
        self.files = event.files
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


def shown_time(moment: datetime) -> str:
    """Return a time in UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


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
