"""The rows of a study's ledger: a closed set of events, each decoded strictly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from ajet_research.arenas.interface import TrialBlueprint
from ajet_research.inference import Verdict
from ajet_research.parts import Scalar
from ajet_research.study import Answer


class LedgerEvent(BaseModel):
    """Base of all events."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class KnownMetric(LedgerEvent):
    """Direction and worst value of a metric, as its evaluator registers them."""

    direction: Literal["max", "min"]
    worst: float | None


class EarlierStudy(LedgerEvent):
    """A study that was in the directory beside this one when this one was registered.

    :param name: of its directory.
    :param digest: of its study; "" if its ledger cannot be read.
    :param verdicts: by comparison; those of a study without a decision are hidden.
    """

    name: str
    question: str
    digest: str
    phase: str
    verdicts: dict[str, Verdict]


class Registered(LedgerEvent):
    """A study, before any of its results.

    :param study: the content of the study file.
    :param digest: of that content.
    :param blueprints: all trials that the study may need, in the order in which they start.
    :param arms: by trial, its arm.
    :param versions: of agentjet, Python and numpy.
    :param directory: where the path of the user's code starts; "" without code.
    :param files: by path, the code of arms.
    :param earlier: all studies beside it: asking until an answer pleases leaves a trace.
    """

    kind: Literal["registered"] = "registered"
    study: dict[str, object]
    digest: str
    blueprints: list[TrialBlueprint]
    arms: dict[str, str]
    metrics: dict[str, KnownMetric]
    versions: dict[str, str]
    warnings: list[str]
    directory: str
    files: dict[str, str] = Field({}, exclude_if=lambda value: not value)
    earlier: list[EarlierStudy] = Field([], exclude_if=lambda value: not value)


class Proposed(LedgerEvent):
    """A candidate of a search, before its trials.

    :param values: by parameter.
    :param by: what proposed it, with its version.
    :param refused: why it is not tried; "" if it is.
    :param blueprints: of its trials in the first rung.
    """

    kind: Literal["proposed"] = "proposed"
    candidate: Annotated[int, Field(ge=1)]
    values: dict[str, Scalar]
    by: str
    refused: str
    blueprints: list[TrialBlueprint]


class Advanced(LedgerEvent):
    """The best candidates of a search enter its next rung, or are confirmed.

    :param rung: that begins, counted from 0. The one after the last is the confirmation.
    :param candidates: the best first.
    :param blueprints: of the trials of the rung; of all that are compared, in the confirmation.
    :param arms: by trial, its arm.
    """

    kind: Literal["advanced"] = "advanced"
    rung: Annotated[int, Field(ge=1)]
    candidates: list[int]
    blueprints: list[TrialBlueprint]
    arms: dict[str, str]


class LeaderStarted(LedgerEvent):
    """A leader took the study's directory."""

    kind: Literal["leader_started"] = "leader_started"
    host: str
    pid: int


class Reserved(LedgerEvent):
    """The worst case of an attempt is set aside, before the attempt starts.

    :param mebibytes: size of the trial's directory; None if it has no limit.
    """

    kind: Literal["reserved"] = "reserved"
    trial: str
    attempt: int
    seconds: float
    mebibytes: float | None = Field(None, exclude_if=lambda value: value is None)

    @property
    def limits(self) -> tuple[float, float | None]:
        """What is set aside, as `TrialBlueprint.limits`."""
        return self.seconds, self.mebibytes


class AttemptFailed(LedgerEvent):
    """An attempt ended without a result, by no fault of its arm.

    :param mebibytes: the largest size of the trial's directory; None if it was not measured.
    """

    kind: Literal["attempt_failed"] = "attempt_failed"
    trial: str
    attempt: int
    cause: str
    seconds: float
    mebibytes: float | None = Field(None, exclude_if=lambda value: value is None)


class Finished(LedgerEvent):
    """A trial has its outcome.

    :param metrics: empty if it failed.
    :param failed: why its arm failed; "" if it did not.
    :param limit: whether it failed because it reached a limit, which `failed` names.
    :param store: by path in the trial's directory, the SHA-256 of each file of the raw store.
    :param mebibytes: the largest size of that directory; None if it has no limit.
    """

    kind: Literal["finished"] = "finished"
    trial: str
    attempt: int
    metrics: dict[str, float]
    failed: str
    limit: bool
    fingerprint: str
    store: dict[str, str]
    seconds: float
    mebibytes: float | None = Field(None, exclude_if=lambda value: value is None)


class Lost(LedgerEvent):
    """All attempts of a trial failed by no fault of its arm: it has no outcome."""

    kind: Literal["lost"] = "lost"
    trial: str


class Exhausted(LedgerEvent):
    """A part of the budget does not allow another attempt."""

    kind: Literal["exhausted"] = "exhausted"
    resource: str
    used: float
    limit: float


class ClockJumped(LedgerEvent):
    """The wall clock moved against the monotonic one; times around this row are not reliable."""

    kind: Literal["clock_jumped"] = "clock_jumped"
    seconds: float


class Hindered(LedgerEvent):
    """A leader stopped because of the machine. Its trials have lost no attempt by that.

    :param said: what it printed, which names the place.
    """

    kind: Literal["hindered"] = "hindered"
    cause: Literal["the disk was full"]
    said: str


class Guarded(LedgerEvent):
    """What a look says about a guardrail; None stands for an end that is out of reach."""

    gain: float
    low: float | None
    high: float | None
    holds: bool


class LookFinding(LedgerEvent):
    """What a look says about a comparison.

    :param seeds: the pairs that were used.
    :param missing: the pairs that have no outcome.
    :param reason: why the verdict is not the one of the interval alone; "" if it is.
    """

    verdict: Verdict
    reason: str
    seeds: list[int]
    missing: list[int]
    arm_mean: float | None
    against_mean: float | None
    gain: float | None
    low: float | None
    high: float | None
    p: float | None
    alpha: float
    wins: float | None
    guardrails: dict[str, Guarded]


class Looked(LedgerEvent):
    """A registered look was taken."""

    kind: Literal["looked"] = "looked"
    look: int
    findings: dict[str, LookFinding]


class Decided(LedgerEvent):
    """A leaf of the decision tree was reached."""

    kind: Literal["decided"] = "decided"
    branch: int
    verdicts: dict[str, Verdict]


class Reported(LedgerEvent):
    """The report was compiled; by file, its SHA-256."""

    kind: Literal["reported"] = "reported"
    files: dict[str, str]


class Steering(LedgerEvent):
    """What a person does to a study that runs.

    :param request: its id: a request counts once, however often it is read.
    :param by: who; "" if a registered default applied.
    :param at: when the person requested it, by the clock of the person's machine.
    :param why: in the person's words.
    :param looks: that had been taken: with none, no outcome was open yet.
    """

    request: Annotated[str, Field(max_length=64)]
    by: Annotated[str, Field(max_length=100)]
    at: AwareDatetime
    why: Annotated[str, Field(max_length=500)]
    looks: Annotated[int, Field(ge=0)] = 0


class Paused(Steering):
    """Nothing starts until the study is resumed. Trials that run continue to their end."""

    kind: Literal["paused"] = "paused"


class Resumed(Steering):
    """The pause is over."""

    kind: Literal["resumed"] = "resumed"


class Stopped(Steering):
    """Nothing starts again: comparisons that are open stay undecided."""

    kind: Literal["stopped"] = "stopped"


class Amended(Steering):
    """Limits of the budget grow; by key of the budget, the new limit."""

    kind: Literal["amended"] = "amended"
    budget: dict[str, float]


class Asked(LedgerEvent):
    """A registered question is open; its default applies at the deadline."""

    kind: Literal["asked"] = "asked"
    question: str
    deadline: AwareDatetime


class Answered(Steering):
    """The open question has its answer.

    :param default: whether it is the registered one, because the deadline has passed.
    """

    kind: Literal["answered"] = "answered"
    question: str
    answer: Answer
    default: bool = False


AnyRequest = Annotated[Paused | Resumed | Stopped | Amended | Answered, Field(discriminator="kind")]
REQUESTS: TypeAdapter[AnyRequest] = TypeAdapter(AnyRequest)


class ResearcherAsked(LedgerEvent):
    """The budget of a request to a researcher in the worst case, reserved before it is sent.

    :param number: of the request, from 1.
    :param purpose: what the researcher is to write.
    :param request: SHA-256 of its text.
    :param tokens: of prompt and answer, at most.
    :param money: their price, at most.
    """

    kind: Literal["researcher_asked"] = "researcher_asked"
    number: int
    researcher: str
    purpose: Literal["proposal", "interpretation"]
    request: str
    tokens: Annotated[int, Field(ge=0)]
    money: Annotated[float, Field(ge=0)]


class ResearcherAnswered(LedgerEvent):
    """A request has ended.

    :param tokens: that it took; those that were set aside if that is not known.
    :param answer: SHA-256 of the answer; "" if there is none.
    :param problem: why the answer was refused, or is missing; "" if it was accepted.
    """

    kind: Literal["researcher_answered"] = "researcher_answered"
    number: int
    tokens: Annotated[int, Field(ge=0)]
    money: Annotated[float, Field(ge=0)]
    answer: str
    problem: str


class Interpreted(LedgerEvent):
    """A researcher's prose about a reported study.

    :param prose: with references in place of numbers and claims; "" if none was accepted.
    :param problem: why none was accepted; "" if it was.
    """

    kind: Literal["interpreted"] = "interpreted"
    researcher: str
    prose: str
    problem: str


AnyEvent = Annotated[
    Registered
    | Proposed
    | Advanced
    | LeaderStarted
    | Reserved
    | AttemptFailed
    | Finished
    | Lost
    | Exhausted
    | ClockJumped
    | Hindered
    | Paused
    | Resumed
    | Stopped
    | Amended
    | Asked
    | Answered
    | Looked
    | Decided
    | Reported
    | ResearcherAsked
    | ResearcherAnswered
    | Interpreted,
    Field(discriminator="kind"),
]
EVENTS: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
