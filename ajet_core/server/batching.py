"""Which episodes may start and when a batch is full: pure bookkeeping, no I/O, no time."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig, BatchProgress
from ajet_core.timeline import rewards_differ

Admission = Literal["now", "later", "set_aside"]


class _Counts(NamedTuple):
    """What a group, or all groups together, counts for.

    :param ready: complete groups that count towards a full batch.
    :param active: groups that hold one of the batch's places for tasks.
    """

    open: int = 0
    ended: int = 0
    ready: int = 0
    active: int = 0
    set_aside: int = 0


@dataclass(slots=True)
class _Group:
    """The rollouts of one task within the batch being filled.

    :ivar counted: what it contributes to the sums over all groups.
    """

    open: set[str] = field(default_factory=set)
    ended: dict[str, EpisodeRecord] = field(default_factory=dict)
    aborts: int = 0
    set_aside: bool = False
    counted: _Counts = field(default_factory=_Counts)

    def holds_place(self, size: int) -> bool:
        """Whether it occupies one of the batch's places.

        An incomplete task that nobody works on does not: its client may be gone, and must not keep
        the batch from ever being full. It gets a place again when its next episode starts.
        """
        return bool(self.open) or self.complete(size)

    def complete(self, size: int) -> bool:
        return len(self.ended) >= size

    def differs(self) -> bool:
        return rewards_differ(
            (e.reward or 0.0, e.call_rewards, e.agent_rewards) for e in self.ended.values()
        )

    def counts(self, config: BatchConfig) -> _Counts:
        size = config.episodes_per_task
        complete = self.complete(size)
        dull = complete and config.full_by == "differing_tasks" and not self.differs()
        counts = not (dull or self.set_aside)
        return _Counts(
            open=len(self.open),
            ended=len(self.ended),
            ready=complete and counts,
            active=self.holds_place(size) and counts,
            set_aside=self.set_aside,
        )


class BatchBuilder:
    """Fills one batch after the other with ended train episodes.

    An episode is admitted only if the batch being filled has a place for it, so that nothing is rolled
    out with weights that are about to change. Everything that ended by the time a batch is full is
    part of that batch; what is still open then is carried over to the next.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._groups: dict[str, _Group] = {}
        # Of all groups; kept up to date, because with thousands of them each end would have to add them up.
        self._sum = _Counts()
        self._decided: set[str] = set()

    @property
    def takes_any(self) -> bool:
        """Whether there is a place that belongs to no group yet."""
        return self._taken() < self._needed()

    @property
    def decided(self) -> Set[str]:
        """Groups that have a place of their own left or are set aside, whatever the others do."""
        return self._decided

    def admission(self, group: str) -> Admission:
        """Whether one more episode of `group` may start now, or only in a later batch.

        ``set_aside``: too many of its episodes were aborted; it gets no more places in this batch.
        """
        if self._config.full_by != "episodes":
            found = self._groups.get(group)
            size = self._config.episodes_per_task
            if found is not None and found.set_aside:
                return "set_aside"
            if found is not None and found.holds_place(size):
                return "now" if len(found.open) + len(found.ended) < size else "later"
        return "now" if self.takes_any else "later"

    def opened(self, episode: EpisodeRecord) -> None:
        """Note that an admitted episode started."""
        group = self._groups.setdefault(episode.group, _Group())
        group.open.add(episode.episode_id)
        self._count(episode.group, group)

    def withdrawn(self, episode: EpisodeRecord) -> None:
        """Undo `opened`: the episode never reached its client, which is nobody's failure."""
        if (group := self._groups.get(episode.group)) is not None:
            group.open.discard(episode.episode_id)
            self._count(episode.group, group)

    def ended(self, episode: EpisodeRecord) -> None:
        """Note an episode that ended with a reward."""
        group = self._groups.setdefault(episode.group, _Group())
        group.open.discard(episode.episode_id)
        group.ended[episode.episode_id] = episode
        self._count(episode.group, group)

    def aborted(self, episode: EpisodeRecord) -> bool:
        """Note an aborted episode; True if its group is set aside because of it."""
        group = self._groups.setdefault(episode.group, _Group())
        group.open.discard(episode.episode_id)
        group.aborts += 1
        newly = group.aborts > self._config.max_aborts_per_task and not group.set_aside
        group.set_aside |= newly
        self._count(episode.group, group)
        return newly

    def is_full(self) -> bool:
        """Whether the batch can be trained."""
        return self._ready() >= self._needed()

    def take(self) -> list[str]:
        """Ids of the episodes of the full batch; the builder goes on with the next one."""
        taken = [episode for g in self._groups.values() for episode in g.ended]
        carried = {name: group.open for name, group in self._groups.items() if group.open}
        self._groups, self._sum, self._decided = {}, _Counts(), set()
        for name, still_open in carried.items():
            self._groups[name] = group = _Group(open=still_open)
            self._count(name, group)
        return taken

    def progress(self) -> BatchProgress:
        """How full the batch is."""
        return BatchProgress(
            full_by=self._config.full_by,
            needed=self._needed(),
            ready=self._ready(),
            open_episodes=self._sum.open,
            set_aside=self._sum.set_aside,
        )

    def _count(self, name: str, group: _Group) -> None:
        """Take note that a group changed."""
        counts = group.counts(self._config)
        self._sum = _Counts(
            *(
                old + new - was
                for old, new, was in zip(self._sum, counts, group.counted, strict=True)
            )
        )
        group.counted = counts
        if self._config.full_by == "episodes":
            return
        size = self._config.episodes_per_task
        if group.set_aside or (group.holds_place(size) and counts.open + counts.ended < size):
            self._decided.add(name)
        else:
            self._decided.discard(name)

    def _needed(self) -> int:
        config = self._config
        return config.episodes if config.full_by == "episodes" else config.tasks

    def _ready(self) -> int:
        return self._sum.ended if self._config.full_by == "episodes" else self._sum.ready

    def _taken(self) -> int:
        if self._config.full_by == "episodes":
            return self._sum.open + self._sum.ended
        return self._sum.active
