"""Requests and answers of the swarm routes."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from ajet_core.protocol.base import Message, MetadataKey, MetadataText, Name
from ajet_core.protocol.joint import JointPart
from ajet_core.protocol.run import AgentRule, CallRules

Number = Annotated[float, Field(strict=True)]
"""A JSON number; a string or boolean that looks like one is refused."""


AgentCause = Literal["error", "timeout", "rate_limit", "cancelled"]
"""Why a client aborts: its agent raised, took too long, met a rate limit, is no longer needed."""

AbortCause = Literal[
    AgentCause, "lease_expired", "run_stopped", "token_revoked", "late", "no_calls", "call_failed"
]
"""Why a client or the server aborted an episode. `RolloutConfig.late` explains ``late``, and
`CallRules.allow_no_calls` ``no_calls`` and ``call_failed``."""

ABORT_CAUSES: tuple[AbortCause, ...] = get_args(AbortCause)

_MOST_CLAIMED_AGENTS = 16

ClaimId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{32,128}$")]


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


class ClaimRequest(CallRules):
    """Body of ``POST /v1/episodes``.

    :param task_id: the task to roll out; episodes of one group share a baseline.
    :param group: defaults to the task id.
    :param kind: ``eval`` episodes are never trained on.
    :param lease_seconds: without a model call or heartbeat for so long the episode is aborted.
    :param heartbeat_seconds: the longest time between two calls or heartbeats that the client
        promises. After three times as long, the episode stays open but loses its slot in the
        batch, long before the lease ends. With None it keeps the slot until the lease ends.
    :param wait_seconds: how long the server may hold the request until an episode can be claimed.
    :param claim_id: at least 128 random bits as text. The same claim again, after an answer that
        was lost, gets the same episode with the same key, also from a server that was started again
        in between. A secret: the episode's key is made of it.
    :param joint: the joint episode that this one is a part of; see `ajet_core.protocol.joint`.
    """

    task_id: Name
    group: Name | None = None
    kind: Literal["train", "eval"] = "train"
    tag: Annotated[str, Field(max_length=256)] = ""
    lease_seconds: Annotated[float, Field(strict=True, ge=1, le=86400)] = 600.0
    heartbeat_seconds: Annotated[float, Field(strict=True, ge=0.1, le=3600)] | None = None
    wait_seconds: Annotated[float, Field(strict=True, ge=0, le=300)] = 30.0
    claim_id: ClaimId | None = Field(default=None, repr=False)
    joint: JointPart | None = None

    @model_validator(mode="after")
    def _agents_are_few_and_plain(self) -> Self:
        # Clients must not be able to occupy the server with an expression.
        if any(isinstance(rule, AgentRule) and rule.system for rule in self.agents.values()):
            raise ValueError("agents of a claim have no regular expressions: give a text instead")
        if max(len(self.agents), len(self.untrained_agents)) > _MOST_CLAIMED_AGENTS:
            raise ValueError(f"a claim has at most {_MOST_CLAIMED_AGENTS} agents")
        return self


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
    """Body of ``POST /v1/episodes/{id}/end``, and of ``/prepare`` for parts of joint episodes.

    A server refuses rewards whose absolute value exceeds its ``server.max_reward`` (1e6).

    :param reward: the episode's reward.
    :param components: named parts of the reward, for the logs.
    :param call_rewards: rewards of calls on top of `reward`, by the id of the chat completion.
    :param agent_rewards: rewards by agent name, in place of `reward` for the agents' calls.
    :param allow_no_calls: as in `CallRules`.
    """

    reward: Number
    components: dict[MetadataKey, Number] = Field(default_factory=dict, max_length=64)
    call_rewards: dict[MetadataKey, Number] = Field(default_factory=dict, max_length=65536)
    agent_rewards: dict[MetadataKey, Number] = Field(default_factory=dict, max_length=256)
    metadata: dict[MetadataKey, MetadataText] = Field(default_factory=dict, max_length=64)
    allow_no_calls: Annotated[bool, Field(strict=True)] = False


class AbortRequest(Message):
    """Body of ``POST /v1/episodes/{id}/abort``.

    :param final: the client will not retry: the batch uses the episodes of its task that succeed.
        Also accepted for an episode that is already aborted, for example by its lease.
    :param arbiter_aborted: the arbiter has aborted its own part. A prepared part needs it.
    """

    reason: Annotated[str, Field(min_length=1, max_length=4096)]
    cause: AgentCause = "error"
    final: Annotated[bool, Field(strict=True)] = False
    arbiter_aborted: Annotated[bool, Field(strict=True)] = False


class EpisodeStatus(Message):
    """Answer of end, prepare, commit, abort, heartbeat and ``GET /v1/episodes/{id}``.

    `reward` and `reason` are of the outcome that stands, which is the first one reported.

    :param tokens: sampled in the recorded `calls`.
    :param limit: which of `CallRules` is used up, so that further calls are refused.
    """

    episode_id: str
    task_id: str
    group: str
    kind: Literal["train", "eval"]
    tag: str
    state: Literal["open", "prepared", "ended", "aborted"]
    reward: float | None
    reason: str
    cause: AbortCause | None = None
    calls: int
    tokens: int = 0
    limit: Literal["call_limit", "token_limit"] | None = None
    policy_version: int
    lease_expires_in: float | None = Field(
        description="Seconds until the lease expires; null when the episode is closed."
    )


class HeartbeatsRequest(Message):
    """Body of ``POST /v1/heartbeats``: one beat for all episodes of a client."""

    episode_ids: Annotated[list[Name], Field(max_length=4096)]


class Heartbeats(Message):
    """Answer of ``POST /v1/heartbeats``.

    :param closed: those of the episodes that are over or unknown, and why.
    """

    closed: dict[str, str]


class Pace(Message):
    """Answer of ``GET /v1/pace``: how a client is to run episodes.

    :param in_order: claim a task only after the first claim of the task before was answered. Then
        it does not depend on timing which tasks an exact batch has. True also without a run.
    :param episodes: that may be open, of all clients together; None if the server does not say.
    """

    in_order: bool
    episodes: int | None = None


class EngineServer(Message):
    """Body of ``POST /v1/engine/servers/add`` and ``/remove``: the URL of a model server."""

    url: Annotated[str, Field(max_length=2048)]


class EngineServers(Message):
    """The model servers behind the engine.

    :param servers: by name or URL "up", "starting", or why it was given up.
    """

    servers: dict[str, str]


class GroupCountsRequest(Message):
    """Body of ``POST /v1/groups``: groups whose episodes are to be counted."""

    groups: Annotated[list[Name], Field(max_length=4096)]
    kind: Literal["train", "eval"] = "train"


class GroupCounts(Message):
    """The episodes of a group that this client claimed in this run, whenever that was.

    :param ended: with a reward; its mean and std are without refused batches, None without any.
    """

    open: int
    ended: int
    aborted: int
    reward_mean: float | None = None
    reward_std: float | None = None


class GroupCountsAnswer(Message):
    """Answer of ``POST /v1/groups``."""

    groups: dict[str, GroupCounts]
