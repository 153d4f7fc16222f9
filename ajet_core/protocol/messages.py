"""Requests and answers of the swarm routes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from ajet_core.protocol.base import Message, MetadataKey, MetadataText, Name
from ajet_core.protocol.run import RunConfig

Number = Annotated[float, Field(strict=True)]
"""A JSON number; a string or boolean that looks like one is refused."""


ClaimId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{32,128}$")]


class ServerState(StrEnum):
    """Where a server is.

    OFFLINE -> BOOTING -> ROLLING -> ROLLING_POST -> WEIGHT_SYNCING -> ROLLING. In ROLLING episodes
    are claimed and model calls answered; in ROLLING_POST the trainer steps; in WEIGHT_SYNCING the
    engine takes the new weights. Model calls that arrive in the last two wait.
    """

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    ROLLING_POST = "ROLLING_POST"
    WEIGHT_SYNCING = "WEIGHT_SYNCING"


class ErrorDetail(Message):
    """See `ajet_core.errors`: `type` names the class."""

    type: str
    message: str
    param: str | None = None
    retry_after: float | None = None


class ErrorBody(Message):
    """The body of every answer whose status is 400 or above on the swarm routes."""

    error: ErrorDetail


class ProtocolInfo(Message):
    """Answer of ``GET /v1/protocol``: what this server is."""

    versions: list[str]
    server_version: str


class ClaimRequest(Message):
    """Body of ``POST /v1/episodes``.

    :param task_id: the task to roll out; episodes of one group share a baseline.
    :param group: defaults to the task id.
    :param kind: ``eval`` episodes are never trained on.
    :param lease_seconds: without a model call or heartbeat for so long the episode is aborted.
    :param wait_seconds: how long the server may hold the request until an episode can be claimed.
    :param claim_id: at least 128 random bits as text. The same claim again, after an answer that was lost, gets the
        same episode with the same key, also from a server that was started again in between. A secret: the
        episode's key is made of it.
    """

    task_id: Name
    group: Name | None = None
    kind: Literal["train", "eval"] = "train"
    tag: Annotated[str, Field(max_length=256)] = ""
    lease_seconds: Annotated[float, Field(ge=1, le=86400)] = 600.0
    wait_seconds: Annotated[float, Field(ge=0, le=300)] = 30.0
    claim_id: ClaimId | None = Field(default=None, repr=False)


class EpisodeGrant(Message):
    """Answer of ``POST /v1/episodes``: an episode and the endpoint that is its alone."""

    episode_id: str
    task_id: str
    group: str
    kind: Literal["train", "eval"]
    base_url: str
    api_key: str = Field(repr=False)
    model: str
    policy_version: int
    lease_seconds: float


class EndRequest(Message):
    """Body of ``POST /v1/episodes/{id}/end``.

    :param reward: the episode's reward.
    :param components: named parts of the reward, for the logs.
    :param call_rewards: rewards of single calls, on top of `reward`, by the id of their chat completion.
    :param agent_rewards: rewards by agent name; for the calls of these agents they take the place of `reward`.
    """

    reward: Number
    components: dict[MetadataKey, Number] = Field(default_factory=dict, max_length=64)
    call_rewards: dict[MetadataKey, Number] = Field(default_factory=dict, max_length=65536)
    agent_rewards: dict[MetadataKey, Number] = Field(default_factory=dict, max_length=256)
    metadata: dict[MetadataKey, MetadataText] = Field(default_factory=dict, max_length=64)


class AbortRequest(Message):
    """Body of ``POST /v1/episodes/{id}/abort``."""

    reason: Annotated[str, Field(min_length=1, max_length=4096)]


class EpisodeStatus(Message):
    """Answer of end, abort, heartbeat and ``GET /v1/episodes/{id}``.

    `reward` and `reason` are of the outcome that stands, which is the first one reported.
    """

    episode_id: str
    task_id: str
    group: str
    kind: Literal["train", "eval"]
    tag: str
    state: Literal["open", "ended", "aborted"]
    reward: float | None
    reason: str
    calls: int
    policy_version: int
    lease_expires_in: float | None = Field(
        description="Seconds until the lease runs out; null when the episode is closed."
    )


class StepSummary(Message):
    """One finished training step.

    `metrics` has the names of `ajet_core.interfaces.StepReport` and, of the batch:

    - ``reward_mean``, ``episodes``, ``calls``, ``calls_aborted`` (their client went away: recorded, not
      trained), ``timelines``;
    - seconds: ``rollout_seconds`` (wall time the batch took to fill), ``forward_seconds`` (of the engine, for
      this batch), ``merge_seconds``, ``update_seconds``, ``sync_seconds``, ``plan_seconds`` (what the planner
      expected of the update, if the trainer says what its passes cost);
    - tokens: ``tokens_raw`` (each call a sample of its own), ``tokens_merged`` (each distinct context of an
      episode once), ``tokens_planned`` (what the trainer computes), ``tokens_trained``;
    - ``forks``, ``tokens_paid_again`` (computed again because agents rewrote their history);
    - ``calls_drifted``, ``tokens_drifted`` (writing the answer again would have given other tokens),
      ``calls_echoed_otherwise`` (the agent gave our answer back in another form): the sampled tokens were
      kept;
    - ``tokens_altered`` (by a relaxed merge policy), ``calls_dropped``, ``tokens_dropped``, ``calls_alone`` (by
      the limits of `TimelineConfig`).

    :param plan: the layout that was trained.
    :param forks: in words, why timelines forked and what it costs, the dearest first.
    """

    step: int
    policy_version: int
    metrics: dict[str, float]
    plan: str = ""
    forks: list[str] = Field(default_factory=list)


class BatchProgress(Message):
    """How full the present batch is.

    :param ready: tasks (or episodes, as `full_by` says) that count towards `needed`.
    :param open_episodes: train episodes claimed and not ended.
    """

    full_by: Literal["tasks", "episodes", "differing_tasks"]
    needed: int
    ready: int
    open_episodes: int
    set_aside: int


class ServerStatus(Message):
    """Answer of ``GET /v1/status``.

    :param error: what ended the run, if it failed.
    :param counters: totals over the run: ``episodes``, ``episodes_ended``, ``episodes_aborted``,
        ``calls``, ``tokens_raw``, ``tokens_sampled``, ``open_episodes``, ``waiting_claims``, and of the
        engine ``engine_prompt_tokens``, ``engine_cached_tokens``, ``engine_forward_seconds``.
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


class RunStatus(Message):
    """Answer of ``PUT /v1/run``, ``POST /v1/run/start`` and ``POST /v1/run/stop``."""

    run_id: str
    state: ServerState
    config: RunConfig
    export_dir: str | None = Field(
        default=None, description="After a stop: the Hugging Face directory of the trained model."
    )


class StartRequest(Message):
    """Body of ``POST /v1/run/start``.

    :param wait_seconds: how long the server may hold the answer until it is ROLLING.
    """

    wait_seconds: Annotated[float, Field(ge=0, le=600)] = 0.0


class Event(Message):
    """One entry of ``GET /v1/events``.

    :param id: increases by one; a client that reconnects sends the last one it saw as
        ``Last-Event-ID``.
    :param type: ``state``, ``run``, ``episode``, ``step``, ``task_set_aside``, ``worker``, or
        ``gap`` (entries were lost to a slow reader).
    """

    id: int
    time: float
    type: str
    data: dict[str, Any]
