"""Which episodes may start and when a batch is full: pure bookkeeping, no I/O, no time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig, BatchProgress
from ajet_core.timeline import rewards_differ

Admission = Literal["now", "later", "set_aside"]


@dataclass(slots=True)
class _Group:
    """The rollouts of one task within the batch being filled."""

    open: set[str] = field(default_factory=set)
    ended: dict[str, EpisodeRecord] = field(default_factory=dict)
    aborts: int = 0
    set_aside: bool = False

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


class BatchBuilder:
    """Fills one batch after the other with ended train episodes.

    An episode is admitted only if the batch being filled has a place for it, so that nothing is rolled
    out with weights that are about to change. Everything that ended by the time a batch is full is
    part of that batch; what is still open then is carried over to the next.
    """

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._groups: dict[str, _Group] = {}

    def admission(self, group: str) -> Admission:
        """Whether one more episode of `group` may start now, or only in a later batch.

        ``set_aside``: too many of its episodes were aborted; it gets no more places in this batch.
        """
        config = self._config
        if config.full_by == "episodes":
            taken = sum(len(g.open) + len(g.ended) for g in self._groups.values())
            return "now" if taken < config.episodes else "later"
        found = self._groups.get(group, _Group())
        if found.set_aside:
            return "set_aside"
        if not found.holds_place(config.episodes_per_task):
            return "now" if self._active() < config.tasks else "later"
        return "now" if len(found.open) + len(found.ended) < config.episodes_per_task else "later"

    def opened(self, episode: EpisodeRecord) -> None:
        """Note that an admitted episode started."""
        self._groups.setdefault(episode.group, _Group()).open.add(episode.episode_id)

    def withdrawn(self, episode: EpisodeRecord) -> None:
        """Undo `opened`: the episode never reached its client, which is nobody's failure."""
        if (group := self._groups.get(episode.group)) is not None:
            group.open.discard(episode.episode_id)

    def ended(self, episode: EpisodeRecord) -> None:
        """Note an episode that ended with a reward."""
        group = self._groups.setdefault(episode.group, _Group())
        group.open.discard(episode.episode_id)
        group.ended[episode.episode_id] = episode

    def aborted(self, episode: EpisodeRecord) -> bool:
        """Note an aborted episode; True if its group is set aside because of it."""
        group = self._groups.setdefault(episode.group, _Group())
        group.open.discard(episode.episode_id)
        group.aborts += 1
        if group.aborts > self._config.max_aborts_per_task and not group.set_aside:
            group.set_aside = True
            return True
        return False

    def is_full(self) -> bool:
        """Whether the batch can be trained."""
        return self._ready() >= self._needed()

    def take(self) -> list[str]:
        """Ids of the episodes of the full batch; the builder goes on with the next one."""
        taken = [episode for g in self._groups.values() for episode in g.ended]
        self._groups = {
            name: _Group(open=group.open) for name, group in self._groups.items() if group.open
        }
        return taken

    def progress(self) -> BatchProgress:
        """How full the batch is."""
        return BatchProgress(
            full_by=self._config.full_by,
            needed=self._needed(),
            ready=self._ready(),
            open_episodes=sum(len(g.open) for g in self._groups.values()),
            set_aside=sum(g.set_aside for g in self._groups.values()),
        )

    def _needed(self) -> int:
        config = self._config
        return config.episodes if config.full_by == "episodes" else config.tasks

    def _ready(self) -> int:
        config = self._config
        if config.full_by == "episodes":
            return sum(len(g.ended) for g in self._groups.values())
        return sum(
            g.complete(config.episodes_per_task)
            and (config.full_by == "tasks" or g.differs())
            and not g.set_aside
            for g in self._groups.values()
        )

    def _active(self) -> int:
        """Groups that hold one of the batch's places for tasks."""
        config = self._config
        return sum(
            not g.set_aside
            and g.holds_place(config.episodes_per_task)
            and not (
                config.full_by == "differing_tasks"
                and g.complete(config.episodes_per_task)
                and not g.differs()
            )
            for g in self._groups.values()
        )
