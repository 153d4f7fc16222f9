"""Decide which episodes may start and when a batch is full: no I/O, no clock."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from ajet_core.interfaces import EpisodeKind, EpisodeRecord
from ajet_core.protocol import (
    BatchConfig,
    BatchProgress,
    MixtureConfig,
    Quarantine,
    RolloutConfig,
    TagProgress,
)
from ajet_server.admission.draws import Draws
from ajet_server.admission.quarantine import TaskFailures
from ajet_server.admission.slots import Slots
from ajet_server.admission.task_group import BatchCounts, TaskGroup


class Taken(NamedTuple):
    """Ids of the episodes that belong to a batch.

    :param ended: the episodes to train.
    :param aborted: the episodes that were aborted while the batch was filled.
    """

    ended: list[str]
    aborted: list[str]


# Causes after which runners attempt a task again.
_TRIED_AGAIN = frozenset({"error", "timeout", "rate_limit", "cancelled"})


class BatchBuilder:
    """Fills one batch after the other with ended train episodes.

    An episode is admitted only if there is a slot for it (`Slots`). So no episode samples with
    weights that are about to change, or that will be too old when it is trained.

    An exact batch fills its slots with the complete tasks that have the oldest samples. Other
    batches take every complete task. A task with open episodes is not split: all of it goes into
    a later batch. A batch waits for tasks that would be too old for the next one
    (`Slots.last_chance`), so no task loses its slow episodes. Without a mixture, the batch takes
    all of these tasks, even beyond its slots: silent clients that return may have more under way.

    :param failures: the recorded failures of tasks in earlier batches.
    :param slots: the slots of the batches; by default one batch at a time, without a mixture.
    :ivar draws: makes the ids of an exact run's episodes; None if the run is not exact.
    """

    def __init__(
        self,
        config: BatchConfig,
        failures: TaskFailures | None = None,
        slots: Slots | None = None,
        draws: Draws | None = None,
    ) -> None:
        self.draws = draws
        self._config = config
        self._failures = TaskFailures(config.max_aborts_per_task) if failures is None else failures
        self.slots = Slots(config, RolloutConfig(), None) if slots is None else slots
        self._groups: dict[str, TaskGroup] = {}
        # The sums of all groups by pool, updated with each change: adding up thousands of groups
        # at each end would be slow.
        self._sums: dict[str, BatchCounts] = {}
        self._decided: set[str] = set()
        self._draining = False

    @property
    def decided(self) -> Set[str]:
        """Groups that hold a slot and have room for more episodes."""
        return frozenset() if self._draining else self._decided

    def takes(self, tag: str) -> bool:
        """Return whether a new group of `tag` can get a slot."""
        pool = self.slots.pool(tag)
        return not self._draining and self._under_way(pool) < self.slots.limits.get(pool, 0)

    def refuses(self, client_id: str, task_id: str) -> str | None:
        """Return why a client's task gets no more episodes, None unless it is quarantined."""
        return self._failures.refusal(client_id, task_id)

    def may_begin(self, group: str, tag: str = "") -> bool:
        """Return whether one more episode of `group` may start now, in this batch."""
        if self._draining:
            return False
        if (
            self._config.full_by != "episodes"
            and (its_group := self._groups.get(group)) is not None
        ):
            size = self._config.episodes_per_task
            if its_group.holds_slot(size) or not (its_group.room(size) or its_group.spent(size)):
                return its_group.room(size) > 0
        return self.takes(tag)

    def starves(self, tag: str) -> bool:
        """Return whether the batch lacks episodes of the pool of `tag` while none is open."""
        pool = self.slots.pool(tag)
        counts = self._sums.get(pool, BatchCounts())
        needed = self.slots.quotas.get(pool, 0)
        busy = self._draining or counts.open or self.slots.training
        return not busy and self._ready(pool) < needed

    def new_id(self, group: str, kind: EpisodeKind, version: int) -> str:
        """Return an id for a new episode.

        :param group: the name under which its group is stored.
        :param version: of the weights at its claim.
        """
        if self.draws is None:
            return secrets.token_hex(12)
        if kind == "eval":
            return self.draws.evaluation_id(group, version)
        known = self._groups.get(group, TaskGroup())
        others = [*known.open, *known.silent, *known.ended, *known.given_up]
        return self.draws.episode_id(group, version, others)

    def drain(self) -> None:
        """Admit no more episodes until `take`."""
        self._draining = True

    def restore(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Restore a partly filled batch from its open episodes and those that are over.

        Replay the episodes in their original order, so that a task that was restarted stays
        restarted. The failures recorded over all batches do not change.
        """
        moments: list[tuple[float, bool, EpisodeRecord]] = []
        for episode in episodes:
            moments.append((episode.created_at, False, episode))
            # A prepared episode has an outcome but is not over.
            if episode.state in {"ended", "aborted"}:
                # A clock that was set back must not let an episode end before it started.
                over_at = max(episode.created_at, episode.finished_at or 0.0)
                moments.append((over_at, True, episode))
        for _, over, episode in sorted(moments, key=lambda moment: moment[:2]):
            if not over:
                self.opened(episode)
            elif episode.state == "ended":
                self._group(episode).end(episode)
                self._count(episode.group)
            else:
                self._abort(episode)
                self._count(episode.group)

    def opened(self, episode: EpisodeRecord) -> None:
        """Record that an admitted episode started."""
        group = self._group(episode)
        if group.spent(self._config.episodes_per_task):
            group.begin_anew()
        group.begin(episode)
        self._count(episode.group)

    def withdrawn(self, episode: EpisodeRecord) -> None:
        """Undo `opened` for an episode that never reached its client; it counts as no failure."""
        if (group := self._groups.get(episode.group)) is not None:
            group.close(episode)
            self._count(episode.group)

    def silent(self, episode: EpisodeRecord) -> None:
        """Record that the client of an open episode is silent: its slot is free for others.

        At most `episodes_per_task` episodes of a group give up their slots. Otherwise clients that
        start episodes and never end them would make a batch grow.

        An exact batch waits for its episodes until their leases run out: which clients are silent
        depends on timing, and the episodes that replaced theirs would draw other numbers.
        """
        if self.draws is not None:
            return
        if (group := self._groups.get(episode.group)) is not None:
            group.fall_silent(episode)
            self._count(episode.group)

    def wait_less(self) -> bool:
        """Record that some time has passed; return whether slots became free.

        A task keeps its slot for two calls of this after its last episode ended. In an exact batch
        it keeps it for good, because which tasks are slow depends on timing.
        """
        if self.draws is not None:
            return False
        freed = False
        for name in [name for name, group in self._groups.items() if group.awaits]:
            group = self._groups[name]
            group.wait_less()
            before = group.counted.active
            self._add_up(name, group)
            freed |= group.counted.active < before
        return freed

    def heard(self, episode: EpisodeRecord) -> None:
        """Undo `silent`; a task may then get more episodes than the batch needs."""
        group = self._groups.get(episode.group)
        if group is not None and episode.episode_id in group.silent | group.overdue:
            group.begin(episode)
            self._count(episode.group)

    def ended(self, episode: EpisodeRecord) -> None:
        """Record an episode that ended with a reward."""
        self._group(episode).end(episode)
        self._failures.succeeded(episode)
        self._count(episode.group)

    def aborted(self, episode: EpisodeRecord) -> Quarantine | None:
        """Record an aborted episode.

        :return: the entry if this abort quarantines the task.
        """
        self._abort(episode)
        entry = self._failures.failed(episode)
        self._count(episode.group)
        return entry

    def _abort(self, episode: EpisodeRecord) -> None:
        # In an exact batch, a task that will be attempted again keeps its slot: which claim comes
        # first depends on timing.
        awaited = self.draws is not None and episode.cause in _TRIED_AGAIN and not episode.final
        limit = self._config.max_aborts_per_task
        self._group(episode).abort(episode, limit, awaited=awaited)

    def given_up(self, episode: EpisodeRecord) -> None:
        """Record that an aborted episode of this batch will not be retried; ignore others."""
        group = self._groups.get(episode.group)
        if group is not None and episode.episode_id in group.aborted:
            group.given_up.add(episode.episode_id)
            self._count(episode.group)

    def readmit(self) -> None:
        """Allow all tasks to be tried again."""
        self._failures.forget()
        # A task that may be tried again is not complete, so the batch may not be full.
        self._draining = False
        for name, group in self._groups.items():
            group.readmit()
            self._count(name)

    def is_full(self) -> bool:
        """Return whether the batch can be trained."""
        return self.is_complete() and next(self._awaited(), None) is None

    def is_complete(self) -> bool:
        """Return whether the batch has all it needs; old tasks may still delay it."""
        return all(self._ready(pool) >= quota for pool, quota in self.slots.quotas.items())

    def awaited(self) -> list[str]:
        """Return the ids of the open episodes that a complete batch waits for."""
        return [episode_id for group in self._awaited() for episode_id in group.open]

    def take(self) -> Taken:
        """Return the episodes of the full batch, and start the next one."""
        taken = self._take_slots() if self.slots.exact else self._take_all()
        self.slots.next()
        self._draining = False
        self._count_anew()
        return taken

    def trained(self) -> None:
        """Record that the batch taken last is trained."""
        self.slots.trained()

    def block(self, tags: Set[str]) -> None:
        """Give the slots of tags that no client rolls out to the other tags."""
        self.slots.block(tags, {pool: self._ready(pool) for pool in self._sums})

    def hand_over(self, wanted: Set[str]) -> bool:
        """Give the rest of the batch to waiting tags, as `Slots.hand_over` does."""
        return self.slots.hand_over(wanted, {pool: self._ready(pool) for pool in self._sums})

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Use another mixture from the next batch on."""
        self.slots.change(mixture)
        # If there was no mixture and the next batch is still empty, the pools change now.
        self._count_anew()

    def _awaited(self) -> Iterator[TaskGroup]:
        """Return the groups that would be trained too late if the batch were made now."""
        if not self.slots.waits:
            return
        size = self._config.episodes_per_task
        for pool in self.slots.quotas:
            claimed = range(self.slots.last_chance, self._cannot_stay(pool) + 1)
            for _, group in self._of_pool(pool) if claimed else ():
                if self._config.full_by == "episodes":
                    waits = any(version in claimed for version in group.open.values())
                else:
                    follows = bool(group.awaits) and not self._draining
                    incomplete = bool(group.open or follows) and not group.complete(size)
                    waits = incomplete and any(v in claimed for v in group.versions())
                if waits:
                    yield group

    def _cannot_stay(self, pool: str) -> int:
        """Return the newest version up to which later batches cannot train all that would be left.

        A tag does not have slots in every batch, so this can be newer than `Slots.last_chance`.
        If all of it can be trained later, the result is `last_chance - 1`.
        """
        last_chance, later = self.slots.last_chance, self.slots.later(pool)
        newest = last_chance - 1
        left = sorted(version for version in self._left(pool) if version >= last_chance)
        for count, version in enumerate(left, 1):
            if version - last_chance < len(later) and count > later[version - last_chance]:
                newest = version
        return newest

    def _left(self, pool: str) -> Iterator[int]:
        """Yield the versions of what the batch would leave in `pool` if it were made now."""
        if self._config.full_by == "episodes":
            ended = [e.claim_version for _, g in self._of_pool(pool) for e in g.ended.values()]
            yield from sorted(ended)[self.slots.quotas[pool] :]
            for _, group in self._of_pool(pool):
                yield from group.open.values()
            return
        taken = self._in_slots(pool)
        for name, group in self._of_pool(pool):
            if group.counted.active and name not in taken:
                # Samples that are too old already do not count for the rest of the group.
                young = [v for v in group.versions() if v >= self.slots.last_chance]
                yield from [min(young)] if young else ()

    def _in_slots(self, pool: str) -> set[str]:
        """Return the groups that take the slots of `pool`: complete, with the oldest samples.

        These are mostly the groups that started first, but an early task may have been retried.
        """
        ready = [
            (min(group.versions()), name)
            for name, group in self._of_pool(pool)
            if group.counted.ready
        ]
        ready.sort(key=lambda one: one[0])
        return {name for _, name in ready[: self.slots.quotas.get(pool, 0)]}

    def _of_pool(self, pool: str) -> Iterator[tuple[str, TaskGroup]]:
        return (item for item in self._groups.items() if self.slots.pool(item[1].tag) == pool)

    def _take_all(self) -> Taken:
        taken = Taken([], [])
        rest: dict[str, TaskGroup] = {}
        for name, group in self._groups.items():
            whole = self._config.full_by != "episodes" and group.open
            after = group if whole else self._take_group(group, taken)
            if after.open or after.silent:
                rest[name] = after
        self._groups = rest
        return Taken(taken.ended, sorted(taken.aborted))

    def _take_episodes(self) -> Taken:
        """Take the ended episodes of each pool that were claimed with the oldest weights."""
        taken = Taken([], [])
        left = dict(self.slots.quotas)
        ended = [episode for group in self._groups.values() for episode in group.ended.values()]
        for episode in sorted(ended, key=lambda episode: episode.claim_version):
            pool = self.slots.pool(self._groups[episode.group].tag)
            if left.get(pool, 0) > 0 or (
                self.slots.mixture is None and episode.claim_version <= self.slots.last_chance
            ):
                left[pool] = left.get(pool, 0) - 1
                taken.ended.append(episode.episode_id)
        some = set(taken.ended)
        rest: dict[str, TaskGroup] = {}
        for name, group in self._groups.items():
            taken.aborted.extend(group.aborted | group.forgotten)
            after = group.rest(some)
            if after.open or after.silent or after.ended:
                rest[name] = after
        self._groups = rest
        return Taken(taken.ended, sorted(taken.aborted))

    def _take_slots(self) -> Taken:
        """Take the groups in each pool's slots, and those that would never be complete.

        Ended episodes of a tag that has left the mixture are not trained. They are kept in case
        the tag returns. Their number is bounded by what was under way when the mixture changed,
        because no episode of the tag starts after that.
        """
        if self._config.full_by == "episodes":
            return self._take_episodes()
        taken = Taken([], [])
        in_slots = {name for pool in self.slots.quotas for name in self._in_slots(pool)}
        rest: dict[str, TaskGroup] = {}
        for name, group in self._groups.items():
            pool = self.slots.pool(group.tag)
            due = self.slots.mixture is None and group.due(self.slots.last_chance)
            if name in in_slots or (group.counted.ready and due):
                after = self._take_group(group, taken)
            elif pool not in self.slots.quotas:
                after = group
            elif group.counted.ready or group.counted.active:
                group.idle = False
                after = group
            elif self.slots.rolls_on and not group.idle and not due:
                # The client may be between two episodes.
                group.idle = True
                after = group
            else:
                after = self._take_group(group, taken)
            if after.open or after.silent or after.ended or after.aborted or after.forgotten:
                rest[name] = after
        self._groups = rest
        return Taken(taken.ended, sorted(taken.aborted))

    @staticmethod
    def _take_group(group: TaskGroup, taken: Taken) -> TaskGroup:
        taken.ended.extend(group.ended)
        taken.aborted.extend(group.aborted | group.forgotten)
        return group.rest()

    def progress(self) -> BatchProgress:
        """Return how full the batch is."""
        return BatchProgress(
            full_by=self._config.full_by,
            needed=sum(self.slots.quotas.values()),
            ready=sum(
                # Report at most the quota of each pool.
                min(self._ready(pool), quota) if self.slots.exact else self._ready(pool)
                for pool, quota in self.slots.quotas.items()
            ),
            open_episodes=sum(counts.open for counts in self._sums.values()),
            quarantined=len(self._failures),
        )

    @property
    def most_episodes(self) -> int:
        """The most episodes that may have slots at any time."""
        by_episodes = self._config.full_by == "episodes"
        return self.slots.most * (1 if by_episodes else self._config.episodes_per_task)

    @property
    def zero_variance(self) -> int:
        """The number of complete tasks that do not count because all their rewards are equal."""
        if self._config.full_by != "differing_tasks":
            return 0
        size = self._config.episodes_per_task
        return sum(
            g.complete(size) and g.worth(size) and not g.differs() for g in self._groups.values()
        )

    @property
    def episodes_per_task(self) -> int:
        """The number of episodes that each task needs."""
        return self._config.episodes_per_task

    def lacking(self) -> list[tuple[str, int, int]]:
        """Return the incomplete groups, with their numbers of ended and of open episodes."""
        size = self._config.episodes_per_task
        return [
            (name, len(group.ended), len(group.open))
            for name, group in self._groups.items()
            if self.slots.pool(group.tag) in self.slots.quotas
            and not (group.complete(size) and group.worth(size))
            and (group.ended or group.open or group.given_up)
        ]

    def tags(self) -> dict[str, TagProgress] | None:
        """Return how full the batch is by tag of the mixture; None without a mixture."""
        if self.slots.mixture is None:
            return None
        return {
            tag: TagProgress(
                ratio=ratio,
                slots=self.slots.quotas.get(tag, 0),
                ready=self._ready(tag),
                under_way=self._under_way(tag),
                blocked=tag in self.slots.blocked,
            )
            for tag, ratio in self.slots.ratios.items()
        }

    def _group(self, episode: EpisodeRecord) -> TaskGroup:
        return self._groups.setdefault(episode.group, TaskGroup(episode.tag))

    def _count(self, name: str) -> None:
        """Update the sums after a change of a group."""
        group = self._groups[name]
        group.free_slots(self._config.episodes_per_task)
        group.idle = False
        self._add_up(name, group)

    def _count_anew(self) -> None:
        self._sums, self._decided = {}, set()
        for name, group in self._groups.items():
            group.counted = BatchCounts()
            self._add_up(name, group)

    def _add_up(self, name: str, group: TaskGroup) -> None:
        counts = group.counts(self._config)
        pool = self.slots.pool(group.tag)
        before = self._sums.get(pool, BatchCounts())
        self._sums[pool] = BatchCounts(
            *(old + new - was for old, new, was in zip(before, counts, group.counted, strict=True))
        )
        group.counted = counts
        if self._config.full_by == "episodes":
            return
        size = self._config.episodes_per_task
        if group.holds_slot(size) and group.room(size):
            self._decided.add(name)
        else:
            self._decided.discard(name)

    def _ready(self, pool: str) -> int:
        counts = self._sums.get(pool, BatchCounts())
        return counts.ended if self._config.full_by == "episodes" else counts.ready

    def _under_way(self, pool: str) -> int:
        counts = self._sums.get(pool, BatchCounts())
        if self._config.full_by == "episodes":
            return counts.open + counts.ended
        return counts.active
