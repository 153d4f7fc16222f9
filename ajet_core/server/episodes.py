"""Open episodes: claimed by long poll, kept alive by leases, closed once."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ajet_core.errors import (
    AjetError,
    AuthError,
    BusyError,
    EpisodeClosedError,
    EpisodeError,
    EpisodeNotFoundError,
    NotRollingError,
)
from ajet_core.interfaces import EpisodeRecord, SampleStore
from ajet_core.protocol import ClaimRequest, EndRequest, ServerState
from ajet_core.server.auth import EPISODE_KEY_PREFIX, hash_secret, new_episode_key
from ajet_core.server.batching import BatchBuilder
from ajet_core.server.dialects.chat import Session
from ajet_core.server.events import EventLog
from ajet_core.server.rendering.conversation import ConversationIndex
from ajet_core.server.state import StateBoard

_NOT_ROLLING_RETRY_SECONDS = 0.5


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


@dataclass(frozen=True, slots=True)
class Granted:
    """A claimed episode and its key, which exists here and at the client only."""

    episode: OpenEpisode
    api_key: str = field(repr=False)


@dataclass(slots=True)
class _Ticket:
    request: ClaimRequest
    client_id: str
    granted: asyncio.Future[Granted]


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """How much clients may have open at once."""

    open_episodes: int
    waiting_claims: int


class EpisodeRegistry:
    """All open episodes of the server.

    :param clock: seconds, monotonic; for leases.
    :param wall_clock: unix seconds; for records.
    :param finished: called after an outcome is durable.
    """

    def __init__(
        self,
        store: SampleStore,
        board: StateBoard,
        events: EventLog,
        limits: EpisodeLimits,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        finished: Callable[[EpisodeRecord], None],
    ) -> None:
        self._store = store
        self._board = board
        self._events = events
        self._limits = limits
        self._clock = clock
        self._wall_clock = wall_clock
        self._finished = finished
        self._open: dict[str, OpenEpisode] = {}
        self._tickets: dict[int, _Ticket] = {}
        self._abandoned: set[asyncio.Future[None]] = set()
        self._ticket_ids = iter(range(1 << 62))
        self.builder: BatchBuilder | None = None
        board.listen(lambda _: self.admit())

    @property
    def open_count(self) -> int:
        """Open episodes."""
        return len(self._open)

    @property
    def waiting_count(self) -> int:
        """Claims that wait for a place."""
        return len(self._tickets)

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

    async def claim(self, request: ClaimRequest, client_id: str) -> Granted:
        """Claim an episode, waiting for a place up to `request.wait_seconds`.

        :raises NotRollingError: no run is active, or no place came free in time.
        :raises BusyError: a limit on open episodes or waiting claims is reached.
        :raises EpisodeError: the task is set aside for this batch.
        """
        self._check_limits()
        ticket = _Ticket(request, client_id, asyncio.get_running_loop().create_future())
        ticket_id = next(self._ticket_ids)
        self._tickets[ticket_id] = ticket
        try:
            self.admit()
            await asyncio.wait([ticket.granted], timeout=request.wait_seconds)
        except asyncio.CancelledError:
            if ticket.granted.done() and ticket.granted.exception() is None:
                self._forget(ticket.granted.result().episode.record)
            raise
        finally:
            self._tickets.pop(ticket_id, None)
        if not ticket.granted.done():
            raise NotRollingError(
                f"no episode of task {request.task_id!r} could start within "
                f"{request.wait_seconds:g} s ({self._why_not()})",
                retry_after=_NOT_ROLLING_RETRY_SECONDS,
            )
        granted = ticket.granted.result()
        begun = asyncio.ensure_future(self._begin_episode(granted))
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            # Once it was requested the write happens: the episode is there, and its client is not.
            abandoned = asyncio.ensure_future(self._abandon(begun))
            self._abandoned.add(abandoned)
            abandoned.add_done_callback(self._abandoned.discard)
            raise

    async def _abandon(self, begun: asyncio.Future[Granted]) -> None:
        with contextlib.suppress(AjetError):
            granted = await begun
            await self.abort(
                granted.episode.record.episode_id, "its client went away before it got the episode"
            )

    async def _begin_episode(self, granted: Granted) -> Granted:
        record = granted.episode.record
        try:
            await self._store.add_episode(record)
        except BaseException:
            # Without a durable record the episode never began; its place goes to the next claim.
            self._forget(record)
            raise
        self._open[record.episode_id] = granted.episode
        self._emit(record, "claimed")
        return granted

    def admit(self) -> None:
        """Give free places to waiting claims, in the order they came."""
        for ticket_id, ticket in list(self._tickets.items()):
            if ticket.granted.done():
                continue
            try:
                granted = self._grant(ticket)
            except (NotRollingError, EpisodeError) as error:
                ticket.granted.set_exception(error)
                granted = None
            if granted is not None:
                ticket.granted.set_result(granted)
            if ticket.granted.done():
                del self._tickets[ticket_id]

    async def authenticate(self, key: str) -> OpenEpisode:
        """The open episode that `key` opens.

        :raises AuthError: no such key.
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
            raise EpisodeClosedError(_closed_message(record))
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
            raise EpisodeNotFoundError(f"no episode {episode_id!r} on this server")
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
            raise EpisodeClosedError(_closed_message(record))
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

    async def abort_all(self, reason: str) -> None:
        """Abort every open episode."""
        for episode_id in list(self._open):
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

    def _grant(self, ticket: _Ticket) -> Granted | None:
        request = ticket.request
        group = request.group or request.task_id
        if self._board.state is ServerState.OFFLINE:
            raise self._board.not_running()
        if not self._board.rolling or self.builder is None:
            return None
        if request.kind == "train":
            admission = self.builder.admission(group)
            if admission == "set_aside":
                raise EpisodeError(
                    f"task {request.task_id!r} is set aside: too many of its episodes were aborted"
                )
            if admission == "later":
                return None
        episode_id = secrets.token_hex(12)
        key = new_episode_key(episode_id)
        record = EpisodeRecord(
            episode_id=episode_id,
            key_hash=hash_secret(key),
            task_id=request.task_id,
            group=group,
            kind=request.kind,
            tag=request.tag,
            client_id=ticket.client_id,
            claim_version=self._board.policy_version,
            lease_seconds=request.lease_seconds,
            created_at=self._wall_clock(),
        )
        if record.kind == "train":
            self.builder.opened(record)
        session = Session(episode_id, ConversationIndex(), 0)
        episode = OpenEpisode(record, session, self._clock() + record.lease_seconds)
        return Granted(episode, key)

    def _why_not(self) -> str:
        state = f"the server is {self._board.state}"
        if self.builder is None or not self._board.rolling:
            return state
        progress = self.builder.progress()
        unit = "episodes" if progress.full_by == "episodes" else "tasks"
        return (
            f"{state} and the batch has no place for it: {progress.ready} of {progress.needed} {unit} "
            f"are complete, {progress.open_episodes} episodes are open"
        )

    def _check_limits(self) -> None:
        if len(self._open) >= self._limits.open_episodes:
            raise BusyError(
                f"{len(self._open)} episodes are open, the limit of this server "
                "(setting server.max_open_episodes): end or abort some",
                retry_after=1.0,
            )
        if len(self._tickets) >= self._limits.waiting_claims:
            raise BusyError(
                f"{len(self._tickets)} claims are waiting, the limit of this server "
                "(setting server.max_waiting_claims)",
                retry_after=1.0,
            )

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
                    "task_set_aside", {"task_id": record.task_id, "group": record.group}
                )
        self._board.touch()
        self.admit()

    def _forget(self, record: EpisodeRecord) -> None:
        """Undo the admission of an episode that never reached its client."""
        if self.builder is not None and record.kind == "train":
            self.builder.withdrawn(record)
        self.admit()

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
        )


def _closed_message(record: EpisodeRecord) -> str:
    if record.state == "aborted":
        return f"episode {record.episode_id} was aborted: {record.reason}"
    return f"episode {record.episode_id} has ended"
