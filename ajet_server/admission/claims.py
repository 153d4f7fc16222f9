"""Claims: episodes are asked for by long poll and granted in turn, each claim once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from ajet_core.errors import (
    AjetError,
    AuthError,
    BusyError,
    EpisodeClosedError,
    EpisodeError,
    ForbiddenError,
    NotRollingError,
    StoreError,
)
from ajet_core.interfaces import EpisodeRecord, JointRecord, SampleStore
from ajet_core.protocol import ClaimRequest, ServerState, SetAside
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.waiting import Granted, Ticket, WaitingLine
from ajet_server.episodes.registry import EpisodeRegistry, closed_message
from ajet_server.run.state import StateBoard
from ajet_server.security.auth import hash_secret, new_episode_key
from ajet_server.security.tenants import Tenants, stored_group

_log = logging.getLogger("ajet.server")

# How long nothing moves before a claim is granted that could wait.
RELIEF_SECONDS = 10.0
_NOT_ROLLING_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """How much clients may have open at once."""

    open_episodes: int
    waiting_claims: int


class ClaimDesk:
    """Grants claims as the batch being filled has places for them.

    :param wall_clock: unix seconds; for records.
    """

    def __init__(
        self,
        store: SampleStore,
        board: StateBoard,
        episodes: EpisodeRegistry,
        limits: EpisodeLimits,
        tenants: Tenants,
        *,
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._board = board
        self._episodes = episodes
        self._limits = limits
        self._tenants = tenants
        self._wall_clock = wall_clock
        self._waiting = WaitingLine()
        # By claim hash: episodes whose record is being written.
        self._beginning: dict[str, asyncio.Future[Granted]] = {}
        self._abandoned: set[asyncio.Future[None]] = set()
        episodes.freed = self.admit
        episodes.task_refused = self._refuse_task
        episodes.waiting_tags = lambda: self._waiting.tags
        board.listen(lambda _: self.admit())

    def drop(self, client_id: str, why: str) -> None:
        """Refuse all waiting claims of a client."""
        for ticket in list(self._waiting):
            if ticket.client_id == client_id:
                self._refuse(ticket, AuthError(f"the token is no longer valid: {why}"))

    @property
    def waiting_count(self) -> int:
        """Claims that wait for a place."""
        return len(self._waiting)

    async def claim(self, request: ClaimRequest, client_id: str) -> Granted:
        """Claim an episode, waiting for a place up to `request.wait_seconds`.

        A claim that was granted before, and whose answer was lost, is granted again.

        :raises EpisodeClosedError: it was granted before, and its episode is over.
        :raises NotRollingError: no run is active, or no place came free in time.
        :raises BusyError: a limit on open episodes or waiting claims is reached.
        :raises EpisodeError: the task is set aside, or its tag is not in the mixture.
        """
        again = await self._granted_before(request, client_id)
        if again is not None:
            return again
        self._check_limits()
        with self._tenants.waiting(client_id):
            granted = await self._admitted(request, client_id)
        claim = granted.record.claim_hash
        if (begun := self._beginning.get(claim)) is not None:
            # The same claim twice at once: the other one has its episode already.
            self._episodes.withdraw(granted.record)
            return _own(await asyncio.shield(begun), client_id)
        begun = asyncio.ensure_future(self._begin(granted))
        if claim:
            self._beginning[claim] = begun
            begun.add_done_callback(lambda _: self._beginning.pop(claim, None))
        try:
            return await asyncio.shield(begun)
        except StoreError:
            again = await self._granted_before(request, client_id)
            if again is not None:
                return again
            raise
        except asyncio.CancelledError:
            # Once it was requested the write happens: the episode is there, and its client is not. One that
            # can ask for it again may do so until the lease runs out.
            if not claim:
                abandoned = asyncio.ensure_future(self._abandon(begun))
                self._abandoned.add(abandoned)
                abandoned.add_done_callback(self._abandoned.discard)
            raise

    def admit(self) -> None:
        """Give free places to waiting claims, in the order they came."""
        if self._board.state is ServerState.OFFLINE:
            for waiting in list(self._waiting):
                self._refuse(waiting, self._board.not_running())
        builder = self._episodes.builder
        if builder is None or not self._board.rolling:
            return
        self._refuse_tags(builder)
        while (ticket := self._waiting.next(builder)) is not None:
            self._waiting.discard(ticket)
            self._give(ticket, builder)

    def relieve(self) -> None:
        """Grant the first claim for a task that is complete, in a batch that nobody rolls out for.

        Only once nothing has moved for a while. Such a claim would otherwise wait until the batch is trained, and its
        client may ask for other tasks, which the batch lacks, only after it: say after an `end` whose answer
        was lost.
        """
        builder = self._episodes.builder
        if builder is None or not self._board.rolling or self._episodes.still < RELIEF_SECONDS:
            return
        for ticket in self._waiting:
            if ticket.group is not None and builder.starves(ticket.request.tag):
                _log.info(
                    "task %r is complete in this batch and gets one more episode: nothing else is rolled out",
                    ticket.request.task_id,
                )
                self._waiting.discard(ticket)
                self._give(ticket, builder)
                return

    async def _granted_before(self, request: ClaimRequest, client_id: str) -> Granted | None:
        if request.claim_id is None:
            return None
        claim = hash_secret(request.claim_id)
        if (begun := self._beginning.get(claim)) is not None:
            return _own(await asyncio.shield(begun), client_id)
        record = await self._store.claimed(claim)
        if record is None:
            return None
        granted = _own(
            Granted(record, new_episode_key(record.episode_id, request.claim_id)), client_id
        )
        if self._episodes.renew(record.episode_id) is None:
            raise EpisodeClosedError(closed_message(record))
        return granted

    async def _admitted(self, request: ClaimRequest, client_id: str) -> Granted:
        """Wait for a place."""
        builder = self._episodes.builder
        # Also of an episode that is not trained: the name is refused now, not when it has a place.
        stored = _group(request, client_id)
        group = stored if request.kind == "train" else None
        if group and builder is not None:
            why = builder.places.refusal(request.tag)
            if why := why or builder.refuses(client_id, request.task_id):
                raise EpisodeError(why)
        ticket = Ticket(request, client_id, group, asyncio.get_running_loop().create_future())
        self._waiting.add(ticket)
        try:
            self.admit()
            self.relieve()
            await asyncio.wait([ticket.granted], timeout=request.wait_seconds)
        except asyncio.CancelledError:
            if ticket.granted.done() and ticket.granted.exception() is None:
                self._episodes.withdraw(ticket.granted.result().record)
            raise
        finally:
            self._waiting.discard(ticket)
        if not ticket.granted.done():
            raise NotRollingError(
                f"no episode of task {request.task_id!r} could start within "
                f"{request.wait_seconds:g} s ({self._why_not()})",
                retry_after=_NOT_ROLLING_RETRY_SECONDS,
            )
        return ticket.granted.result()

    async def _begin(self, granted: Granted) -> Granted:
        await self._episodes.begin_episode(granted.record)
        return granted

    async def _abandon(self, begun: asyncio.Future[Granted]) -> None:
        with contextlib.suppress(AjetError):
            granted = await begun
            await self._episodes.drop(
                granted.record.episode_id,
                "its client went away before it got the episode",
                "cancelled",
            )

    def _refuse_task(self, aside: SetAside, why: str) -> None:
        """Send those away who wait for a task that is set aside."""
        for ticket in list(self._waiting):
            # Without a name it is all tasks of the client.
            asked = (ticket.client_id, ticket.request.task_id if aside.task_id else "")
            if ticket.group is not None and asked == (aside.client_id, aside.task_id):
                self._refuse(ticket, EpisodeError(why))

    def _refuse_tags(self, builder: BatchBuilder) -> None:
        """Send those away who wait for a place of a tag that is no longer in the mixture."""
        for tag in list(self._waiting.tags):
            if why := builder.places.refusal(tag):
                for ticket in self._waiting.of_tag(tag):
                    self._refuse(ticket, EpisodeError(why))

    def _refuse(self, ticket: Ticket, error: AjetError) -> None:
        self._waiting.discard(ticket)
        ticket.granted.set_exception(error)

    def _give(self, ticket: Ticket, builder: BatchBuilder) -> None:
        """Answer a claim that has a place."""
        try:
            granted = self._grant(ticket, builder)
        except (BusyError, AuthError) as error:
            ticket.granted.set_exception(error)
        else:
            ticket.granted.set_result(granted)

    def _grant(self, ticket: Ticket, builder: BatchBuilder) -> Granted:
        """An episode for a claim that has a place."""
        request = ticket.request
        episode_id = secrets.token_hex(12)
        key = new_episode_key(episode_id, request.claim_id)
        record = EpisodeRecord(
            episode_id=episode_id,
            key_hash=hash_secret(key),
            task_id=request.task_id,
            group=_group(request, ticket.client_id),
            kind=request.kind,
            tag=request.tag,
            client_id=ticket.client_id,
            claim_version=self._board.policy_version,
            lease_seconds=request.lease_seconds,
            heartbeat_seconds=request.heartbeat_seconds,
            created_at=self._wall_clock(),
            claim_hash=hash_secret(request.claim_id) if request.claim_id is not None else "",
            joint=JointRecord(**dict(request.joint)) if request.joint is not None else None,
        )
        self._tenants.open(record)
        if record.kind == "train":
            builder.opened(record)
        return Granted(record, key)

    def _why_not(self) -> str:
        state, builder = f"the server is {self._board.state}", self._episodes.builder
        if builder is None or not self._board.rolling:
            # The reason may quote another client's agents.
            paused = self._board.state is ServerState.PAUSED
            return f"{state}; its operator sees why" if paused else state
        progress = builder.progress()
        unit = "episodes" if progress.full_by == "episodes" else "tasks"
        return (
            f"{state} and the batch has no place for it: {progress.ready} of {progress.needed} {unit} "
            f"are complete, {progress.open_episodes} episodes are open"
        )

    def _check_limits(self) -> None:
        if len(self._episodes.open) >= self._limits.open_episodes:
            raise BusyError(
                f"{len(self._episodes.open)} episodes are open, the limit of this server "
                "(setting server.max_open_episodes): end or abort some",
                retry_after=1.0,
            )
        if len(self._waiting) >= self._limits.waiting_claims:
            raise BusyError(
                f"{len(self._waiting)} claims are waiting, the limit of this server "
                "(setting server.max_waiting_claims)",
                retry_after=1.0,
            )


def _own(granted: Granted, client_id: str) -> Granted:
    """`granted`, if it is this client's.

    :raises ForbiddenError: it is another's.
    """
    if granted.record.client_id != client_id:
        raise ForbiddenError("the claim of this claim_id is another client's")
    return granted


def _group(request: ClaimRequest, client_id: str) -> str:
    return stored_group(client_id, request.group or request.task_id)
