"""The rollouts of one task within a batch: pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig
from ajet_core.timeline import rewards_differ
from ajet_server.episodes.set_aside import counts_as_failure

# One episode has nothing to be better than.
_FEWEST_EPISODES = 2


class BatchCounts(NamedTuple):
    """What a group, or all groups together, counts for.

    :param ready: complete groups that count towards a full batch.
    :param active: groups that hold one of the batch's places for tasks.
    """

    open: int = 0
    ended: int = 0
    ready: int = 0
    active: int = 0


@dataclass(slots=True)
class TaskGroup:
    """The rollouts of one task within the batch being filled.

    :param tag: of its first episode.
    :ivar open: the weights' version at the claim, by id of each open episode whose client answers.
    :ivar silent: open episodes whose clients do not answer; they may end, but nobody waits for them.
    :ivar aborted: episodes that were aborted since it was begun, or begun anew.
    :ivar given_up: of these, those that nobody will try again.
    :ivar failures: how many of them speak against the task.
    :ivar forgotten: episodes that were aborted before it was begun anew.
    :ivar exhausted: it failed too often to be tried again in this batch.
    :ivar idle: it was neither complete nor worked on when the last batch was made, and nothing has happened since.
    :ivar counted: what it contributes to the sums over all groups.
    """

    tag: str = ""
    open: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    ended: dict[str, EpisodeRecord] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    failures: int = 0
    forgotten: set[str] = field(default_factory=set)
    exhausted: bool = False
    idle: bool = False
    counted: BatchCounts = field(default_factory=BatchCounts)

    def begin(self, episode: EpisodeRecord) -> None:
        """Note an episode that is open, and whose client answers."""
        self.silent.discard(episode.episode_id)
        self.open[episode.episode_id] = episode.claim_version

    def end(self, episode: EpisodeRecord) -> None:
        """Note an episode that ended with a reward."""
        self.close(episode)
        self.ended[episode.episode_id] = episode

    def abort(self, episode: EpisodeRecord, max_failures: int) -> None:
        """Note an aborted episode."""
        self.close(episode)
        self.aborted.add(episode.episode_id)
        self.failures += counts_as_failure(episode)
        if episode.final:
            self.given_up.add(episode.episode_id)
        self.exhausted |= self.failures > max_failures

    def rest(self, taken: Set[str] | None = None) -> TaskGroup:
        """What goes on in a later batch when the episodes of `taken` are in this one, or all that ended."""
        ended = {} if taken is None else {i: e for i, e in self.ended.items() if i not in taken}
        return TaskGroup(self.tag, open=self.open, silent=self.silent, ended=ended)

    def room(self, size: int) -> int:
        """How many more episodes it may begin."""
        if self.exhausted:
            return 0
        return max(0, size - len(self.given_up) - len(self.open) - len(self.ended))

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
        return len(self.ended) >= size - len(self.given_up)

    def spent(self, size: int) -> bool:
        """Whether too little came of it, and nobody is at it: whoever asks for it again begins anew."""
        failed = self.exhausted or bool(self.given_up)
        return failed and not self.open and self.complete(size) and not self.worth(size)

    def begin_anew(self) -> None:
        """Forget what failed; whether a task is tried at all is `TaskFailures`' to say."""
        self.forgotten |= self.aborted
        self.aborted, self.given_up = set(), set()
        self.failures, self.exhausted = 0, False

    def readmit(self) -> None:
        """Let it be tried again; what its clients gave up stays so, for they do not come back."""
        self.failures, self.exhausted = 0, False

    def worth(self, size: int) -> bool:
        """Whether it has enough episodes to be compared with one another."""
        return len(self.ended) >= min(size, _FEWEST_EPISODES)

    def differs(self) -> bool:
        """Whether its rewards say that one episode was better than another."""
        return rewards_differ(
            (e.reward or 0.0, e.call_rewards, e.agent_rewards) for e in self.ended.values()
        )

    def counts(self, config: BatchConfig) -> BatchCounts:
        """What it counts for as it is now."""
        size = config.episodes_per_task
        complete = self.complete(size)
        zero_variance = complete and config.full_by == "differing_tasks" and not self.differs()
        return BatchCounts(
            open=len(self.open),
            ended=len(self.ended),
            ready=complete and self.worth(size) and not zero_variance,
            active=self.holds_place(size) and not zero_variance,
        )

    def versions(self) -> Iterator[int]:
        """The weights' version at the claim of each open or ended episode."""
        yield from self.open.values()
        for episode in self.ended.values():
            yield episode.claim_version

    def due(self, version: int) -> bool:
        """Whether one of its ended episodes was claimed with weights of `version`, or earlier ones."""
        return any(episode.claim_version <= version for episode in self.ended.values())

    def close(self, episode: EpisodeRecord) -> None:
        """Note that an episode is not open any more, whatever became of it."""
        self.open.pop(episode.episode_id, None)
        self.silent.discard(episode.episode_id)
