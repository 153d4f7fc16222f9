"""Prepared parts of joint episodes: stored, and final once the arbiter has decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord, JointRecord
from ajet_server.episodes.open_episodes import BEATS_MISSED


@dataclass(slots=True)
class PreparedEpisode:
    """A part that makes no more calls, has no lease, and is not trained yet.

    :ivar since: clock time at which it was prepared, or restored by a restarted server.
    :ivar silent: whether it has waited so long that its slot in the batch was given away.
    :ivar doubt: why the arbiter's decision is unknown.
    """

    record: EpisodeRecord
    since: float
    silent: bool = False
    doubt: str = "its client has not reported its arbiter's decision"

    @property
    def joint(self) -> JointRecord:
        """Which part of which joint episode it is."""
        assert self.record.joint is not None, "only parts of joint episodes are prepared"
        return self.record.joint

    @property
    def silent_at(self) -> float:
        """Clock time after which its slot is given away: an active client would have decided."""
        promised = self.record.heartbeat_seconds
        patience = self.record.lease_seconds if promised is None else BEATS_MISSED * promised
        return self.since + patience


class PreparedEpisodes:
    """The prepared parts of a server.

    :param clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._prepared: dict[str, PreparedEpisode] = {}

    def __iter__(self) -> Iterator[PreparedEpisode]:
        return iter(list(self._prepared.values()))

    def __len__(self) -> int:
        return len(self._prepared)

    def add(self, record: EpisodeRecord) -> None:
        """Add a part that is prepared now."""
        self._prepared[record.episode_id] = PreparedEpisode(record, self._clock())

    def remove(self, episode_id: str) -> bool:
        """Remove a part that is over; return whether it was present."""
        return self._prepared.pop(episode_id, None) is not None

    def waited(self, part: PreparedEpisode) -> float:
        """Return the seconds since a part was prepared."""
        return self._clock() - part.since

    def newly_silent(self) -> list[PreparedEpisode]:
        """Mark and return the parts that have become silent since the last call."""
        now = self._clock()
        silent = [part for part in self if not part.silent and part.silent_at <= now]
        for part in silent:
            part.silent = True
        return silent
