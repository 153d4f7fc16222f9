"""The server's view of a run's store: its records, their rules, and indices and counts of them."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ajet_core.errors import DamagedRecordError, StoreError, StoreUnavailableError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeKind,
    EpisodeQuery,
    EpisodeRecord,
    EpisodeState,
    RewindRecord,
    RunRecord,
    SampleStore,
    StepRecord,
)
from ajet_core.protocol import ABORT_CAUSES
from ajet_core.timeline import Call
from ajet_server.store.evaluation_counts import EvaluationCount, EvaluationCounter
from ajet_server.store.patient_store import RETRY_SECONDS, PatientStore, StoreTrouble

T = TypeVar("T")

_OUTCOME = (
    "state",
    "reward",
    "components",
    "call_rewards",
    "agent_rewards",
    "metadata",
    "reason",
    "finished_at",
    "cause",
    "final",
    "mixed",
)
"""The fields of an episode that are written when it is prepared and when it is over."""

# The field of `GroupCount` that counts the episodes of a state.
_COUNTED_AS = {"open": "open", "prepared": "open", "ended": "ended", "aborted": "aborted"}


@dataclass(slots=True)
class GroupCount:
    """The number of a group's episodes by state, and sums over rewards.

    :param rewarded: the ended episodes that are not in a refused batch.
    :param first: the reward of one of them; the sums are over differences to it, so that rewards
        that are all equal have a deviation of 0.
    :param square_sum: of the squares of the differences.
    """

    open: int = 0
    ended: int = 0
    aborted: int = 0
    rewarded: int = 0
    first: float = 0.0
    difference_sum: float = 0.0
    square_sum: float = 0.0

    @property
    def reward_mean(self) -> float | None:
        """The mean reward of the rewarded episodes, None without any."""
        return self.first + self.difference_sum / self.rewarded if self.rewarded else None

    @property
    def reward_std(self) -> float | None:
        """The standard deviation of their rewards, None without any."""
        if not self.rewarded:
            return None
        mean = self.difference_sum / self.rewarded
        return math.sqrt(max(0.0, self.square_sum / self.rewarded - mean**2))

    def add_reward(self, reward: float, by: int) -> None:
        """Add a reward, or remove one with `by` -1."""
        reward = min(max(reward, -_LARGEST_REWARD), _LARGEST_REWARD)
        if not self.rewarded:
            self.first, self.difference_sum, self.square_sum = reward, 0.0, 0.0
        self.rewarded += by
        self.difference_sum += by * (reward - self.first)
        self.square_sum += by * (reward - self.first) ** 2


_NO_EPISODES = GroupCount()
# The sum of the squares of larger rewards could overflow.
_LARGEST_REWARD = 1e120


class RunStore:
    """Writes the records of a run, and answers the server's queries about them.

    A `SampleStore` keeps records. This class enforces their rules: each claim is granted once, the
    first outcome of an episode stands, and an episode is in one batch. It also maintains indices
    and counts, which it reads from the store once, when it is opened. They take some hundred bytes
    for each episode. Records are counted once they are durable, even if the caller that wrote them
    was cancelled.

    :param store: has no other writer than this object.
    :param name: names the store and its plugin in messages.
    :param retry_seconds: how long an operation is repeated while the store is unavailable.
    :ivar rewinds: how often steps were removed from the store.
    """

    def __init__(
        self,
        store: SampleStore,
        name: str = "the sample store",
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._store = PatientStore(store, name, retry_seconds=retry_seconds)
        self.rewinds = 0
        self._forget()

    @property
    def trouble(self) -> StoreTrouble | None:
        """What is wrong with the store at present, None if nothing is."""
        return self._store.trouble

    def _forget(self) -> None:
        # Episode ids by claim hash and by joint id, including those being written.
        self._claims: dict[str, str] = {}
        self._joint: dict[str, str] = {}
        # Episodes that are not over, and train episodes without a batch, in the order of claims.
        self._loose: dict[str, EpisodeRecord] = {}
        # By client, kind and group.
        self._groups: dict[tuple[str, EpisodeKind, str], GroupCount] = {}
        self._totals = dict.fromkeys(
            [
                "episodes",
                "episodes_ended",
                "episodes_aborted",
                *(f"aborted_{cause}" for cause in ABORT_CAUSES),
                "joint_ended",
                "joint_aborted",
            ],
            0,
        )
        # Episodes with a write that failed, but may have been carried out.
        self._doubtful: set[str] = set()
        # New episodes of which this is true, by claim hash.
        self._in_doubt: dict[str, list[EpisodeRecord]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._batching = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Open the store and read all its episodes.

        :raises StoreError: the store cannot be opened or read.
        """
        await self._store.open()
        self._forget()
        try:
            async for episode in self._store.episodes():
                self._enter(episode)
            for batch in await self._store.batches(after_step=0, refused=True):
                await self._ignore_rewards(batch.episode_ids)
        except BaseException:
            await self._store.close()
            raise

    def hurry(self) -> None:
        """Repeat nothing from now on: the server is about to end."""
        self._store.hurry()

    async def close(self) -> None:
        """Finish all writes, and close the store."""
        self.hurry()
        await asyncio.gather(*self._writes, return_exceptions=True)
        await self._store.close()

    async def put_run(self, run: RunRecord) -> None:
        """Write or replace the run."""
        await self._store.append(run)

    async def get_run(self) -> RunRecord | None:
        """Return the run, None if none was configured."""
        return await self._store.get_run()

    async def add_episode(self, episode: EpisodeRecord) -> None:
        """Add a claimed episode.

        :raises StoreError: an episode with its id, its claim or its joint episode exists.
        """
        await self._to_the_end(self._add_episode(episode))

    async def prepare_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write an episode with the outcome that it gets if its joint episode is committed.

        Only an open episode changes: any other is returned as stored.

        :raises StoreError: the episode is unknown, or `episode` is not prepared.
        """
        if episode.state != "prepared":
            raise StoreError(f"episode {episode.episode_id} is {episode.state}, not prepared")
        return await self._to_the_end(self._write_outcome(episode, {"open"}))

    async def finish_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write an ended or aborted episode.

        The first outcome stands: an episode that is over is returned as stored.

        :raises StoreError: the episode is unknown, or `episode` is open or prepared.
        """
        if episode.state in ("open", "prepared"):
            raise StoreError(
                f"episode {episode.episode_id} has no outcome to store: it is {episode.state}"
            )
        return await self._to_the_end(self._write_outcome(episode, {"open", "prepared"}))

    async def give_up(self, episode_id: str) -> EpisodeRecord:
        """Record that an aborted episode will not be retried.

        :return: the stored episode.
        :raises StoreError: the episode is unknown, or was not aborted.
        """

        def final(stored: EpisodeRecord) -> EpisodeRecord:
            if stored.state != "aborted":
                raise StoreError(
                    f"cannot give up episode {episode_id}: it is {stored.state}, and only an "
                    "aborted episode can be given up"
                )
            return stored if stored.final else replace(stored, final=True)

        return await self._to_the_end(self._change(episode_id, final))

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode, None if it is unknown."""
        return await self._store.get_episode(episode_id)

    async def claimed(self, claim_hash: str) -> EpisodeRecord | None:
        """Return the episode of a claim by its hash; None for "" and for an unknown hash."""
        episode_id = self._claims.get(claim_hash)
        return None if episode_id is None else await self._store.get_episode(episode_id)

    async def adopt(self, claim_hash: str) -> EpisodeRecord | None:
        """Add the episode of a claim whose write failed, if it was carried out nevertheless.

        :return: the episode, None if there is none, or if it was added before.
        """
        for episode in list(self._in_doubt.get(claim_hash, ())):
            stored = await self._store.get_episode(episode.episode_id)
            # Another call of this may have added it meanwhile.
            if stored is not None and self._in_doubt.pop(claim_hash, None) is not None:
                self._enter(stored)
                return stored
        return None

    async def joint_parts(self, joint_ids: Iterable[str]) -> dict[str, EpisodeRecord]:
        """Return the parts of joint episodes by joint id, without unknown ones."""
        parts = {}
        for joint_id in joint_ids:
            if (episode_id := self._joint.get(joint_id)) is None:
                continue
            if (episode := await self._store.get_episode(episode_id)) is not None:
                parts[joint_id] = episode
        return parts

    async def episodes(
        self, *, state: EpisodeState | None = None, batched: bool | None = None
    ) -> list[EpisodeRecord]:
        """Read episodes from the store, in the order of their claims."""
        episodes = self._store.episodes(EpisodeQuery(state))
        return [e async for e in episodes if batched in (None, e.batch_id is not None)]

    def select(self, query: EpisodeQuery) -> AsyncIterator[EpisodeRecord]:
        """Iterate over episodes, as `SampleStore.episodes` does."""
        return self._store.episodes(query)

    def loose(self, *states: EpisodeState) -> list[EpisodeRecord]:
        """Return episodes in these states that have no batch, in the order of their claims.

        Finished episodes are included only if they are train episodes: others never get a batch.
        """
        return [episode for episode in self._loose.values() if episode.state in states]

    def add_call(self, call: Call) -> Awaitable[None]:
        """Record one model call.

        :raises StoreError: its episode is unknown, or a call with its id exists.
        """
        return self._store.append(call)

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Return calls by episode, as `SampleStore.calls` does."""
        return await self._store.calls(episode_ids)

    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """Return the scores of an episode's calls, as `SampleStore.scores` does."""
        return await self._store.scores(episode_id)

    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch and assign its episodes to it, all or nothing.

        :raises StoreError: an episode is not ended (or aborted, for `aborted_ids`), or has a batch.
        """
        await self._to_the_end(self._add_batch(batch))

    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Return batches, as `SampleStore.batches` does."""
        batches = await self._store.batches(after_step=after_step, refused=refused)
        for batch in batches:
            # Its write may have been carried out although it failed.
            self._batched(batch)
        return batches

    async def refuse_batch(self, batch: BatchRecord, reason: str) -> None:
        """Record that a batch must not be trained; it keeps its episodes.

        :param batch: its step is that of the stored batch, or an earlier one.
        :raises StoreError: the batch is unknown, or was refused before.
        """
        async with self._batching:
            stored = await self._waiting_batch(batch)
            await self._store.append(replace(stored, refused=reason))
            await self._ignore_rewards(stored.episode_ids)

    async def split_batch(self, batch: BatchRecord, quarantined: BatchRecord) -> None:
        """Move episodes of a batch to a new refused batch, all or nothing.

        :param batch: as for `refuse_batch`.
        :param quarantined: the new batch, with the reason in `refused`.
        :raises StoreError: an episode is not an ended one of `batch`.
        """
        async with self._batching:
            stored = await self._waiting_batch(batch)
            for episode_id in quarantined.episode_ids:
                if episode_id not in stored.episode_ids:
                    raise StoreError(
                        f"cannot split batch {stored.batch_id}: it has no ended episode "
                        f"{episode_id}"
                    )
            moved = set(quarantined.episode_ids)
            kept = [episode_id for episode_id in stored.episode_ids if episode_id not in moved]
            await self._store.append(replace(stored, episode_ids=kept), quarantined)
            await self._ignore_rewards(quarantined.episode_ids)

    async def divide_batch(self, batch: BatchRecord, parts: Sequence[Sequence[str]]) -> None:
        """Divide a batch into one for each part, all or nothing.

        They are trained one after the other; later batches move to later steps.

        :param batch: as for `refuse_batch`; it keeps its id, and the episodes of the first part.
        :param parts: ids of all its episodes.
        :raises StoreError: the batch is unknown, was refused, or has other episodes.
        """
        async with self._batching:
            stored = await self._waiting_batch(batch)
            if sorted(chain.from_iterable(parts)) != sorted(stored.episode_ids):
                raise StoreError(
                    f"cannot divide batch {stored.batch_id}: the parts do not have its episodes"
                )
            first, *others = parts
            records = [replace(stored, episode_ids=list(first))]
            for number, part in enumerate(others, 1):
                records.append(
                    replace(
                        stored,
                        batch_id=secrets.token_hex(8),
                        step=stored.step + number,
                        episode_ids=list(part),
                        aborted_ids=[],
                    )
                )
            later = await self._store.batches(after_step=stored.step)
            records += [replace(waiting, step=waiting.step + len(others)) for waiting in later]
            await self._store.append(*records)

    async def add_step(self, step: StepRecord) -> None:
        """Record a finished step and the scores of its calls.

        A repeated step number replaces the step and all its scores, because a resumed run trains
        steps again. The batch is assigned to this step.

        :raises StoreError: a call is unknown.
        """
        async with self._batching:
            # The batch is stored with a later step if an earlier batch was refused.
            later = await self._store.batches(after_step=step.step)
            batches = [
                replace(batch, step=step.step) for batch in later if batch.batch_id == step.batch_id
            ]
            await self._store.append(*batches, step)

    async def rewind(self, step: int, *, discard: BatchRecord | None = None) -> None:
        """Forget the steps after `step` and their scores.

        Their weights are lost, and their batches are trained again.

        :param discard: refuse these batches instead, with the reason in its `BatchRecord.refused`.
            This batch is stored as refused too, with all train episodes that have ended or were
            aborted and have no batch. If there are none, it is not stored.
        """
        await self._to_the_end(self._rewind(step, discard))

    async def steps(self) -> list[StepRecord]:
        """Return all finished steps in order."""
        return await self._store.steps()

    def group_counts(
        self, groups: Iterable[str], *, kind: EpisodeKind, client_id: str
    ) -> dict[str, GroupCount]:
        """Count a client's episodes by group; prepared ones count as open."""
        return {
            group: replace(self._groups.get((client_id, kind, group), _NO_EPISODES))
            for group in groups
        }

    async def evaluation_counts(self, *, pass_reward: float) -> list[EvaluationCount]:
        """Count all finished evaluation episodes by client, tag, policy version and task.

        The episodes are read from the store, because a configuration may change which ones pass.

        :param pass_reward: the least reward of an episode that passes.
        :return: in order of policy version.
        """
        counter = EvaluationCounter(pass_reward)
        try:
            async for episode in self._store.episodes(EpisodeQuery(kind="eval")):
                counter.add(episode)
            return counter.counts()
        except TypeError as error:
            raise DamagedRecordError(
                f"cannot count an evaluation episode of the store ({error}): restore the "
                "store from a backup, or start with another run_dir"
            ) from error

    async def counters(self) -> dict[str, int]:
        """Return totals over the whole run.

        These are ``episodes``, ``episodes_ended`` and ``episodes_aborted``; of the aborted ones,
        ``aborted_CAUSE`` for each `AbortCause`; of joint episodes, ``joint_ended`` and
        ``joint_aborted``; and the fields of `CallTotals`.
        """
        return {**self._totals, **asdict(await self._store.call_totals())}

    async def _to_the_end(self, write: Coroutine[Any, Any, T]) -> T:
        """Complete a write and its count even if the caller is cancelled."""
        task = asyncio.ensure_future(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _add_episode(self, episode: EpisodeRecord) -> None:
        claim, joint = episode.claim_hash, episode.joint
        if claim in self._claims:
            raise StoreError(f"cannot add episode {episode.episode_id}: its claim already has one")
        if joint is not None and joint.joint_id in self._joint:
            raise StoreError(
                f"cannot add episode {episode.episode_id}: its joint episode already has one"
            )
        # Index before the write, so that of two concurrent writes only one happens.
        self._index(episode)
        try:
            await self._store.append(episode)
        except BaseException:
            if claim:
                del self._claims[claim]
                self._in_doubt.setdefault(claim, []).append(episode)
            if joint is not None:
                del self._joint[joint.joint_id]
            raise
        self._in_doubt.pop(claim, None)
        self._enter(episode)

    async def _write_outcome(self, outcome: EpisodeRecord, states: set[str]) -> EpisodeRecord:
        """Write the outcome of an episode that is in one of `states`."""
        fields = {name: getattr(outcome, name) for name in _OUTCOME}

        def closed(stored: EpisodeRecord) -> EpisodeRecord:
            return replace(stored, **fields) if stored.state in states else stored

        return await self._change(outcome.episode_id, closed)

    async def _change(
        self, episode_id: str, change: Callable[[EpisodeRecord], EpisodeRecord]
    ) -> EpisodeRecord:
        """Apply `change` to an episode and write the result; changes of one episode are serial.

        :return: the stored episode.
        """
        # The lock lives as long as a task holds it or waits for it.
        turn = self._turns.setdefault(episode_id, asyncio.Lock())
        async with turn:
            stored = await self._stored(episode_id)
            if stored is None:
                raise StoreError(f"cannot change episode {episode_id}: it is not in the store")
            changed = change(stored)
            if changed is not stored:
                try:
                    await self._store.append(changed)
                except StoreUnavailableError:
                    self._doubtful.add(episode_id)
                    raise
                self._changed(stored, changed)
            return changed

    async def _stored(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode as it is in the store, from memory where that is certain."""
        known = self._loose.get(episode_id)
        if known is not None and episode_id not in self._doubtful:
            return known
        stored = await self._store.get_episode(episode_id)
        self._doubtful.discard(episode_id)
        if known is not None and stored is not None and stored != known:
            # A write was carried out although it failed.
            self._changed(known, stored)
        return stored

    def _changed(self, before: EpisodeRecord, after: EpisodeRecord) -> None:
        """Count an episode whose outcome was written."""
        self._count(before, -1)
        self._count(after, 1)
        if after.episode_id in self._loose:
            self._loose[after.episode_id] = after
            self._drop_if_done(after)

    async def _add_batch(self, batch: BatchRecord) -> None:
        async with self._batching:
            taken = set()
            for episode_id in (*batch.episode_ids, *batch.aborted_ids):
                if episode_id in taken:
                    raise StoreError(
                        f"cannot add batch {batch.batch_id}: it lists episode {episode_id} twice"
                    )
                taken.add(episode_id)
                if episode_id in self._loose:
                    continue
                episode = await self._store.get_episode(episode_id)
                if episode is not None and episode.batch_id is not None:
                    raise StoreError(
                        f"cannot add batch {batch.batch_id}: episode {episode_id} is already "
                        f"in batch {episode.batch_id}"
                    )
            await self._store.append(batch)
            self._batched(batch)

    async def _rewind(self, step: int, discard: BatchRecord | None) -> None:
        # Also counted at the end: those who read meanwhile may have seen either.
        self.rewinds += 1
        async with self._batching:
            if discard is None:
                await self._store.append(RewindRecord(step))
                self.rewinds += 1
                return
            lost = [
                replace(batch, refused=discard.refused)
                for batch in await self.batches(after_step=step)
            ]
            rest = self.loose("ended", "aborted")
            if rest:
                discard = replace(
                    discard,
                    episode_ids=[e.episode_id for e in rest if e.state == "ended"],
                    aborted_ids=[e.episode_id for e in rest if e.state == "aborted"],
                )
                lost.append(discard)
            await self._store.append(RewindRecord(step), *lost)
            self.rewinds += 1
            self._batched(discard)
            for batch in lost:
                await self._ignore_rewards(batch.episode_ids)

    async def _waiting_batch(self, batch: BatchRecord) -> BatchRecord:
        """Return a batch that is to be trained, as stored."""
        # A batch that a run has in memory only moves to earlier steps, so the stored step is not
        # before that of `batch`.
        for stored in await self._store.batches(after_step=batch.step - 1):
            if stored.batch_id == batch.batch_id:
                return stored
        raise StoreError(f"cannot refuse batch {batch.batch_id}: it is not in the store")

    def _enter(self, episode: EpisodeRecord) -> None:
        """Index and count an episode that is in the store."""
        self._index(episode)
        self._totals["episodes"] += 1
        self._count(episode, 1)
        if episode.batch_id is None:
            self._loose[episode.episode_id] = episode
            self._drop_if_done(episode)

    def _index(self, episode: EpisodeRecord) -> None:
        if episode.claim_hash:
            self._claims[episode.claim_hash] = episode.episode_id
        if episode.joint is not None:
            self._joint[episode.joint.joint_id] = episode.episode_id

    def _count(self, episode: EpisodeRecord, by: int) -> None:
        """Add `by` to the counts of an episode's state."""
        name = _COUNTED_AS.get(episode.state)
        if name is None:
            # The record is damaged: count it nowhere.
            return
        key = (episode.client_id, episode.kind, episode.group)
        count = self._groups.setdefault(key, GroupCount())
        setattr(count, name, getattr(count, name) + by)
        if name == "ended":
            count.add_reward(episode.reward or 0.0, by)
        if name != "open":
            self._totals[f"episodes_{episode.state}"] += by
            if episode.joint is not None:
                self._totals[f"joint_{episode.state}"] += by
        if f"aborted_{episode.cause}" in self._totals:
            self._totals[f"aborted_{episode.cause}"] += by

    async def _ignore_rewards(self, episode_ids: Iterable[str]) -> None:
        """Take the rewards of episodes in a refused batch out of those of their groups."""
        for episode_id in episode_ids:
            try:
                episode = await self._store.get_episode(episode_id)
            except DamagedRecordError:
                continue
            if episode is not None and episode.state == "ended":
                key = (episode.client_id, episode.kind, episode.group)
                self._groups[key].add_reward(episode.reward or 0.0, -1)

    def _drop_if_done(self, episode: EpisodeRecord) -> None:
        """Forget an evaluation episode that is over."""
        if episode.kind != "train" and episode.state in ("ended", "aborted"):
            del self._loose[episode.episode_id]

    def _batched(self, batch: BatchRecord) -> None:
        for episode_id in (*batch.episode_ids, *batch.aborted_ids):
            self._loose.pop(episode_id, None)
