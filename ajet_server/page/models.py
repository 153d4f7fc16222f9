"""The answers that the live page is drawn from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ajet_core.interfaces import EpisodeState
from ajet_core.protocol import ServerStatus, TokenScope
from ajet_core.protocol.base import Message

MAX_POINTS = 2000
MAX_ROWS = 500


class StepsQuery(Message):
    """Query of ``GET /v1/steps``.

    :param metrics: names with commas between; "" for all.
    :param points: most points of a curve.
    :param after: only later steps.
    :param until: only this step and earlier ones.
    """

    metrics: Annotated[str, Field(max_length=8192)] = ""
    points: Annotated[int, Field(ge=1, le=MAX_POINTS)] = 400
    after: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    until: Annotated[int, Field(ge=0, le=2**31 - 1)] = 2**31 - 1


class Curve(Message):
    """One metric over P points. A point of which no step has a value is null in each list.

    :param mean: [P] mean over the steps of a point.
    :param low: [P] the least value; empty if each point is one step.
    :param high: [P] likewise, the greatest.
    """

    mean: list[float | None]
    low: list[float | None] = Field(default_factory=list)
    high: list[float | None] = Field(default_factory=list)


class StepCurves(Message):
    """Answer of ``GET /v1/steps``: metrics over the steps of a run, as P points.

    :param names: all metrics that any step has.
    :param total: number of steps of the run.
    :param steps: [P] the last step of each point.
    :param times: [P] when it ended, in Unix seconds.
    """

    names: list[str]
    total: int
    steps: list[int]
    times: list[float]
    curves: dict[str, Curve]


class EpisodesQuery(Message):
    """Query of ``GET /v1/episodes``. Without `step`, the newest episodes.

    :param step: only those that this step has trained, or will train.
    :param task: only those of a task.
    :param cause: only those that were aborted for this cause.
    :param client: only those of a client, by the id of its token.
    :param skip: number of selected episodes to leave out before the first one.
    :param order: ``newest``, or by reward; those without a reward come last.
    :param outputs: also describe what the model wrote, which reads the calls of these episodes.
    """

    state: EpisodeState | None = None
    kind: Literal["train", "eval"] | None = None
    task: Annotated[str, Field(max_length=256)] = ""
    step: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    cause: Annotated[str, Field(max_length=64)] = ""
    client: Annotated[str, Field(max_length=256)] = ""
    order: Literal["newest", "highest", "lowest"] = "newest"
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 100
    skip: Annotated[int, Field(ge=0, le=20_000)] = 0
    outputs: bool = False


class EpisodeOutput(Message):
    """What the model wrote in an episode.

    :param calls: number of model calls.
    :param tokens: tokens that were sampled.
    :param ending: the last text of the last call, at most 200 characters.
    :param repeats: the share of the sampled text that repeats itself: 1 minus the number of
        different sequences of 8 tokens over the number of all.
    :param cut_off: calls that reached their limit of tokens.
    """

    calls: int
    tokens: int
    ending: str
    repeats: float
    cut_off: int


class EpisodeRow(Message):
    """An episode of a list.

    :param client: id of the token of the client that claimed it.
    :param version: policy version when it was claimed.
    :param claimed_at: Unix seconds.
    :param trained: whether a batch has consumed it.
    :param output: None unless it was requested.
    """

    episode_id: str
    task_id: str
    group: str
    kind: str
    tag: str
    state: str
    client: str
    version: int
    reward: float | None
    components: dict[str, float]
    agent_rewards: dict[str, float]
    reason: str
    cause: str
    claimed_at: float
    finished_at: float | None
    trained: bool
    output: EpisodeOutput | None = None


class Ending(Message):
    """An ending that several listed episodes share.

    :param reward: their mean reward; None if none has one.
    """

    text: str
    episodes: int
    reward: float | None


class EpisodeRows(Message):
    """Answer of ``GET /v1/episodes``.

    :param endings: what at least two of the episodes end with, the most frequent first.
    :param more: whether there are further episodes.
    :param total: number of selected episodes, of the newest 20,000; None if they are more than
        2,000 and listed by time, because counting them takes a while.
    """

    episodes: list[EpisodeRow]
    endings: list[Ending] = Field(default_factory=list)
    more: bool = False
    total: int | None = None


class TasksQuery(Message):
    """Query of ``GET /v1/tasks``.

    :param find: only tasks with this in their id.
    :param order: ``newest``: by the last step that trained them; ``lowest``: by their last reward;
        ``improved`` and ``worsened``: by how their reward changed.
    :param skip: number of selected tasks to leave out before the first one.
    """

    find: Annotated[str, Field(max_length=256)] = ""
    order: Literal["newest", "lowest", "improved", "worsened"] = "newest"
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 200
    skip: Annotated[int, Field(ge=0, le=20_000)] = 0


class TaskRow(Message):
    """A task that was trained.

    :param episodes: its trained episodes.
    :param steps: number of steps that have trained it.
    :param first_reward: mean reward of its episodes in the first of these steps.
    :param last_reward: likewise, in the last one.
    """

    task_id: str
    episodes: int
    steps: int
    first_step: int
    last_step: int
    first_reward: float
    last_reward: float


class TaskRows(Message):
    """Answer of ``GET /v1/tasks``, of the newest 20,000 training episodes.

    :param more: whether there are further tasks.
    :param total: number of selected tasks.
    """

    tasks: list[TaskRow]
    more: bool = False
    total: int = 0


class SaidMessage(Message):
    """A message of a conversation, cut to its first and last characters if it is long.

    :param cut: number of characters that were left out.
    """

    role: str
    content: str
    reasoning: str = ""
    tool_calls: str = ""
    name: str = ""
    cut: int = 0


class SaidCall(Message):
    """A model call of a conversation.

    :param messages: those of the prompt that do not repeat the call that it continues.
    :param answer: None if the client disconnected before it was sent.
    :param at: when it ended, in Unix seconds.
    """

    call_id: str
    agent: str
    messages: list[SaidMessage]
    answer: SaidMessage | None
    finish_reason: str
    tokens: int
    at: float


class Conversation(Message):
    """Answer of ``GET /v1/timelines/{episode_id}/messages``, in the order in which calls ended.

    :param omitted: calls before those listed.
    """

    episode: EpisodeRow
    calls: list[SaidCall]
    omitted: int = 0


class RunningText(Message):
    """More of the answer of a running call, at first with its prompt.

    :param at: when the call began, in Unix seconds.
    :param tokens: number of tokens sampled so far.
    :param version: policy version of the last one; None before the first one.
    :param first: position of the token with which `text` begins. Tokens between those of the last
        event and this one are left out, and 0 restarts the answer.
    :param text: what is new, with special tokens; a character may come only with a later token.
    :param messages: in the first event that has the call, those of its prompt that do not repeat
        the call that it continues; at most the last 50 and about 50,000 characters.
    :param omitted: number of messages before them that are left out.
    """

    call_id: str
    agent: str
    at: float
    tokens: int
    version: int | None
    first: int
    text: str
    messages: list[SaidMessage] = Field(default_factory=list)
    omitted: int = 0


class RunningTexts(Message):
    """Data of an event of ``GET /v1/timelines/{episode_id}/running``.

    :param calls: those that are being answered; one that is missing has ended.
    :param more: number of further ones, which are not listed.
    :param open: whether the episode is open; if not, this is the last event.
    """

    calls: list[RunningText]
    more: int = 0
    open: bool = True


class ClientActivity(Message):
    """What a client does now.

    :param client: id of its token.
    :param open_episodes: its open episodes.
    :param oldest_seconds: since the claim of the oldest one.
    """

    client: str
    name: str
    open_episodes: int
    oldest_seconds: float


class Overview(Message):
    """Answer of ``GET /v1/overview``: what the page shows first.

    :param scope: of the token that asks.
    :param sentence: the state of the server and its run in words.
    :param config: the run's configuration without secrets; None before a run is configured.
    :param changed: the settings of `config` that are not the defaults.
    :param seconds_per_step: mean over the last 20 steps, once a page has requested curves.
    :param time: of the server, in Unix seconds.
    :param again_seconds: after which a page asks again: longer if many pages are open, so that they
        cost rollouts little.
    """

    scope: TokenScope
    sentence: str
    status: ServerStatus
    config: dict[str, Any] | None
    changed: dict[str, Any] = Field(default_factory=dict)
    clients: list[ClientActivity]
    seconds_per_step: float | None
    time: float
    again_seconds: float
