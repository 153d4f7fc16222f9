"""Parts of joint episodes that are prepared: their outcome is stored, and is in force once the arbiter has decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ajet_core.errors import EpisodeClosedError, StateError
from ajet_core.interfaces import EpisodeRecord, JointRecord, SampleStore
from ajet_core.protocol import AbortCause, AbortRequest, EndRequest
from ajet_server.admission.batching import BatchBuilder
from ajet_server.episodes.open_episodes import BEATS_MISSED, OpenEpisode


class Episodes(Protocol):
    """What prepared parts need of the server's episodes, see `ajet_server.episodes.registry`."""

    @property
    def builder(self) -> BatchBuilder | None: ...

    async def get(self, episode_id: str) -> tuple[EpisodeRecord, OpenEpisode | None]: ...

    def renew(self, episode_id: str) -> OpenEpisode | None: ...

    async def is_mixed(self, record: EpisodeRecord) -> bool: ...

    async def shut(
        self, episode_id: str, write: Callable[[EpisodeRecord], Awaitable[EpisodeRecord]]
    ) -> tuple[EpisodeRecord, bool]: ...

    def over(self, record: EpisodeRecord) -> None: ...

    def emit(self, record: EpisodeRecord, what: str) -> None: ...


@dataclass(slots=True)
class PreparedEpisode:
    """A part that makes no more calls, has no lease, and is not trained.

    :ivar since: clock time at which it was prepared, or found by a server that was started again.
    :ivar silent: it has waited for so long that its place in the batch is given away.
    :ivar doubt: why nobody knows yet what its arbiter decided.
    """

    record: EpisodeRecord
    since: float
    silent: bool = False
    doubt: str = "its client has not said what its arbiter decided"

    @property
    def joint(self) -> JointRecord:
        """Which part of what it is."""
        assert self.record.joint is not None, "only parts of joint episodes are prepared"
        return self.record.joint

    @property
    def silent_at(self) -> float:
        """Clock time after which nobody waits for it: its client would have gone on long ago."""
        promised = self.record.heartbeat_seconds
        patience = self.record.lease_seconds if promised is None else BEATS_MISSED * promised
        return self.since + patience


class JointParts:
    """The prepared parts of a server, and what becomes of them.

    :param clock: seconds, monotonic.
    :param wall_clock: unix seconds; for records.
    """

    def __init__(
        self,
        episodes: Episodes,
        store: SampleStore,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._episodes = episodes
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self._prepared: dict[str, PreparedEpisode] = {}

    def __iter__(self) -> Iterator[PreparedEpisode]:
        return iter(list(self._prepared.values()))

    def __len__(self) -> int:
        return len(self._prepared)

    def waited(self, part: PreparedEpisode) -> float:
        """Seconds for which a part has been prepared."""
        return self._clock() - part.since

    async def restore(self) -> list[EpisodeRecord]:
        """Take up the store's prepared parts."""
        found = await self._store.episodes(state="prepared")
        for record in found:
            self._prepared[record.episode_id] = PreparedEpisode(record, self._clock())
        return found

    async def prepare(self, episode_id: str, request: EndRequest) -> EpisodeRecord:
        """Close a part with the outcome that it has if its joint episode is ended; durable when this returns.

        :return: as it is stored: the first outcome stands, and it may be over already.
        :raises StateError: it is the arbiter's part, or of no joint episode.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.joint is None or record.joint.decides:
            what = "no part of a joint one" if record.joint is None else "its arbiter's part"
            raise StateError(f"episode {episode_id} cannot be prepared, it is {what}: end it")

        async def write(record: EpisodeRecord) -> EpisodeRecord:
            outcome = replace(
                record,
                state="prepared",
                reward=request.reward,
                components=dict(request.components),
                call_rewards=dict(request.call_rewards),
                agent_rewards=dict(request.agent_rewards),
                metadata=dict(request.metadata),
                mixed=await self._episodes.is_mixed(record),
            )
            return await self._store.prepare_episode(outcome)

        # A client that was silent is not any more: it gets its place in the batch back.
        self._episodes.renew(episode_id)
        stored, done = await self._episodes.shut(episode_id, write)
        if done:
            self._prepared[episode_id] = PreparedEpisode(stored, self._clock())
            self._episodes.emit(stored, "prepared")
        return stored

    async def commit(self, episode_id: str) -> EpisodeRecord:
        """The arbiter has ended its part: this one has ended too.

        :raises StateError: it was not prepared.
        :raises EpisodeClosedError: it was aborted.
        """
        record, _ = await self._episodes.get(episode_id)
        if record.state == "prepared":
            record = await self._settle(replace(record, state="ended"))
        if record.state == "open":
            raise StateError(f"episode {episode_id} is not prepared, so that nothing can commit it")
        if record.state == "aborted":
            raise EpisodeClosedError(f"episode {episode_id} was aborted: {record.reason}")
        return record

    async def give_up(self, record: EpisodeRecord, request: AbortRequest) -> EpisodeRecord:
        """A client wants a prepared part aborted.

        :raises StateError: it does not say that the arbiter has done so.
        """
        if not request.arbiter_aborted:
            raise StateError(
                f"episode {record.episode_id} is prepared: what becomes of it is its arbiter's to say; abort it "
                "there, then here with arbiter_aborted"
            )
        return await self.drop(record, request.reason, request.cause, final=request.final)

    async def drop(
        self, record: EpisodeRecord, reason: str, cause: AbortCause, *, final: bool = False
    ) -> EpisodeRecord:
        """The arbiter has aborted its part: this one is aborted too."""
        gone = replace(
            record, state="aborted", reward=None, reason=reason, cause=cause, final=final
        )
        return await self._settle(gone)

    def note_silences(self, now: float) -> bool:
        """Give the places of those away that wait for long; whether there was one."""
        builder, found = self._episodes.builder, False
        for part in self._prepared.values():
            if not part.silent and part.silent_at <= now:
                part.silent = found = True
                if builder is not None and part.record.kind == "train":
                    builder.silent(part.record)
        return found

    async def _settle(self, outcome: EpisodeRecord) -> EpisodeRecord:
        stored = await self._store.finish_episode(replace(outcome, finished_at=self._wall_clock()))
        # Of two that say so at once one is the first; the store's word is the same for both.
        if self._prepared.pop(stored.episode_id, None) is not None:
            self._episodes.over(stored)
        return stored
