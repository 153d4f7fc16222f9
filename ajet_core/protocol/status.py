"""The status of a server and its run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ajet_core.protocol.base import AS_JSON_INTEGER, Message
from ajet_core.protocol.evaluations import Evaluation
from ajet_core.protocol.messages import ErrorDetail
from ajet_core.protocol.run import MixtureConfig, RunConfig
from ajet_core.protocol.spending import Spending


class ServerState(StrEnum):
    """The state of a server.

    OFFLINE -> BOOTING -> ROLLING -> ROLLING_POST -> WEIGHT_SYNCING -> ROLLING. In ROLLING,
    clients claim episodes and the server answers model calls. In ROLLING_POST, the trainer computes
    a step. In WEIGHT_SYNCING, the engine loads the new weights. Model calls that arrive in the last
    two states wait. PAUSED is ROLLING without new episodes and batches; open ones can end.
    """

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    PAUSED = "PAUSED"
    ROLLING_POST = "ROLLING_POST"
    WEIGHT_SYNCING = "WEIGHT_SYNCING"


class StepSummary(Message):
    """One finished training step.

    :param metrics: numbers of the batch, training and served weights, see ``docs/metrics.md``.
    :param plan: the layout that was trained.
    :param forks: the reasons why timelines forked and their costs, the most expensive first.
    :param findings: problems of the batch or the training, such as rewards without signal.
    """

    step: int
    policy_version: int
    metrics: dict[str, float]
    plan: str = ""
    forks: list[str] = Field(default_factory=list)
    findings: list[str] = Field(default_factory=list)


Verdict = Literal["pass", "warn", "fail"]


class PreflightCheck(Message):
    """One check of a preflight.

    :param found: the measurement.
    :param way_out: how to solve the problem; "" if the check passed.
    """

    name: Literal["logprobs", "seal", "template", "tools", "memory", "rewards"]
    verdict: Verdict
    found: str
    way_out: str = ""


class PreflightReport(Message):
    """The result of a preflight.

    :param step: the step whose batch was computed.
    :param seconds: the duration.
    """

    step: int
    checks: list[PreflightCheck]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The worst result of all checks."""
        verdicts = {check.verdict for check in self.checks}
        return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "pass"


class BatchProgress(Message):
    """The progress of the batch that is being filled.

    :param ready: tasks (or episodes, depending on `full_by`) that count towards `needed`.
    :param open_episodes: train episodes claimed and not ended.
    :param quarantined: tasks that are not tried again because too many of their episodes failed.
    """

    full_by: Literal["tasks", "episodes", "differing_tasks"]
    needed: int
    ready: int
    open_episodes: int
    quarantined: int


class TagProgress(Message):
    """A mixture's tag in the batch that is being filled.

    Numbers are tasks, or episodes, depending on the batch's `full_by`.

    :param ratio: the tag's ratio in this batch.
    :param slots: the tag's slots in this batch.
    :param ready: the number that is complete.
    :param under_way: the number that was started, including those that are complete.
    :param blocked: no client works on the tag, and other tags have its slots.
    """

    ratio: float
    slots: int
    ready: int
    under_way: int
    blocked: bool


class MixtureStatus(Message):
    """Answer of ``GET`` and ``PUT /v1/mixture``.

    :param config: the mixture of the next batch, and of those after it.
    :param step: the step that will train the batch that is being filled.
    :param tags: that batch; empty while no run is active.
    """

    config: MixtureConfig | None
    step: int
    tags: dict[str, TagProgress] = Field(default_factory=dict)


class RolloutStatus(Message):
    """The current relation of rolling out and training.

    :param training_step: the step that is being trained or published.
    :param staleness_mean: of the last step's tokens, see `RolloutConfig`; None before the first.
    """

    mode: Literal["sync", "async"]
    max_staleness: int
    training_step: int | None = None
    staleness_mean: float | None = None
    staleness_max: float | None = None


class Finding(Message):
    """A problem that blocks the server, or a problem of its episodes or its training.

    :param code: listed in ``docs/faults.md`` (Silence), or a `HealthKind`.
    :param message: the cause, and what to do.
    :param seconds: how long the problem has lasted.
    :param stuck: the run does not continue without intervention.
    :param since_step: for a finding about training, the first step with the problem.
    :param good_step: for a finding about training, the step of the newest checkpoint before the
        problem; 0 is the model that the run started with.
    """

    code: str
    message: str
    seconds: float
    stuck: bool
    since_step: int | None = None
    good_step: int | None = None


class Quarantine(Message):
    """A task that is not tried again until the run is resumed or started again.

    :param client_id: the token whose task it is.
    :param task_id: "" for all tasks of the client, whose episodes could not be trained.
    :param aborts: its episodes that failed; 0 for all tasks.
    :param reason: of the last of them; why they could not be trained.
    """

    client_id: str
    group: str
    task_id: str
    aborts: int
    reason: str


class ServerStatus(Message):
    """Answer of ``GET /v1/status``.

    :param error: the error that ended the run, if it failed.
    :param paused: why the run is PAUSED.
    :param run_dir: the run directory on the server's machine, for holders of a control token.
    :param findings: what blocks the server, and other findings.
    :param quarantined: tasks that are not tried again, with the reasons.
    :param checks: by kind of finding about training, "ok", "found", "off", or why it is unknown.
    :param rollout: None while no run is active.
    :param spending: None before a run is configured, and for clients.
    :param mixture: by tag, None without a mixture.
    :param evaluations: for each task set (at most 64 of a client, those that changed last) the
        scores of its last evaluated step; ``GET /v1/evaluations`` has those of other steps.
    :param counters: totals over the run; ``docs/metrics.md`` lists them.
    """

    state: ServerState
    run_id: str | None
    model: str | None
    policy_version: int
    step: int
    batch: BatchProgress | None
    last_step: StepSummary | None
    counters: dict[str, float]
    uptime_seconds: float
    error: ErrorDetail | None
    paused: str | None = None
    findings: list[Finding] = Field(default_factory=list)
    quarantined: list[Quarantine] = Field(default_factory=list)
    checks: dict[str, str] = Field(default_factory=dict)
    rollout: RolloutStatus | None = None
    mixture: dict[str, TagProgress] | None = None
    evaluations: list[Evaluation] = Field(default_factory=list)
    preflight: PreflightReport | None = None
    spending: Spending | None = None
    run_dir: str | None = None


class RunStatus(Message):
    """Answer of ``PUT /v1/run`` and ``POST /v1/run/start``, ``pause``, ``resume``, ``stop``."""

    run_id: str
    state: ServerState
    config: RunConfig
    export_dir: str | None = Field(
        default=None, description="After a stop: the Hugging Face directory of the trained model."
    )


class StartRequest(Message):
    """Body of ``POST /v1/run/start``.

    :param wait_seconds: how long the server may delay the answer until it is ROLLING.
    """

    wait_seconds: Annotated[float, Field(strict=True, ge=0, le=600)] = 0.0


class PauseRequest(Message):
    """Body of ``POST /v1/run/pause``."""

    reason: Annotated[str, Field(min_length=1, max_length=4096)] = "paused manually"


class ResumeRequest(Message):
    """Body of ``POST /v1/run/resume``.

    :param from_step: go back to the checkpoint of this step first; 0 is the original model.
    :param retrain: train the batches after that step again; otherwise they, and the episodes that
        are rolled out or have ended since, are kept for inspection and not trained.
    """

    from_step: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1), AS_JSON_INTEGER] | None = None
    retrain: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _goes_back(self) -> Self:
        if self.retrain and self.from_step is None:
            raise ValueError("retrain applies to the batches after from_step: set from_step too")
        return self


class Event(Message):
    """One entry of ``GET /v1/events``.

    :param id: increases; a client that reconnects sends the last one as ``Last-Event-ID``.
    :param type: ``state``, ``run``, ``episode``, ``step``, ``refused`` (a batch),
        ``task_quarantined``, ``worker``, ``mixture``, ``evaluation`` (its episodes are over, for
        now), ``finding``, or ``gap`` (entries were lost to a slow reader).
    """

    id: int
    time: float
    type: str
    data: dict[str, Any]
