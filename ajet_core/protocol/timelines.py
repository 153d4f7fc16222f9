"""The token tree of one episode, for tools that display it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ajet_core.protocol.base import Message


class TimelineRole(Message):
    """Tokens of a node that belong to one message; those between messages are the template's.

    :param start: offset of the first one in the node.
    :param end: offset behind the last one.
    :param role: ``system``, ``user``, ``assistant`` or ``tool``.
    :param name: for a tool message, the function that was called.
    """

    start: int
    end: int
    role: str
    name: str = ""


class TimelineSampling(Message):
    """A call that sampled the tokens of a node.

    :param call: index into `EpisodeTimelines.calls`.
    :param start: offset of the node's first token in the tokens that the call sampled.
    """

    call: int
    start: int


class TimelineNode(Message):
    """A sequence of tokens without a branch.

    :param parent: index of the node it continues, -1 for a root; always below its own index.
    :param samplings: the calls that sampled the tokens; empty for context.
    """

    parent: int
    token_ids: list[int]
    samplings: list[TimelineSampling] = Field(default_factory=list)
    roles: list[TimelineRole] = Field(default_factory=list)


class TimelineCall(Message):
    """One model call. A number that is not finite is null.

    :param end: the node it ends in, -1 for a call without a token.
    :param parent_call_id: the call whose tokens it continues, if known.
    :param prompt_tokens: length of its prompt.
    :param logprobs: of each sampled token, at the sampling temperature, by the engine.
    :param trainer_logprobs: the same by the trainer; empty if it computed none.
    :param policy_versions: of each sampled token.
    :param advantage: of each of its tokens; null if it has not been trained on.
    :param reward: the reward that was reported for this call alone.
    :param drift_tokens: sampled tokens that the template would write otherwise; they were kept.
    :param echo_fields: fields of the previous answer that the agent changed, with commas between.
    :param ignored: what in the request had no effect, likewise.
    """

    call_id: str
    index: int
    agent: str
    finish_reason: str
    temperature: float
    end: int
    parent_call_id: str | None
    prompt_tokens: int
    logprobs: list[float | None]
    trainer_logprobs: list[float | None]
    policy_versions: list[int]
    advantage: float | None
    reward: float | None
    created_at: float
    drift_tokens: int = 0
    echo_fields: str = ""
    ignored: str = ""


class TimelineFork(Message):
    """A call that does not continue where an earlier one ended.

    :param kind: what the agent did, see `ajet_server.observe.forks`.
    :param message: index of the first message that differs, -1 if none does.
    :param role: of that message.
    :param field: the field of the message that differs.
    :param recomputed_tokens: tokens that were computed again although an earlier call had them.
    """

    call_id: str
    before_call_id: str | None
    kind: str
    message: int
    role: str
    field: str
    before: str
    after: str
    shared: int
    recomputed_tokens: int


class EpisodeTimelines(Message):
    """Answer of ``GET /v1/timelines/{episode_id}``: the calls of an episode as one tree of tokens.

    Calls whose client disconnected (finish reason ``abort``) are in the tree. They are not trained,
    and `forks` and the numbers of tokens do not include them.

    :param merger: name of the run's merger, which made the tree.
    :param timelines: paths from root to leaf.
    :param tokens_raw: tokens of all calls, each a sample of its own.
    :param tokens: tokens of the tree.
    :param tokens_altered: tokens that a merger that is not exact has changed.
    :param batch_id: the batch that consumed the episode.
    """

    episode_id: str
    task_id: str
    group: str
    kind: Literal["train", "eval"]
    tag: str
    state: Literal["open", "prepared", "ended", "aborted"]
    reward: float | None
    agent_rewards: dict[str, float]
    reason: str
    batch_id: str | None
    merger: str
    timelines: int
    tokens_raw: int
    tokens: int
    tokens_altered: int
    nodes: list[TimelineNode]
    calls: list[TimelineCall]
    forks: list[TimelineFork]
