"""Which episodes may start and when a batch is full: pure bookkeeping, no I/O, no time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import (
    BatchConfig,
    BatchProgress,
    MixtureConfig,
    RolloutConfig,
    SetAside,
    TagProgress,
)
from ajet_server.admission.places import Places
from ajet_server.admission.task_group import BatchCounts, TaskGroup
from ajet_server.episodes.set_aside import TaskFailures


class Taken(NamedTuple):
    """Ids of the episodes that belong to a batch.

    :param ended: what is trained.
    :param aborted: what was aborted while it was filled.
    """

    ended: list[str]
    aborted: list[str]


class BatchBuilder:
    """Fills one batch after the other with ended train episodes.

    An episode is admitted only if there is a place for it (`Places`), so that nothing is rolled out with weights
    that are about to change, or that are too old when it is trained.

    Exact batches are made of their places: of the complete tasks, those with the oldest samples. Other batches take every
    complete task. A task with open episodes stays whole and belongs to a later batch. A batch waits for the tasks that
    would be too old for the next one (`Places.last_chance`), so no task loses its slow episodes. Where no ratios are kept it
    takes all of these: clients that were silent and come back may have more under way than it has places for.

    :param failures: what is known of the tasks from before.
    :param places: default: those of a batch at a time, without a mixture.
    """

    def __init__(
        self,
        config: BatchConfig,
        failures: TaskFailures | None = None,
        places: Places | None = None,
    ) -> None:
        self._config = config
        self._failures = TaskFailures(config.max_aborts_per_task) if failures is None else failures
        self.places = Places(config, RolloutConfig(), None) if places is None else places
        self._groups: dict[str, TaskGroup] = {}
        # By lane, of all its groups; kept up to date, because with thousands of them each end would have to add
        # them up.
        self._sums: dict[str, BatchCounts] = {}
        self._decided: set[str] = set()
        self._draining = False

    @property
    def decided(self) -> Set[str]:
        """Groups that have a place of their own left, whatever the others do."""
        return frozenset() if self._draining else self._decided

    def takes(self, tag: str) -> bool:
        """Whether there is a place for episodes of `tag` that belongs to no group yet."""
        lane = self.places.lane(tag)
        return not self._draining and self._under_way(lane) < self.places.limits.get(lane, 0)

    def refuses(self, client_id: str, task_id: str) -> str | None:
        """Why a client's task gets no more episodes, if it is set aside."""
        return self._failures.refusal(client_id, task_id)

    def may_begin(self, group: str, tag: str = "") -> bool:
        """Whether one more episode of `group` may start now, and not only in a later batch."""
        if self._draining:
            return False
        if self._config.full_by != "episodes" and (found := self._groups.get(group)) is not None:
            size = self._config.episodes_per_task
            if found.holds_place(size) or not (found.room(size) or found.spent(size)):
                return found.room(size) > 0
        return self.takes(tag)

    def starves(self, tag: str) -> bool:
        """Whether the batch lacks episodes like those of `tag`, and nobody rolls any out."""
        lane = self.places.lane(tag)
        counts = self._sums.get(lane, BatchCounts())
        needed = self.places.quotas.get(lane, 0)
        busy = self._draining or counts.open or self.places.training
        return not busy and self._ready(lane) < needed

    def drain(self) -> None:
        """Admit nothing more until `take`."""
        self._draining = True

    def restore(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Take up a batch that was begun: episodes that are open, and those that are over and were not taken.

        They are gone through in the order in which it all happened, so that a task that was begun anew
        stays so. What is known of tasks over all batches does not change.
        """
        moments: list[tuple[float, bool, EpisodeRecord]] = []
        for episode in episodes:
            moments.append((episode.created_at, False, episode))
            # What is prepared has its outcome, but is not over.
            if episode.state in {"ended", "aborted"}:
                # A clock that was set back must not let an episode end before it began.
                over_at = max(episode.created_at, episode.finished_at or 0.0)
                moments.append((over_at, True, episode))
        for _, over, episode in sorted(moments, key=lambda moment: moment[:2]):
            if not over:
                self.opened(episode)
            elif episode.state == "ended":
                self._group(episode).end(episode)
                self._count(episode.group)
            else:
                self._group(episode).abort(episode, self._config.max_aborts_per_task)
                self._count(episode.group)

    def opened(self, episode: EpisodeRecord) -> None:
        """Note that an admitted episode started."""
        group = self._group(episode)
        if group.spent(self._config.episodes_per_task):
            group.begin_anew()
        group.begin(episode)
        self._count(episode.group)

    def withdrawn(self, episode: EpisodeRecord) -> None:
        """Undo `opened`: the episode never reached its client, which is nobody's failure."""
        if (group := self._groups.get(episode.group)) is not None:
            group.close(episode)
            self._count(episode.group)

    def silent(self, episode: EpisodeRecord) -> None:
        """Note that the client of an open episode does not answer: its place is free for others.

        At most as many as a task has episodes: clients that only ever begin must not make a batch grow.
        """
        group = self._groups.get(episode.group)
        if group is None or len(group.silent) >= self._config.episodes_per_task:
            return
        if episode.episode_id in group.open:
            group.close(episode)
            group.silent.add(episode.episode_id)
            self._count(episode.group)

    def heard(self, episode: EpisodeRecord) -> None:
        """Undo `silent`; the batch may get more episodes of a task than it asks for."""
        group = self._groups.get(episode.group)
        if group is not None and episode.episode_id in group.silent:
            group.begin(episode)
            self._count(episode.group)

    def ended(self, episode: EpisodeRecord) -> None:
        """Note an episode that ended with a reward."""
        self._group(episode).end(episode)
        self._failures.succeeded(episode)
        self._count(episode.group)

    def aborted(self, episode: EpisodeRecord) -> SetAside | None:
        """Note an aborted episode.

        :return: the note if its task is set aside because of it.
        """
        self._group(episode).abort(episode, self._config.max_aborts_per_task)
        aside = self._failures.failed(episode)
        self._count(episode.group)
        return aside

    def given_up(self, episode: EpisodeRecord) -> None:
        """Note that nobody will try an episode again that was aborted before; of an earlier batch, it changes nothing."""
        group = self._groups.get(episode.group)
        if group is not None and episode.episode_id in group.aborted:
            group.given_up.add(episode.episode_id)
            self._count(episode.group)

    def readmit(self) -> None:
        """Give all tasks another chance."""
        self._failures.forget()
        # A task that may go on is not complete any more, and with it the batch may not be full.
        self._draining = False
        for name, group in self._groups.items():
            group.readmit()
            self._count(name)

    def is_full(self) -> bool:
        """Whether the batch can be trained."""
        return self.is_complete() and next(self._awaited(), None) is None

    def is_complete(self) -> bool:
        """Whether the batch has what it needs, though it may wait for tasks that would be too old for the next one."""
        return all(self._ready(lane) >= quota for lane, quota in self.places.quotas.items())

    def awaited(self) -> list[str]:
        """Ids of the open episodes that a complete batch waits for."""
        return [episode_id for group in self._awaited() for episode_id in group.open]

    def take(self) -> Taken:
        """The episodes of the full batch; the builder goes on with the next one."""
        taken = self._take_places() if self.places.exact else self._take_all()
        self.places.next()
        self._draining = False
        self._count_anew()
        return taken

    def trained(self) -> None:
        """The batch that was taken last is trained."""
        self.places.trained()

    def block(self, tags: Set[str]) -> None:
        """Give the places of tags that nobody rolls out to the others."""
        self.places.block(tags, {lane: self._ready(lane) for lane in self._sums})

    def hand_over(self, wanted: Set[str]) -> bool:
        """As `Places.hand_over`."""
        return self.places.hand_over(wanted, {lane: self._ready(lane) for lane in self._sums})

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Have another mixture from the next batch on."""
        self.places.change(mixture)
        # Where there was none, and the next batch is not filled yet, episodes have other lanes from now on.
        self._count_anew()

    def _awaited(self) -> Iterator[TaskGroup]:
        """Groups whose open episodes would be too old, or would lose others of them, if the batch were made now."""
        if not self.places.waits:
            return
        size = self._config.episodes_per_task
        for lane in self.places.quotas:
            claimed = range(self.places.last_chance, self._cannot_stay(lane) + 1)
            for _, group in self._of_lane(lane) if claimed else ():
                if self._config.full_by == "episodes":
                    waits = any(version in claimed for version in group.open.values())
                else:
                    incomplete = bool(group.open) and not group.complete(size)
                    waits = incomplete and any(v in claimed for v in group.versions())
                if waits:
                    yield group

    def _cannot_stay(self, lane: str) -> int:
        """The newest version up to which more would be left than later batches can train in time.

        A tag does not have places in each of them, so this need not be `Places.last_chance`. If
        everything can stay, it is the version before that.
        """
        last_chance, later = self.places.last_chance, self.places.later(lane)
        found = last_chance - 1
        left = sorted(version for version in self._left(lane) if version >= last_chance)
        for count, version in enumerate(left, 1):
            if version - last_chance < len(later) and count > later[version - last_chance]:
                found = version
        return found

    def _left(self, lane: str) -> Iterator[int]:
        """The versions of the episodes or tasks of `lane` that the batch, if made now, would leave."""
        if self._config.full_by == "episodes":
            ended = [e.claim_version for _, g in self._of_lane(lane) for e in g.ended.values()]
            yield from sorted(ended)[self.places.quotas[lane] :]
            for _, group in self._of_lane(lane):
                yield from group.open.values()
            return
        taken = self._in_places(lane)
        for name, group in self._of_lane(lane):
            if group.counted.active and name not in taken:
                # What is too old already does not make the rest so.
                young = [v for v in group.versions() if v >= self.places.last_chance]
                yield from [min(young)] if young else ()

    def _in_places(self, lane: str) -> set[str]:
        """The groups that take the places of `lane`: the complete ones with the oldest samples.

        Most of them began first, but a task that began early may have been tried again.
        """
        ready = [
            (min(group.versions()), name)
            for name, group in self._of_lane(lane)
            if group.counted.ready
        ]
        ready.sort(key=lambda one: one[0])
        return {name for _, name in ready[: self.places.quotas.get(lane, 0)]}

    def _of_lane(self, lane: str) -> Iterator[tuple[str, TaskGroup]]:
        return (item for item in self._groups.items() if self.places.lane(item[1].tag) == lane)

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
        """Of the ended episodes of each lane those that were claimed with the oldest weights."""
        taken = Taken([], [])
        left = dict(self.places.quotas)
        ended = [episode for group in self._groups.values() for episode in group.ended.values()]
        for episode in sorted(ended, key=lambda episode: episode.claim_version):
            lane = self.places.lane(self._groups[episode.group].tag)
            if left.get(lane, 0) > 0 or (
                self.places.mixture is None and episode.claim_version <= self.places.last_chance
            ):
                left[lane] = left.get(lane, 0) - 1
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

    def _take_places(self) -> Taken:
        """The places of each lane, from the oldest samples on, and what no batch would ever be full of.

        What ended of a tag that has no part in the mixture any more is not trained, and kept in case that it has one
        again: at most what was under way when the mixture was changed, for nothing of the tag begins after that.
        """
        if self._config.full_by == "episodes":
            return self._take_episodes()
        taken = Taken([], [])
        in_places = {name for lane in self.places.quotas for name in self._in_places(lane)}
        rest: dict[str, TaskGroup] = {}
        for name, group in self._groups.items():
            lane = self.places.lane(group.tag)
            due = self.places.mixture is None and group.due(self.places.last_chance)
            if name in in_places or (group.counted.ready and due):
                after = self._take_group(group, taken)
            elif lane not in self.places.quotas:
                after = group
            elif group.counted.ready or group.counted.active:
                group.idle = False
                after = group
            elif self.places.rolls_on and not group.idle and not due:
                # Its client may only be between two episodes.
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
        """How full the batch is."""
        return BatchProgress(
            full_by=self._config.full_by,
            needed=sum(self.places.quotas.values()),
            ready=sum(
                # A lane has no more places than its quota.
                min(self._ready(lane), quota) if self.places.exact else self._ready(lane)
                for lane, quota in self.places.quotas.items()
            ),
            open_episodes=sum(counts.open for counts in self._sums.values()),
            set_aside=len(self._failures),
        )

    @property
    def zero_variance(self) -> int:
        """Complete tasks that do not count because all their rewards are equal."""
        if self._config.full_by != "differing_tasks":
            return 0
        size = self._config.episodes_per_task
        return sum(
            g.complete(size) and g.worth(size) and not g.differs() for g in self._groups.values()
        )

    @property
    def episodes_per_task(self) -> int:
        """Episodes that a task is to have."""
        return self._config.episodes_per_task

    def lacking(self) -> list[tuple[str, int, int]]:
        """Groups that are begun and not complete, with how many episodes have ended and are open."""
        size = self._config.episodes_per_task
        return [
            (name, len(group.ended), len(group.open))
            for name, group in self._groups.items()
            if self.places.lane(group.tag) in self.places.quotas
            and not (group.complete(size) and group.worth(size))
            and (group.ended or group.open or group.given_up)
        ]

    def tags(self) -> dict[str, TagProgress] | None:
        """How full the batch is, by tag of the mixture; None without one."""
        if self.places.mixture is None:
            return None
        return {
            tag: TagProgress(
                ratio=ratio,
                places=self.places.quotas.get(tag, 0),
                ready=self._ready(tag),
                under_way=self._under_way(tag),
                blocked=tag in self.places.blocked,
            )
            for tag, ratio in self.places.ratios.items()
        }

    def _group(self, episode: EpisodeRecord) -> TaskGroup:
        return self._groups.setdefault(episode.group, TaskGroup(episode.tag))

    def _count(self, name: str) -> None:
        """Take note that a group changed."""
        group = self._groups[name]
        group.idle = False
        self._add_up(name, group)

    def _count_anew(self) -> None:
        self._sums, self._decided = {}, set()
        for name, group in self._groups.items():
            group.counted = BatchCounts()
            self._add_up(name, group)

    def _add_up(self, name: str, group: TaskGroup) -> None:
        counts = group.counts(self._config)
        lane = self.places.lane(group.tag)
        before = self._sums.get(lane, BatchCounts())
        self._sums[lane] = BatchCounts(
            *(old + new - was for old, new, was in zip(before, counts, group.counted, strict=True))
        )
        group.counted = counts
        if self._config.full_by == "episodes":
            return
        size = self._config.episodes_per_task
        if group.holds_place(size) and group.room(size):
            self._decided.add(name)
        else:
            self._decided.discard(name)

    def _ready(self, lane: str) -> int:
        counts = self._sums.get(lane, BatchCounts())
        return counts.ended if self._config.full_by == "episodes" else counts.ready

    def _under_way(self, lane: str) -> int:
        counts = self._sums.get(lane, BatchCounts())
        if self._config.full_by == "episodes":
            return counts.open + counts.ended
        return counts.active
