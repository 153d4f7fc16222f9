"""The sample store: episodes, calls, batches, steps; the single source of truth of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
class GroupCount:
    """How many episodes a group has in each state."""

    open: int = 0
    ended: int = 0
    aborted: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationCount:
    """The evaluation episodes of one task that a client claimed at one policy version and that are over.

    :param ended: with a reward; the next three are of these.
    :param passed: with at least the reward that was asked for.
    """

    client_id: str
    tag: str
    claim_version: int
    task_id: str
    ended: int
    passed: int
    mixed: int
    reward_sum: float
    aborted: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished training step."""

    step: int
    batch_id: str
    metrics: dict[str, float]
    finished_at: float


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


class SampleStore(ABC):
    """Durable record of a run. Every write is on disk when its coroutine returns.

    Writes of concurrent callers may be committed together; a write that was requested earlier is
    never durable later than one that was requested after it. A full disk or quota raises
    `ajet_core.errors.StoreFullError` and writes nothing of that call.
    """

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    async def open(self) -> None:
        """Open or create the store in `context.run_dir`."""

    @abstractmethod
    async def close(self) -> None:
        """Finish pending writes and release the files."""

    @abstractmethod
    async def put_run(self, run: RunRecord) -> None:
        """Write or replace the run."""

    @abstractmethod
    async def get_run(self) -> RunRecord | None:
        """The run, if one was started."""

    @abstractmethod
    async def add_episode(self, episode: EpisodeRecord) -> None:
        """Add a claimed episode.

        :raises StoreError: there is one of its id, of its claim, or of its joint episode.
        """

    @abstractmethod
    async def prepare_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write an episode with the outcome that it has if its joint episode is committed.

        Only an open episode is changed: any other is returned as it is stored.

        :raises StoreError: there is no such episode, or `episode` is not prepared.
        """

    @abstractmethod
    async def finish_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write an ended or aborted episode.

        The first outcome stands: if the stored episode is finished already it is returned unchanged.

        :raises StoreError: there is no such episode, or `episode` is open or prepared.
        """

    @abstractmethod
    async def give_up(self, episode_id: str) -> EpisodeRecord:
        """Note that nobody will try an aborted episode again.

        :return: the episode as it is stored now.
        :raises StoreError: there is no such episode, or it was not aborted.
        """

    @abstractmethod
    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """One episode."""

    @abstractmethod
    async def claimed(self, claim_hash: str) -> EpisodeRecord | None:
        """The episode of a claim, by `EpisodeRecord.claim_hash`; None for "" and for an unknown one."""

    @abstractmethod
    async def joint_parts(self, joint_ids: Sequence[str]) -> dict[str, EpisodeRecord]:
        """The episodes that are parts of these joint episodes, by joint id; those of unknown ones are left out."""

    @abstractmethod
    async def episodes(
        self, *, state: EpisodeState | None = None, batched: bool | None = None
    ) -> list[EpisodeRecord]:
        """Episodes in the order they were claimed, filtered by state and by whether a batch has them."""

    @abstractmethod
    async def add_call(self, call: Call) -> None:
        """Record one model call.

        :raises StoreError: its episode is not in the store, or its id is.
        """

    @abstractmethod
    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Calls of the episodes, each list in order of `Call.index`; an unknown id has an empty list."""

    @abstractmethod
    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch and give it its episodes, all or nothing.

        :raises StoreError: an episode is not ended (aborted, for `aborted_ids`) or has a batch already.
        """

    @abstractmethod
    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Batches for steps after `after_step`, in order of step: those to train, or those that were refused."""

    @abstractmethod
    async def refuse_batch(self, batch_id: str, reason: str) -> None:
        """Note that a batch is not to be trained; its episodes stay its own.

        :raises StoreError: there is no such batch.
        """

    @abstractmethod
    async def split_batch(self, batch_id: str, aside: BatchRecord) -> None:
        """Move episodes of a batch to another one that is refused, all or nothing.

        :param aside: the new batch, with the reason in `refused`.
        :raises StoreError: there is a batch of its id, or an episode is not one of `batch_id` that ended.
        """

    @abstractmethod
    async def add_step(self, step: StepRecord, scores: Sequence[CallScore] = ()) -> None:
        """Record a finished step with what it made of its calls.

        A repeated step number replaces the step and all its scores (a resumed run trains again), and the
        batch is from now on that of this step.

        :raises StoreError: a call is not in the store.
        """

    @abstractmethod
    async def rewind(self, step: int, *, discard: BatchRecord | None = None) -> None:
        """Forget the steps after `step` and their scores.

        The weights that they made are lost, and their batches are trained again.

        :param discard: the batches are refused instead, for its reason `BatchRecord.refused`. This batch is refused too, and
            is given the train episodes that have ended or were aborted and have no batch; it is left out if there are none.
        """

    @abstractmethod
    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """The latest score of each call of an episode that has been trained on, by call id."""

    @abstractmethod
    async def group_counts(
        self, groups: Sequence[str], *, kind: EpisodeKind, client_id: str
    ) -> dict[str, GroupCount]:
        """The episodes of these groups that a client claimed, by group; prepared ones count as open."""

    @abstractmethod
    async def evaluation_counts(self, *, pass_reward: float) -> list[EvaluationCount]:
        """All evaluation episodes that are over, counted by client, tag, policy version and task.

        :param pass_reward: the least reward of an episode that passed.
        :return: in order of policy version.
        """

    @abstractmethod
    async def steps(self) -> list[StepRecord]:
        """All finished steps, in order."""

    @abstractmethod
    async def counters(self) -> dict[str, int]:
        """Totals over the whole run.

        They are: ``episodes``, ``episodes_ended``, ``episodes_aborted``, of these ``aborted_CAUSE`` for each
        `AbortCause` and those of joint episodes as ``joint_ended`` and ``joint_aborted``, ``calls``, ``tokens_raw`` (prompt + sampled over all calls), ``tokens_sampled``.
        """
