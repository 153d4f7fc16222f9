"""The episodes that may make calls, and until when: by their leases, and by the heartbeats that were promised."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ajet_core.errors import EpisodeClosedError
from ajet_core.interfaces import EpisodeRecord
from ajet_server.episodes.leases import LeaseWatch
from ajet_server.gateway.formats.exchange import Session

T = TypeVar("T")

BEATS_MISSED = 3.0
# A client that was silent and came back is given so many times as long from then on, up to a longest time: its machine is
# slow, and its places would be given away again and again.
_PATIENCE, _MOST_PATIENCE = 2.0, 30.0
# A new episode may have a shorter lease than those that were there at the last look.
_LOOK_SECONDS = 0.25


@dataclass(slots=True)
class OpenEpisode:
    """An episode that may make calls.

    :ivar calls_running: tasks of calls being answered; they hold the lease and are cancelled when the
        episode is closed.
    :ivar seen_at: clock time of the last sign of life, with which the lease begins anew.
    :ivar called_at: clock time of the last model call, or of the claim.
    :ivar ends_at: clock time at which the episode is aborted, whatever its client does.
    :ivar silent: its client has not kept its promise of heartbeats, and its place is given away.
    """

    record: EpisodeRecord
    session: Session
    seen_at: float
    called_at: float
    ends_at: float
    silent: bool = False
    calls_running: set[asyncio.Task[Any]] = field(default_factory=set)
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def expires_at(self) -> float:
        """Clock time at which the lease runs out unless it is renewed."""
        return min(self.ends_at, self.seen_at + self.record.lease_seconds)

    async def cancel_calls(self) -> None:
        """Stop calls in flight; what they sampled is recorded when this returns."""
        running = list(self.calls_running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class OpenEpisodes:
    """Open episodes by id.

    :param clock: seconds, monotonic.
    :param wall_clock: unix seconds, as in the records.
    :param max_seconds: longest time an episode may be open.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        max_seconds: float = math.inf,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self.max_seconds = max_seconds
        self._open: dict[str, OpenEpisode] = {}
        self._leases = LeaseWatch()
        self._silences = LeaseWatch()
        # By client, how long it may be silent, of those that came back after they had been taken for dead.
        self._patience: dict[str, float] = {}
        # Clock time of the last claim, call or removal.
        self._moved_at = clock()

    def __iter__(self) -> Iterator[OpenEpisode]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._open

    def __getitem__(self, episode_id: str) -> OpenEpisode:
        return self._open[episode_id]

    def get(self, episode_id: str) -> OpenEpisode | None:
        """The open episode of an id, if it is one."""
        return self._open.get(episode_id)

    def still(self, since: float) -> float:
        """Seconds since a claim, a call or an end last moved anything.

        :param since: clock time of something else that moved.
        """
        return self._clock() - max(since, self._moved_at)

    def opened(self, record: EpisodeRecord, session: Session) -> OpenEpisode:
        """An episode whose lease begins now; `add` takes it up."""
        now = self._clock()
        # A wall clock that was set back must not make it longer.
        age = max(0.0, self._wall_clock() - record.created_at)
        return OpenEpisode(
            record, session, seen_at=now, called_at=now, ends_at=now + self.max_seconds - age
        )

    def add(self, episode: OpenEpisode) -> None:
        """Watch over an episode."""
        episode_id = episode.record.episode_id
        self._open[episode_id] = episode
        self._moved_at = episode.seen_at
        self._leases.add(episode.expires_at, episode_id)
        if (silent_at := self._silent_at(episode)) is not None:
            self._silences.add(silent_at, episode_id)

    def remove(self, episode_id: str) -> None:
        """An episode is over."""
        del self._open[episode_id]
        self._moved_at = self._clock()

    def saw(self, episode: OpenEpisode) -> bool:
        """Take notice of a sign of life: the lease begins anew.

        :return: whether the episode was silent before.
        """
        now = self._clock()
        was_silent = episode.silent
        if was_silent:
            client_id = episode.record.client_id
            patience = min(_MOST_PATIENCE, _PATIENCE * (now - episode.seen_at))
            self._patience[client_id] = max(patience, self._patience.get(client_id, 0.0))
        episode.seen_at = now
        if was_silent:
            episode.silent = False
            self._silences.add(self._silent_at(episode) or now, episode.record.episode_id)
        return was_silent

    def lease_left(self, episode: OpenEpisode) -> float:
        """Seconds until the lease runs out."""
        return max(0.0, episode.expires_at - self._clock())

    @contextlib.contextmanager
    def running_call(
        self, episode: OpenEpisode, work: Coroutine[Any, Any, T]
    ) -> Iterator[asyncio.Task[T]]:
        """A task that does `work` as one of the episode's calls, while the context is open.

        :raises EpisodeClosedError: the episode is over, or about to be: calls that run are ended only once.
        """
        episode_id = episode.record.episode_id
        if self._open.get(episode_id) is not episode or episode.closing.locked():
            work.close()
            raise EpisodeClosedError(f"episode {episode_id} was closed before this call began")
        task = asyncio.create_task(work)
        episode.calls_running.add(task)
        self._moved_at = self._clock()
        try:
            yield task
        finally:
            episode.calls_running.discard(task)
            episode.called_at = self._moved_at = self._clock()

    def expired(self) -> list[OpenEpisode]:
        """Those whose leases have run out since the last look."""
        return [self._open[i] for i in self._leases.expired(self._clock(), self._lease_end)]

    def newly_silent(self) -> list[OpenEpisode]:
        """Those whose clients have broken their promise since the last look; they are marked."""
        silent = [
            self._open[i] for i in self._silences.expired(self._clock(), self._silence_begins)
        ]
        for episode in silent:
            episode.silent = True
        return silent

    def seconds_to_look(self) -> float:
        """How long there is nothing to expire."""
        now = self._clock()
        looks = [look for watch in (self._leases, self._silences) if (look := watch.next_look())]
        return min(_LOOK_SECONDS, max(0.05, min(looks) - now)) if looks else _LOOK_SECONDS

    def _lease_end(self, episode_id: str) -> float | None:
        """When a lease runs out, unless it is renewed; None if the episode is over."""
        episode = self._open.get(episode_id)
        if episode is None:
            return None
        if episode.calls_running:
            # It is renewed when they are answered.
            return min(episode.ends_at, self._clock() + episode.record.lease_seconds)
        return episode.expires_at

    def _silence_begins(self, episode_id: str) -> float | None:
        """When a client will have been silent for too long; None if the episode is over or known to be silent."""
        episode = self._open.get(episode_id)
        if episode is None or episode.silent:
            return None
        if episode.calls_running:
            return self._clock() + BEATS_MISSED * (episode.record.heartbeat_seconds or 1.0)
        return self._silent_at(episode)

    def _silent_at(self, episode: OpenEpisode) -> float | None:
        """Clock time at which a promise of heartbeats is broken; None if there is none."""
        promised = episode.record.heartbeat_seconds
        if promised is None:
            return None
        patience = self._patience.get(episode.record.client_id, 0.0)
        return episode.seen_at + max(BEATS_MISSED * promised, patience)
