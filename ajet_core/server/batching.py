"""Which episodes may start and when a batch is full: pure bookkeeping, no I/O, no time."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig, BatchProgress, SetAside
from ajet_core.server.set_aside import TaskFailures, counts_as_failure
from ajet_core.timeline import rewards_differ

Admission = Literal["now", "later"]

# One episode has nothing to be better than.
_FEWEST_EPISODES = 2


class _Counts(NamedTuple):
    """What a group, or all groups together, counts for.

    :param ready: complete groups that count towards a full batch.
    :param active: groups that hold one of the batch's places for tasks.
    """

    open: int = 0
    ended: int = 0
    ready: int = 0
    active: int = 0


@dataclass(slots=True)
class _Group:
    """The rollouts of one task within the batch being filled.

    :ivar silent: open episodes whose clients do not answer; they may end, but nobody waits for them.
    :ivar aborts: episodes that failed.
    :ivar given_up: of these, those that nobody will try again.
    :ivar exhausted: it failed too often to be tried again in this batch.
    :ivar counted: what it contributes to the sums over all groups.
    """

    open: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    ended: dict[str, EpisodeRecord] = field(default_factory=dict)
    aborts: int = 0
    given_up: int = 0
    exhausted: bool = False
    counted: _Counts = field(default_factory=_Counts)

    def room(self, size: int) -> int:
        """How many more episodes it may begin."""
        if self.exhausted:
            return 0
        return max(0, size - self.given_up - len(self.open) - len(self.ended))

    def holds_place(self, size: int) -> bool:
        """Whether it occupies one of the batch's places.

        An incomplete task that nobody works on does not: its client may be gone, and must not keep
        the batch from ever being full. It gets a place again when its next episode starts. Nor does one of
        which too few episodes succeeded.
        """
        return self.worth(size) if self.complete(size) else bool(self.open)

    def complete(self, size: int) -> bool:
        """Whether it has what it is to have: all its episodes, or those that succeeded."""
        if self.exhausted:
            return not self.open
        return len(self.ended) >= size - self.given_up

    def spent(self, size: int) -> bool:
        """Whether too little came of it, and nobody is at it: whoever asks for it again begins anew."""
        failed = self.exhausted or self.given_up > 0
        return failed and not self.open and self.complete(size) and not self.worth(size)

    def begin_anew(self) -> None:
        """Forget what failed; whether a task is tried at all is `TaskFailures`' to say."""
        self.aborts, self.given_up, self.exhausted = 0, 0, False

    def worth(self, size: int) -> bool:
        """Whether it has enough episodes to be compared with one another."""
        return len(self.ended) >= min(size, _FEWEST_EPISODES)

    def differs(self) -> bool:
        return rewards_differ(
            (e.reward or 0.0, e.call_rewards, e.agent_rewards) for e in self.ended.values()
        )

    def counts(self, config: BatchConfig) -> _Counts:
        size = config.episodes_per_task
        complete = self.complete(size)
        dull = complete and config.full_by == "differing_tasks" and not self.differs()
        return _Counts(
            open=len(self.open),
            ended=len(self.ended),
            ready=complete and self.worth(size) and not dull,
            active=self.holds_place(size) and not dull,
        )


class BatchBuilder:
    """Fills one batch after the other with ended train episodes.

    An episode is admitted only if the batch being filled has a place for it, so that nothing is rolled
    out with weights that are about to change. Everything that ended by the time a batch is full is
    part of that batch; what is still open then is carried over to the next.

    :param failures: what is known of the tasks from before.
    :param before: the builder whose place this one takes, in the middle of a batch: what was given up stays so.
    """

    def __init__(
        self,
        config: BatchConfig,
        failures: TaskFailures | None = None,
        *,
        before: BatchBuilder | None = None,
    ) -> None:
        self._config = config
        self._failures = TaskFailures(config.max_aborts_per_task) if failures is None else failures
        self._groups: dict[str, _Group] = {}
        if before is not None:
            self._groups = {
                name: _Group(aborts=g.aborts, given_up=g.given_up, exhausted=g.exhausted)
                for name, g in before._groups.items()
                if g.aborts or g.given_up
            }
        # Of all groups; kept up to date, because with thousands of them each end would have to add them up.
        self._sum = _Counts()
        self._decided: set[str] = set()

    @property
    def takes_any(self) -> bool:
        """Whether there is a place that belongs to no group yet."""
        return self._taken() < self._needed()

    @property
    def decided(self) -> Set[str]:
        """Groups that have a place of their own left, whatever the others do."""
        return self._decided

    def refuses(self, client_id: str, task_id: str) -> str | None:
        """Why a client's task gets no more episodes, if it is set aside."""
        return self._failures.refusal(client_id, task_id)

    def admission(self, group: str) -> Admission:
        """Whether one more episode of `group` may start now, or only in a later batch."""
        if self._config.full_by != "episodes" and (found := self._groups.get(group)) is not None:
            size = self._config.episodes_per_task
            if found.holds_place(size) or not (found.room(size) or found.spent(size)):
                return "now" if found.room(size) else "later"
        return "now" if self.takes_any else "later"

    def opened(self, episode: EpisodeRecord) -> None:
        """Note that an admitted episode started."""
        group = self._groups.setdefault(episode.group, _Group())
        if group.spent(self._config.episodes_per_task):
            group.begin_anew()
        group.open.add(episode.episode_id)
        self._count(episode.group, group)

    def withdrawn(self, episode: EpisodeRecord) -> None:
        """Undo `opened`: the episode never reached its client, which is nobody's failure."""
        if (group := self._groups.get(episode.group)) is not None:
            group.open.discard(episode.episode_id)
            group.silent.discard(episode.episode_id)
            self._count(episode.group, group)

    def silent(self, episode: EpisodeRecord) -> None:
        """Note that the client of an open episode does not answer: its place is free for others.

        At most as many as a task has episodes: clients that only ever begin must not make a batch grow.
        """
        group = self._groups.get(episode.group)
        if group is None or len(group.silent) >= self._config.episodes_per_task:
            return
        if episode.episode_id in group.open:
            group.open.discard(episode.episode_id)
            group.silent.add(episode.episode_id)
            self._count(episode.group, group)

    def heard(self, episode: EpisodeRecord) -> None:
        """Undo `silent`; the batch may get more episodes of a task than it asks for."""
        group = self._groups.get(episode.group)
        if group is not None and episode.episode_id in group.silent:
            group.silent.discard(episode.episode_id)
            group.open.add(episode.episode_id)
            self._count(episode.group, group)

    def ended(self, episode: EpisodeRecord) -> None:
        """Note an episode that ended with a reward."""
        group = self._groups.setdefault(episode.group, _Group())
        group.open.discard(episode.episode_id)
        group.silent.discard(episode.episode_id)
        group.ended[episode.episode_id] = episode
        self._failures.succeeded(episode)
        self._count(episode.group, group)

    def aborted(self, episode: EpisodeRecord, *, final: bool = False) -> SetAside | None:
        """Note an aborted episode.

        :param final: nobody will try it again.
        :return: the note if its task is set aside because of it.
        """
        group = self._groups.setdefault(episode.group, _Group())
        group.open.discard(episode.episode_id)
        group.silent.discard(episode.episode_id)
        group.aborts += counts_as_failure(episode)
        group.given_up += final
        group.exhausted |= group.aborts > self._config.max_aborts_per_task
        aside = self._failures.failed(episode)
        self._count(episode.group, group)
        return aside

    def readmit(self) -> None:
        """Give all tasks another chance."""
        self._failures.forget()
        for name, group in self._groups.items():
            group.begin_anew()
            self._count(name, group)

    def is_full(self) -> bool:
        """Whether the batch can be trained."""
        return self._ready() >= self._needed()

    def take(self) -> list[str]:
        """Ids of the episodes of the full batch; the builder goes on with the next one."""
        taken = [episode for g in self._groups.values() for episode in g.ended]
        carried = {n: g for n, g in self._groups.items() if g.open or g.silent}
        self._groups, self._sum, self._decided = {}, _Counts(), set()
        for name, before in carried.items():
            self._groups[name] = group = _Group(open=before.open, silent=before.silent)
            self._count(name, group)
        return taken

    def progress(self) -> BatchProgress:
        """How full the batch is."""
        return BatchProgress(
            full_by=self._config.full_by,
            needed=self._needed(),
            ready=self._ready(),
            open_episodes=self._sum.open,
            set_aside=len(self._failures),
        )

    @property
    def dull(self) -> int:
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
            if not (group.complete(size) and group.worth(size))
            and (group.ended or group.open or group.given_up)
        ]

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
        if group.holds_place(size) and group.room(size):
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
