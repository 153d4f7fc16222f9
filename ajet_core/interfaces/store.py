"""The sample store: episodes, calls, batches, steps; the single source of truth of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

from ajet_core.interfaces.context import SettingsT_co, WorkerContext
from ajet_core.protocol import AbortCause
from ajet_core.timeline import Call

EpisodeState = Literal["open", "prepared", "ended", "aborted"]
EpisodeKind = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class JointRecord:
    """The part of a joint episode (one over several servers) that an episode is.

    :param joint_id: the same on all servers, and unique on each.
    :param role: the client's name for this server.
    :param arbiter: the role of the server whose outcome decides that of all.
    :param arbiter_run: id of the arbiter's run, which prevents confusion with another server.
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

    :param key_hash: hex SHA-256 of the episode's API key; the key itself is not stored.
    :param client_id: id of the token of the client that claimed the episode.
    :param claim_version: policy version when the episode was claimed.
    :param lease_seconds: seconds without activity after which the episode is aborted.
    :param heartbeat_seconds: interval of the client's heartbeats, None if it promised none.
    :param reason: why the episode was aborted, "" otherwise.
    :param cause: the kind of `reason`, "" unless the episode was aborted.
    :param batch_id: the batch that consumed the episode, or during which it was aborted, if any.
    :param claim_hash: hex SHA-256 of the claim's id, "" if it had none; unique otherwise.
    :param final: the episode was aborted, and its task will not be retried.
    :param created_at: unix seconds.
    :param mixed: an evaluation episode with answers of other weights than those at its claim.
    :param rules: `CallRules` as plain data, without what is not set.
    :param joint: None unless the episode is part of a joint episode.
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
    rules: dict[str, Any] = field(default_factory=dict)
    joint: JointRecord | None = None

    @property
    def untrained_agents(self) -> frozenset[str]:
        """Agents whose calls in this episode are not trained, in addition to those of the run."""
        return frozenset(self.rules.get("untrained_agents", ()))


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Episodes that are trained together; `step` is the step that consumes them (1-based).

    :param refused: why the batch could not be trained, "" if it can. It is kept, but not trained.
    :param aborted_ids: episodes that were aborted while the batch was filled; they are not trained.
    :param credit: by tag of the mixture, the fraction of a slot that rounding owes it after it.
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
    """Training results of one call with T sampled tokens.

    :param advantage: advantage of each of its tokens.
    :param logprobs: [T] the trainer's logprobs, as `StepReport.logprobs`; empty if not computed.
    """

    call_id: str
    advantage: float
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished training step.

    :param scores: training results of its calls; `SampleStore.steps` omits them.
    :param config_json: the run's configuration; "" if it is that of the step before.
    """

    step: int
    batch_id: str
    metrics: dict[str, float]
    finished_at: float
    scores: Sequence[CallScore] = ()
    config_json: str = ""


@dataclass(frozen=True, slots=True)
class RewindRecord:
    """A return to the weights of `step`: later steps are removed, with their scores."""

    step: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The run of a store.

    :param config_json: the `RunConfig` of the run.
    :param active: the run was started and not stopped; it continues when its server is restarted.
    :param paused: why the run is paused, "" if it is not.
    :param back_to: the step to whose checkpoint the run is to return; None if no return is pending.
    :param retrains: whether the run trains the batches after that step again.
    """

    run_id: str
    config_json: str
    created_at: float
    active: bool = False
    paused: str = ""
    back_to: int | None = None
    retrains: bool = False


Record = RunRecord | EpisodeRecord | Call | BatchRecord | StepRecord | RewindRecord
"""The types of records in a store."""


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
    """A filter and order of episodes; None and "" match any.

    :param prefix: prefix of the ids.
    :param newest_first: sort in the reverse order of the claims.
    """

    state: EpisodeState | None = None
    kind: EpisodeKind | None = None
    task_id: str | None = None
    prefix: str = ""
    newest_first: bool = False

    def matches(self, episode: EpisodeRecord) -> bool:
        """Return whether an episode matches."""
        return (
            self.state in (None, episode.state)
            and self.kind in (None, episode.kind)
            and self.task_id in (None, episode.task_id)
            and episode.episode_id.startswith(self.prefix)
        )


ALL_EPISODES = EpisodeQuery()


class SampleStore(Generic[SettingsT_co], ABC):
    """Durable records of a run, from which the server derives everything else.

    Each fact is in one record. `Call` and `RunRecord` are independent. An `EpisodeRecord` has the
    claim and the outcome of an episode. A `BatchRecord` lists its episodes, from which the store
    derives `EpisodeRecord.batch_id`. A `StepRecord` has the scores of the calls that were trained.

    Methods run in the server's event loop and must not block it. Each may raise
    `StoreUnavailableError` if a later attempt may succeed: the server repeats it. Readers that
    return records raise `DamagedRecordError` for one that cannot be read, and leave none out.
    """

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    async def open(self, *, read_only: bool = False) -> None:
        """Open the store in `context.run_dir`, or create it.

        A process may have a store open for writing and, with other objects, for reading.

        :param read_only: do not create or change the store, nor take the lock of its writer: a
            server may be writing to it. It may register as a reader if that delays no writer.
        :raises StoreError: another process writes to it, it is unusable, or missing and read-only.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish pending writes and release the files; does nothing if the store is not open."""

    @abstractmethod
    async def append(self, *records: Record) -> None:
        """Write records in the given order; when this returns, either all or none are on disk.

        A record replaces the one with the same id or step:

        - `RunRecord`: there is only one.
        - `EpisodeRecord`: the fields of the claim never change, and an episode keeps its slot in
          the order of claims, and its batch. `batch_id` is ignored. An open episode must be new.
          The server writes no `claim_hash` (but "") and no `joint_id` for a second episode. A store
          need not check this; one that does raises `StoreError`.
        - `Call`: always new. The store may keep the prompt as the difference to its base.
        - `BatchRecord`: takes its episodes from the batches that had them, and releases others.
        - `StepRecord`: replaces all scores of the step, too.
        - `RewindRecord`: removes later steps and their scores.

        Writes of concurrent callers may be committed together, in order. Calls with long prompts,
        and those that continue from them, may be delayed; they only follow their base. Once
        requested, a write is carried out even if its caller is cancelled.

        :raises StoreUnavailableError: the store cannot be used now, and may have the records: the
            server repeats the write, unless a new call or episode of it is in the store.
        :raises StoreFullError: the disk or quota is full; none of these records was written.
        :raises StoreError: a record cannot be written: a call or open episode with an existing id,
            a call of an unknown episode, a score of an unknown call, or a batch with an episode
            that has not ended (for `aborted_ids`: that was not aborted).
        """

    @abstractmethod
    async def get_run(self) -> RunRecord | None:
        """Return the run, or None if none was configured."""

    @abstractmethod
    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return one episode, or None if it does not exist.

        :raises DamagedRecordError: its record cannot be read.
        """

    @abstractmethod
    def episodes(self, query: EpisodeQuery = ALL_EPISODES) -> AsyncIterator[EpisodeRecord]:
        """Iterate over episodes in the order of their claims.

        Between two episodes, nothing is locked. Records that cannot be read are logged and skipped.
        """

    @abstractmethod
    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Return the calls of episodes, ordered by `Call.index`; unknown ids have empty lists."""

    @abstractmethod
    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """Return the latest score of each trained call of an episode, by call id."""

    @abstractmethod
    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Return batches for steps after `after_step`, ordered by step.

        :param refused: return refused batches instead of those to train.
        """

    @abstractmethod
    async def steps(self) -> list[StepRecord]:
        """Return all finished steps, in order, without their scores."""

    async def call_totals(self) -> CallTotals:
        """Return totals over all calls; requested for each status.

        The default reads every call. Override it in stores that keep the totals.
        """
        calls = tokens_raw = tokens_sampled = 0
        async for episode in self.episodes():
            for call in (await self.calls([episode.episode_id]))[episode.episode_id]:
                calls += 1
                tokens_raw += call.length
                tokens_sampled += len(call.sampled_ids)
        return CallTotals(calls, tokens_raw, tokens_sampled)
