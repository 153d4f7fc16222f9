"""The sample store: episodes, calls, batches, steps; the single source of truth of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ajet_core.interfaces.context import ComponentSettings, WorkerContext
from ajet_core.protocol import AbortCause
from ajet_core.timeline import Call

EpisodeState = Literal["open", "prepared", "ended", "aborted"]
EpisodeKind = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class JointRecord:
    """Which part of a joint episode, one over several servers, an episode is.

    :param joint_id: the same on all servers, and unique on each.
    :param role: what its client calls this server.
    :param arbiter: the role of the server whose outcome is that of all.
    :param arbiter_run: the id of the arbiter's run, by which nobody takes another server for it.
    """

    joint_id: str = field(repr=False)
    role: str
    arbiter: str
    arbiter_run: str

    @property
    def decides(self) -> bool:
        """Whether this part is the arbiter's."""
        return self.role == self.arbiter


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One episode.

    :param key_hash: hex SHA-256 of the episode's API key; the key itself is stored nowhere.
    :param client_id: who claimed it (id of the client token).
    :param claim_version: policy version when it was claimed.
    :param lease_seconds: silence after which it is aborted.
    :param heartbeat_seconds: how often its client promised to be heard of, None if it did not.
    :param reason: why it was aborted, "" otherwise.
    :param cause: the kind of `reason`, "" unless it was aborted.
    :param batch_id: the batch that consumed it, or in whose time it was aborted, if there is one.
    :param claim_hash: hex SHA-256 of the claim's id, "" if it had none; unique otherwise.
    :param final: it was aborted, and nobody will try it again.
    :param created_at: unix seconds.
    :param mixed: an evaluation episode that was answered by other weights than those it was claimed with, too.
    :param joint: None unless it is a part of a joint episode.
    """

    episode_id: str
    key_hash: str
    task_id: str
    group: str
    kind: EpisodeKind
    tag: str
    client_id: str
    claim_version: int
    lease_seconds: float
    created_at: float
    state: EpisodeState = "open"
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    call_rewards: dict[str, float] = field(default_factory=dict)
    agent_rewards: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    finished_at: float | None = None
    batch_id: str | None = None
    claim_hash: str = ""
    cause: AbortCause | Literal[""] = ""
    heartbeat_seconds: float | None = None
    final: bool = False
    mixed: bool = False
    joint: JointRecord | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Episodes that are trained together; `step` is the step that consumes them (1-based).

    :param refused: why it could not be trained, "" if it can be; a refused batch is kept and never trained.
    :param aborted_ids: episodes that were aborted while it was filled; they are not trained.
    :param credit: by tag of the mixture, the part of a place that rounding owes it after this batch.
    """

    batch_id: str
    step: int
    episode_ids: list[str]
    created_at: float
    refused: str = ""
    aborted_ids: list[str] = field(default_factory=list)
    credit: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CallScore:
    """What training made of one call with T sampled tokens.

    :param advantage: of each of its tokens.
    :param logprobs: [T] the trainer's, as `StepReport.logprobs`; empty if it computed none.
    """

    call_id: str
    advantage: float
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished training step.

    :param scores: what it made of its calls; `SampleStore.steps` leaves them out.
    """

    step: int
    batch_id: str
    metrics: dict[str, float]
    finished_at: float
    scores: Sequence[CallScore] = ()


@dataclass(frozen=True, slots=True)
class RewindRecord:
    """The weights are those of `step` again: the steps after it are forgotten, with their scores."""

    step: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The run of a store.

    :param config_json: the `RunConfig` it was configured with.
    :param active: it was started and not stopped: it goes on when its server is started again.
    :param paused: why it is paused, "" if it is not.
    :param back_to: the step whose checkpoint it is about to go back to; None unless it was asked to and has not done it.
    :param retrains: it trains the batches after that step again.
    """

    run_id: str
    config_json: str
    created_at: float
    active: bool = False
    paused: str = ""
    back_to: int | None = None
    retrains: bool = False


Record = RunRecord | EpisodeRecord | Call | BatchRecord | StepRecord | RewindRecord
"""What is appended to a store."""


@dataclass(frozen=True, slots=True)
class CallTotals:
    """Totals over all calls of a store.

    :param tokens_raw: prompt and sampled tokens.
    """

    calls: int = 0
    tokens_raw: int = 0
    tokens_sampled: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """Which episodes, and in which order; None and "" mean any.

    :param prefix: of their ids.
    :param newest_first: in the reverse order of their claims.
    """

    state: EpisodeState | None = None
    kind: EpisodeKind | None = None
    task_id: str | None = None
    prefix: str = ""
    newest_first: bool = False

    def matches(self, episode: EpisodeRecord) -> bool:
        """Whether an episode is one of them."""
        return (
            self.state in (None, episode.state)
            and self.kind in (None, episode.kind)
            and self.task_id in (None, episode.task_id)
            and episode.episode_id.startswith(self.prefix)
        )


ALL_EPISODES = EpisodeQuery()


class SampleStore(ABC):
    """Durable records of a run.

    A store keeps records and knows little about them. What follows from them (which claims were
    granted, how many episodes a group has, which outcome stands) is the server's business.

    Each fact is in one record. `Call` and `RunRecord` stand for themselves. An `EpisodeRecord` says
    who claimed an episode and what became of it. A `BatchRecord` says which episodes it has, and
    the store derives `EpisodeRecord.batch_id` from that. A `StepRecord` has the scores of the calls
    that were trained.
    """

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    async def open(self, *, read_only: bool = False) -> None:
        """Open the store in `context.run_dir`, or create it.

        :param read_only: neither create, lock nor change it: a server may have it open for writing.
        :raises StoreError: another process writes to it, it cannot be used, or it is to be read and
            there is none.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish pending writes and release the files; without effect if it is not open."""

    @abstractmethod
    async def append(self, *records: Record) -> None:
        """Write records, in their order; all of them are on disk when this returns, or none.

        A record replaces the one of its id, or of its step:

        - `RunRecord`: there is one.
        - `EpisodeRecord`: what it was claimed with never changes, and it keeps its place in the order
          of claims, and its batch. `batch_id` is ignored. One that is open is new.
        - `Call`: always new. The store may keep its prompt as the difference to its base.
        - `BatchRecord`: takes its episodes from the batch that had them, and gives back those that
          it has no longer.
        - `StepRecord`: replaces all scores of the step, too.
        - `RewindRecord`: removes later steps and their scores.

        Writes of concurrent callers may be committed together. A write that was requested earlier is
        never durable later than one that was requested after it, and once it is requested it happens,
        even if its caller is cancelled.

        :raises StoreFullError: disk or quota is full; nothing of these records was written.
        :raises StoreError: one of them cannot be written: a call or an open episode whose id is
            there already, a call of an unknown episode, a score of an unknown call, or a batch with
            an episode that has not ended (not been aborted, for `aborted_ids`).
        """

    @abstractmethod
    async def get_run(self) -> RunRecord | None:
        """The run, if one was configured."""

    @abstractmethod
    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """One episode.

        :raises DamagedRecordError: its record cannot be read.
        """

    @abstractmethod
    def episodes(self, query: EpisodeQuery = ALL_EPISODES) -> AsyncIterator[EpisodeRecord]:
        """Episodes in the order of their claims, one after the other.

        Nothing is held between two of them, so the caller may take its time. Records that cannot be
        read are logged and left out.
        """

    @abstractmethod
    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Calls of episodes, each list in order of `Call.index`; an unknown id has an empty list."""

    @abstractmethod
    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """The latest score of each call of an episode that has been trained on, by call id."""

    @abstractmethod
    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Batches for steps after `after_step`, in order of step.

        :param refused: those that were refused, instead of those to train.
        """

    @abstractmethod
    async def steps(self) -> list[StepRecord]:
        """All finished steps, in order, without their scores."""

    async def call_totals(self) -> CallTotals:
        """Totals over all calls. Each status asks for them.

        A store that keeps them overrides this: the default reads every call.
        """
        calls = tokens_raw = tokens_sampled = 0
        async for episode in self.episodes():
            for call in (await self.calls([episode.episode_id]))[episode.episode_id]:
                calls += 1
                tokens_raw += call.length
                tokens_sampled += len(call.sampled_ids)
        return CallTotals(calls, tokens_raw, tokens_sampled)
