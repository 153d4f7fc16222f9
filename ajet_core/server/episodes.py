"""Open episodes: kept alive by leases, closed once. How they are claimed is in `claims`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ajet_core.errors import (
    AuthError,
    EpisodeClosedError,
    EpisodeNotFoundError,
)
from ajet_core.interfaces import EpisodeRecord, SampleStore
from ajet_core.protocol import EndRequest
from ajet_core.server.auth import EPISODE_KEY_PREFIX, hash_secret
from ajet_core.server.batching import BatchBuilder
from ajet_core.server.dialects.chat import Session
from ajet_core.server.events import EventLog
from ajet_core.server.rendering.conversation import ConversationIndex
from ajet_core.server.state import StateBoard
from ajet_core.server.tenants import Tenants, shown_group

_NOT_ROLLING_RETRY_SECONDS = 0.5
_SHOWN_ID = 64


@dataclass(slots=True)
class OpenEpisode:
    """An episode that may make calls.

    :ivar calls_running: tasks of calls being answered; they hold the lease and are cancelled when the
        episode is closed.
    :ivar expires_at: clock time at which the lease runs out unless it is renewed.
    """

    record: EpisodeRecord
    session: Session
    expires_at: float
    calls_running: set[asyncio.Task[Any]] = field(default_factory=set)
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)


class EpisodeRegistry:
    """All open episodes of the server.

    :param clock: seconds, monotonic; for leases.
    :param wall_clock: unix seconds; for records.
    :param tenants: whose episodes are counted here.
    :param finished: called after an outcome is durable.
    """

    def __init__(
        self,
        store: SampleStore,
        board: StateBoard,
        events: EventLog,
        tenants: Tenants,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        finished: Callable[[EpisodeRecord], None],
    ) -> None:
        self._store = store
        self._board = board
        self._events = events
        self._tenants = tenants
        self._clock = clock
        self._wall_clock = wall_clock
        self._finished = finished
        self._open: dict[str, OpenEpisode] = {}
        self.builder: BatchBuilder | None = None
        # Called when a place may have come free.
        self.freed: Callable[[], None] = lambda: None

    @property
    def open_count(self) -> int:
        """Open episodes."""
        return len(self._open)

    async def restore(self) -> None:
        """Take up the store's open episodes: they go on with the same keys after a restart."""
        for record in await self._store.episodes(state="open"):
            calls = (await self._store.calls([record.episode_id]))[record.episode_id]
            # Not their number: a call whose write failed has left a gap.
            following = max((call.index for call in calls), default=-1) + 1
            session = Session(record.episode_id, ConversationIndex.restore(calls), following)
            self._open[record.episode_id] = OpenEpisode(
                record, session, self._clock() + record.lease_seconds
            )
            self._tenants.reopen(record)

    async def begin(self, builder: BatchBuilder) -> None:
        """Fill batches with `builder` from now on; what has ended but was not trained comes first."""
        for episode in self._open.values():
            if episode.record.kind == "train":
                builder.opened(episode.record)
        # From here on an episode that ends is told to this builder; one that is also read below counts once.
        self.builder = builder
        for record in await self._store.episodes(state="ended", batched=False):
            if record.kind == "train":
                builder.ended(record)
        self._board.touch()

    async def begin_episode(self, record: EpisodeRecord) -> OpenEpisode:
        """Open an episode that the builder has admitted; it is durable when this returns.

        :raises StoreError: it could not be stored, and never began.
        """
        session = Session(record.episode_id, ConversationIndex(), 0)
        episode = OpenEpisode(record, session, self._clock() + record.lease_seconds)
        try:
            await self._store.add_episode(record)
        except BaseException:
            # Without a durable record the episode never began; its place goes to the next claim.
            self.withdraw(record)
            raise
        self._open[record.episode_id] = episode
        self._emit(record, "claimed")
        return episode

    def withdraw(self, record: EpisodeRecord) -> None:
        """Undo the admission of an episode that never reached its client."""
        self._tenants.closed(record)
        if self.builder is not None and record.kind == "train":
            self.builder.withdrawn(record)
        self.freed()

    def renew(self, episode_id: str) -> OpenEpisode | None:
        """The open episode of an id, its lease renewed; None if it is not open."""
        found = self._open.get(episode_id)
        if found is not None:
            found.expires_at = self._clock() + found.record.lease_seconds
        return found

    async def authenticate(self, key: str) -> OpenEpisode:
        """The open episode that `key` opens.

        :raises AuthError: no such key, or the token that claimed its episode is dead.
        :raises EpisodeClosedError: its episode is over.
        """
        episode_id, dot, _ = key.removeprefix(EPISODE_KEY_PREFIX).partition(".")
        unknown = AuthError(
            "unknown API key: use the api_key that the claim of the episode returned"
        )
        if not (dot and key.startswith(EPISODE_KEY_PREFIX)):
            raise unknown
        found = self._open.get(episode_id)
        record = found.record if found else await self._store.get_episode(episode_id)
        if record is None or not hmac.compare_digest(record.key_hash, hash_secret(key)):
            raise unknown
        if found is None:
            raise EpisodeClosedError(closed_message(record))
        self._tenants.require_live(record.client_id)
        if found.closing.locked():
            raise EpisodeClosedError(f"episode {episode_id} is being closed")
        found.expires_at = self._clock() + found.record.lease_seconds
        return found

    async def get(self, episode_id: str) -> tuple[EpisodeRecord, OpenEpisode | None]:
        """An episode of any state, and its live part if it is open.

        :raises EpisodeNotFoundError: there is none.
        """
        found = self._open.get(episode_id)
        record = found.record if found else await self._store.get_episode(episode_id)
        if record is None:
            raise EpisodeNotFoundError(not_found_message(episode_id))
        return record, found

    def lease_left(self, episode: OpenEpisode) -> float:
        """Seconds until the lease runs out."""
        return max(0.0, episode.expires_at - self._clock())

    async def heartbeat(self, episode_id: str) -> OpenEpisode:
        """Renew the lease.

        :raises EpisodeClosedError: the episode is over.
        """
        record, found = await self.get(episode_id)
        if found is None:
            raise EpisodeClosedError(closed_message(record))
        found.expires_at = self._clock() + found.record.lease_seconds
        return found

    async def end(self, episode_id: str, request: EndRequest) -> EpisodeRecord:
        """End an episode with its reward; the outcome is durable when this returns."""
        return await self._close(
            episode_id,
            state="ended",
            reward=request.reward,
            components=dict(request.components),
            call_rewards=dict(request.call_rewards),
            agent_rewards=dict(request.agent_rewards),
            metadata=dict(request.metadata),
        )

    async def abort(self, episode_id: str, reason: str) -> EpisodeRecord:
        """Abort an episode; it is not trained on."""
        return await self._close(episode_id, state="aborted", reason=reason)

    async def abort_all(self, reason: str, client_id: str | None = None) -> None:
        """Abort every open episode, or every one of a client."""
        for episode_id, episode in list(self._open.items()):
            if client_id is None or episode.record.client_id == client_id:
                await self.abort(episode_id, reason)

    async def expire_leases(self) -> float:
        """Abort episodes whose lease ran out.

        :return: seconds until the next lease can run out.
        """
        now = self._clock()
        for episode_id, episode in list(self._open.items()):
            if episode.expires_at <= now and not episode.calls_running:
                await self.abort(
                    episode_id,
                    f"lease expired: no call or heartbeat for {episode.record.lease_seconds:g} s",
                )
        soonest = min((e.expires_at for e in self._open.values()), default=now + 1.0)
        return min(1.0, max(0.05, soonest - now))

    @contextlib.contextmanager
    def running_call(self, episode: OpenEpisode, task: asyncio.Task[Any]) -> Iterator[None]:
        """While the context is open, `task` is one of the episode's calls."""
        episode.calls_running.add(task)
        try:
            yield
        finally:
            episode.calls_running.discard(task)
            episode.expires_at = self._clock() + episode.record.lease_seconds

    async def _close(self, episode_id: str, **outcome: object) -> EpisodeRecord:
        record, found = await self.get(episode_id)
        if found is None:
            return record
        async with found.closing:
            if episode_id not in self._open:
                return (await self.get(episode_id))[0]
            await self._cancel_calls(found)
            changes = {**outcome, "finished_at": self._wall_clock()}
            closed = await self._store.finish_episode(replace(record, **changes))  # type: ignore[arg-type]
            del self._open[episode_id]
            self._tenants.closed(closed)
            self._account(closed)
        self._emit(closed, closed.state)
        self._finished(closed)
        return closed

    async def _cancel_calls(self, episode: OpenEpisode) -> None:
        """Stop calls in flight; what they sampled is recorded before the outcome is."""
        running = list(episode.calls_running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _account(self, record: EpisodeRecord) -> None:
        if self.builder is not None and record.kind == "train":
            if record.state == "ended":
                self.builder.ended(record)
            elif self.builder.aborted(record):
                self._events.emit(
                    "task_set_aside",
                    {"task_id": record.task_id, "group": shown_group(record.group)},
                    record.client_id,
                )
        self._board.touch()
        self.freed()

    def _emit(self, record: EpisodeRecord, what: str) -> None:
        self._events.emit(
            "episode",
            {
                "what": what,
                "episode_id": record.episode_id,
                "task_id": record.task_id,
                "kind": record.kind,
                "tag": record.tag,
                "reward": record.reward,
                "reason": record.reason,
                "policy_version": record.claim_version,
            },
            record.client_id,
        )


def not_found_message(episode_id: str) -> str:
    """What is said of an episode that is not there for whoever asks."""
    return f"no episode {episode_id[:_SHOWN_ID]!r} on this server"


def closed_message(record: EpisodeRecord) -> str:
    """Why an episode that is not open is over."""
    if record.state == "aborted":
        return f"episode {record.episode_id} was aborted: {record.reason}"
    return f"episode {record.episode_id} has ended"
