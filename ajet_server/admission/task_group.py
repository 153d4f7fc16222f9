"""The rollouts of one task within a batch: bookkeeping only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import BatchConfig
from ajet_server.observe.failures import counts_against_task

# A baseline needs at least two episodes to compare.
_FEWEST_EPISODES = 2
# Without this, a task would lose its slot whenever its episodes end before the next claim arrives,
# and would be split between two batches.
_LOOKS_BETWEEN_EPISODES = 2


class BatchCounts(NamedTuple):
    """The counts of a group, or their sums over groups.

    :param ready: complete groups that count towards a full batch.
    :param active: groups that hold one of the batch's slots for tasks.
    """

    open: int = 0
    ended: int = 0
    ready: int = 0
    active: int = 0


@dataclass(slots=True)
class TaskGroup:
    """The rollouts of one task within the batch being filled.

    :param tag: of its first episode.
    :ivar open: the weights' version at the claim, by id of each open episode that is not silent.
    :ivar silent: open episodes whose clients are silent; they may end, but no batch waits for them.
    :ivar overdue: those of `open` whose clients are silent, but that keep their slots because too
        many others of the group are silent already.
    :ivar aborted: episodes aborted since the group was started or restarted.
    :ivar given_up: those of `aborted` that will not be retried.
    :ivar failures: how many of `aborted` count as failures of the task.
    :ivar forgotten: episodes aborted before the group was restarted.
    :ivar exhausted: the task failed too often to be retried in this batch.
    :ivar awaits: how many more calls of `wait_less` keep its slot while none of its episodes is
        open: its client may be about to claim the next one.
    :ivar idle: the group was neither complete nor active when the last batch was made, and has not
        changed since.
    :ivar counted: its contribution to the sums over all groups.
    """

    tag: str = ""
    open: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    overdue: set[str] = field(default_factory=set)
    ended: dict[str, EpisodeRecord] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    failures: int = 0
    forgotten: set[str] = field(default_factory=set)
    exhausted: bool = False
    awaits: int = 0
    idle: bool = False
    counted: BatchCounts = field(default_factory=BatchCounts)

    def begin(self, episode: EpisodeRecord) -> None:
        """Record an open episode whose client is not silent."""
        self.close(episode)
        self.open[episode.episode_id] = episode.claim_version
        self.awaits = 0

    def fall_silent(self, episode: EpisodeRecord) -> None:
        """Record that the client of an open episode is silent."""
        if episode.episode_id in self.open:
            self.overdue.add(episode.episode_id)

    def free_slots(self, size: int) -> None:
        """Free the slots of overdue episodes, as long as fewer than `size` episodes are silent."""
        while self.overdue and len(self.silent) < size:
            self.silent.add(first := min(self.overdue))
            self.overdue.remove(first)
            del self.open[first]

    def end(self, episode: EpisodeRecord) -> None:
        """Record an episode that ended with a reward."""
        self.close(episode)
        self.ended[episode.episode_id] = episode
        self.awaits = _LOOKS_BETWEEN_EPISODES

    def abort(self, episode: EpisodeRecord, max_failures: int, *, awaited: bool = False) -> None:
        """Record an aborted episode.

        :param awaited: its task keeps its slot for the next attempt.
        """
        self.close(episode)
        self.awaits = _LOOKS_BETWEEN_EPISODES if awaited else 0
        self.aborted.add(episode.episode_id)
        self.failures += counts_against_task(episode)
        if episode.final:
            self.given_up.add(episode.episode_id)
        self.exhausted |= self.failures > max_failures

    def rest(self, taken: Set[str] | None = None) -> TaskGroup:
        """Return what remains for later batches.

        :param taken: ids of the ended episodes in this batch; None means all of them.
        """
        ended = {} if taken is None else {i: e for i, e in self.ended.items() if i not in taken}
        return TaskGroup(self.tag, self.open, self.silent, self.overdue, ended)

    def room(self, size: int) -> int:
        """Return how many more episodes may start."""
        if self.exhausted:
            return 0
        return max(0, size - len(self.given_up) - len(self.open) - len(self.ended))

    def holds_slot(self, size: int) -> bool:
        """Return whether the group occupies one of the batch's slots.

        An incomplete task does not if no episode was open for a while: its client may be gone and
        must not keep the batch from filling. It gets a slot again when its next episode starts. A
        complete task with too few ended episodes does not occupy a slot either.
        """
        return self.worth(size) if self.complete(size) else bool(self.open or self.awaits)

    def wait_less(self) -> None:
        """Record that some time has passed."""
        self.awaits = max(0, self.awaits - 1)

    def complete(self, size: int) -> bool:
        """Return whether the group has all its episodes, apart from those that will not come."""
        if self.exhausted:
            return not self.open
        return len(self.ended) >= size - len(self.given_up)

    def spent(self, size: int) -> bool:
        """Return whether too few episodes ended and none can follow: the next claim restarts it."""
        failed = self.exhausted or bool(self.given_up)
        return failed and not self.open and self.complete(size) and not self.worth(size)

    def begin_anew(self) -> None:
        """Forget the failures; `TaskFailures` decides whether the task is tried at all."""
        self.forgotten |= self.aborted
        self.aborted, self.given_up = set(), set()
        self.failures, self.exhausted = 0, False

    def readmit(self) -> None:
        """Allow retries; episodes that were given up stay so, for their clients do not return."""
        self.failures, self.exhausted = 0, False

    def worth(self, size: int) -> bool:
        """Return whether enough episodes ended to compare them."""
        return len(self.ended) >= min(size, _FEWEST_EPISODES)

    def differs(self) -> bool:
        """Return whether the rewards distinguish better from worse episodes."""
        return rewards_differ(
            (e.reward or 0.0, e.call_rewards, e.agent_rewards) for e in self.ended.values()
        )

    def counts(self, config: BatchConfig) -> BatchCounts:
        """Return the present counts of the group."""
        size = config.episodes_per_task
        complete = self.complete(size)
        zero_variance = complete and config.full_by == "differing_tasks" and not self.differs()
        return BatchCounts(
            open=len(self.open),
            ended=len(self.ended),
            ready=complete and self.worth(size) and not zero_variance,
            active=self.holds_slot(size) and not zero_variance,
        )

    def versions(self) -> Iterator[int]:
        """Yield the weights' version at the claim of each open or ended episode."""
        yield from self.open.values()
        for episode in self.ended.values():
            yield episode.claim_version

    def due(self, version: int) -> bool:
        """Return whether an ended episode was claimed with weights of `version` or older."""
        return any(episode.claim_version <= version for episode in self.ended.values())

    def close(self, episode: EpisodeRecord) -> None:
        """Record that an episode is no longer open, whatever its outcome."""
        self.open.pop(episode.episode_id, None)
        self.silent.discard(episode.episode_id)
        self.overdue.discard(episode.episode_id)


def rewards_differ(
    outcomes: Iterable[tuple[float, Mapping[str, float], Mapping[str, float]]],
) -> bool:
    """Return whether rewards distinguish the episodes of a group.

    Call rewards are compared as sorted lists, ignoring zeros, so the number of rewarded calls
    matters: three calls with reward -0.1 each differ from five such calls.

    :param outcomes: reward, call rewards and agent rewards of each episode.
    """
    first: dict[str, float] = {}
    firsts: tuple[float, list[float]] | None = None
    for reward, calls, agents in outcomes:
        own = (reward, sorted(value for value in calls.values() if value))
        firsts = own if firsts is None else firsts
        if own != firsts or any(first.setdefault(n, value) != value for n, value in agents.items()):
            return True
    return False
