"""Open episodes: kept alive by leases, closed once. How they are claimed is in `claims`."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

from ajet_core.errors import (
    AuthError,
    EpisodeClosedError,
    EpisodeNotFoundError,
)
from ajet_core.interfaces import EpisodeRecord, SampleStore
from ajet_core.protocol import AbortCause, AbortRequest, EndRequest, SetAside
from ajet_server.admission.batching import BatchBuilder
from ajet_server.episodes.evaluations import is_mixed
from ajet_server.episodes.joint_parts import JointParts
from ajet_server.episodes.open_episodes import OpenEpisode, OpenEpisodes
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.observe.events import EventLog
from ajet_server.run.state import StateBoard
from ajet_server.security.auth import EPISODE_KEY_PREFIX, hash_secret
from ajet_server.security.tenants import Tenants

T = TypeVar("T")

_SHOWN_ID = 64


class EpisodeRegistry:
    """All open episodes of the server.

    :param clock: seconds, monotonic; for leases.
    :param wall_clock: unix seconds; for records.
    :param tenants: whose episodes are counted here.
    :param max_seconds: longest time an episode may be open.
    :ivar open: those that are open.
    :ivar observers: called with every episode whose outcome is durable.
    :ivar joint: parts of joint episodes that wait for their arbiter.
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
        max_seconds: float = math.inf,
    ) -> None:
        self._store = store
        self._max_seconds = max_seconds
        self._board = board
        self._events = events
        self._tenants = tenants
        self._clock = clock
        self._wall_clock = wall_clock
        self.observers: list[Callable[[EpisodeRecord], None]] = []
        self.joint = JointParts(self, store, clock=clock, wall_clock=wall_clock)
        self.open = OpenEpisodes(clock, wall_clock, max_seconds)
        self.builder: BatchBuilder | None = None
        # Called when a place may have come free.
        self.freed: Callable[[], None] = lambda: None
        # Called with every episode that is open from now on, those of before a restart included.
        self.opened: Callable[[EpisodeRecord], None] = lambda _record: None
        # Called with a task that is not tried any more, and why.
        self.task_refused: Callable[[SetAside, str], None] = lambda _aside, _why: None
        # Tags of train episodes that somebody waits for.
        self.waiting_tags: Callable[[], Set[str]] = frozenset

    async def restore(self) -> None:
        """Take up the store's open episodes: they go on with the same keys after a restart."""
        for record in await self._store.episodes(state="open"):
            calls = (await self._store.calls([record.episode_id]))[record.episode_id]
            # Not their number: a call whose write failed has left a gap.
            following = max((call.index for call in calls), default=-1) + 1
            session = Session(record.episode_id, ConversationIndex.restore(calls), following)
            self._add(self.open.opened(record, session))
            self._tenants.reopen(record)
        for record in await self.joint.restore():
            self._tenants.reopen(record)

    async def begin(self, builder: BatchBuilder) -> None:
        """Fill batches with `builder` from now on; what no batch has taken yet belongs to the first."""
        meanwhile: list[EpisodeRecord] = []
        listen = meanwhile.append
        self.observers.append(listen)
        try:
            found = await self._store.episodes(state="ended", batched=False)
            found += await self._store.episodes(state="aborted", batched=False)
        finally:
            self.observers.remove(listen)
        records = {record.episode_id: record for record in found + meanwhile}
        # What is durable and not yet told to a builder is still open here: this one will be told.
        records |= {episode.record.episode_id: episode.record for episode in self.open}
        records |= {part.record.episode_id: part.record for part in self.joint}
        builder.restore(record for record in records.values() if record.kind == "train")
        for episode in self.open:
            if episode.silent and episode.record.kind == "train":
                builder.silent(episode.record)
        for part in self.joint:
            if part.silent and part.record.kind == "train":
                builder.silent(part.record)
        self.builder = builder
        self._board.touch()

    @property
    def clients(self) -> Set[str]:
        """Ids of the clients that have open episodes or wait for some."""
        return self._tenants.active

    @property
    def still(self) -> float:
        """Seconds since a claim, a call or an end last moved anything, in the server's present state."""
        return self._clock() - max(self._board.since, self.open.moved_at)

    async def begin_episode(self, record: EpisodeRecord) -> OpenEpisode:
        """Open an episode that the builder has admitted; it is durable when this returns.

        :raises StoreError: it could not be stored, and never began.
        """
        session = Session(record.episode_id, ConversationIndex(), 0)
        episode = self.open.opened(record, session)
        try:
            await self._store.add_episode(record)
        except BaseException:
            # Without a durable record the episode never began; its place goes to the next claim.
            self.withdraw(record)
            raise
        self._add(episode)
        self.emit(record, "claimed")
        return episode

    def withdraw(self, record: EpisodeRecord) -> None:
        """Undo the admission of an episode that never reached its client."""
        self._tenants.closed(record)
        if self.builder is not None and record.kind == "train":
            self.builder.withdrawn(record)
        self.freed()

    def renew(self, episode_id: str) -> OpenEpisode | None:
        """The open episode of an id, its lease renewed; None if it is not open."""
        found = self.open.get(episode_id)
        if found is not None:
            self._saw(found)
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
        found = self.open.get(episode_id)
        record = found.record if found else await self._store.get_episode(episode_id)
        if record is None or not hmac.compare_digest(record.key_hash, hash_secret(key)):
            raise unknown
        if found is None:
            raise EpisodeClosedError(closed_message(record))
        self._tenants.require_live(record.client_id)
        if found.closing.locked():
            raise EpisodeClosedError(f"episode {episode_id} is being closed")
        self._saw(found)
        return found

    async def heartbeats(self, episode_ids: Sequence[str], client_id: str) -> dict[str, str]:
        """Renew the leases of a client's episodes.

        :return: why those that are not open are not, by id.
        """
        closed: dict[str, str] = {}
        for episode_id in dict.fromkeys(episode_ids):
            found = self.open.get(episode_id)
            if found is not None and found.record.client_id == client_id:
                self._saw(found)
                continue
            record = await self._store.get_episode(episode_id)
            known = record is not None and record.client_id == client_id
            closed[episode_id] = (
                closed_message(record)
                if known and record is not None
                else f"no episode {episode_id!r}"
            )
        return closed

    async def get(self, episode_id: str) -> tuple[EpisodeRecord, OpenEpisode | None]:
        """An episode of any state, and its live part if it is open.

        :raises EpisodeNotFoundError: there is none.
        """
        found = self.open.get(episode_id)
        record = found.record if found else await self._store.get_episode(episode_id)
        if record is None:
            raise EpisodeNotFoundError(not_found_message(episode_id))
        return record, found

    async def heartbeat(self, episode_id: str) -> OpenEpisode:
        """Renew the lease.

        :raises EpisodeClosedError: the episode is over.
        """
        record, found = await self.get(episode_id)
        if found is None:
            raise EpisodeClosedError(closed_message(record))
        self._saw(found)
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

    async def abort(self, episode_id: str, request: AbortRequest) -> EpisodeRecord:
        """Abort an episode because its client says so; it is not trained on.

        A client may also be late, and give up for good what ended otherwise, by its lease say.

        :raises StateError: it is prepared, and its arbiter has not aborted it.
        """
        record = await self._close(
            episode_id,
            state="aborted",
            reason=request.reason,
            cause=request.cause,
            final=request.final,
        )
        if record.state == "prepared":
            return await self.joint.give_up(record, request)
        if request.final and record.state == "aborted" and not record.final:
            record = await self._store.give_up(episode_id)
            if self.builder is not None and record.kind == "train":
                self.builder.given_up(record)
            self._board.touch()
            self.freed()
        return record

    async def drop(self, episode_id: str, reason: str, cause: AbortCause) -> EpisodeRecord:
        """Abort an episode for a reason of the server's."""
        return await self._close(episode_id, state="aborted", reason=reason, cause=cause)

    async def abort_all(self, reason: str, cause: AbortCause, client_id: str | None = None) -> None:
        """Abort every open episode, or every one of a client."""
        whose = [
            episode.record.episode_id
            for episode in self.open
            if client_id is None or episode.record.client_id == client_id
        ]
        await self._drop_each(dict.fromkeys(whose, reason), cause)

    async def abort_training(self, reason: str, cause: AbortCause) -> None:
        """Abort every open train episode."""
        whose = [e.record.episode_id for e in self.open if e.record.kind == "train"]
        await self._drop_each(dict.fromkeys(whose, reason), cause)

    def wanted_tags(self) -> set[str]:
        """Tags of train episodes that somebody rolls out, or waits to."""
        rolled_out = {e.record.tag for e in self.open if e.record.kind == "train" and not e.silent}
        return rolled_out | self.waiting_tags()

    async def drop_late(self, reason: str, *, before: int | None = None) -> None:
        """Abort train episodes that are open.

        :param before: only those that were claimed with weights of an earlier version.
        """
        late = [
            episode.record.episode_id
            for episode in self.open
            if episode.record.kind == "train"
            and (before is None or episode.record.claim_version < before)
        ]
        await self._drop_each(dict.fromkeys(late, reason), "late")

    async def expire_leases(self) -> float:
        """Abort episodes whose lease ran out, and those that have been open for too long.

        :return: seconds until the next lease can run out.
        """
        expired: dict[str, str] = {}
        overlong: dict[str, str] = {}
        for episode in self.open.expired():
            record = episode.record
            if episode.ends_at <= self._clock():
                overlong[record.episode_id] = (
                    f"it was open for {self._max_seconds:g} s, the longest time that this server allows "
                    "(setting server.max_episode_seconds)"
                )
            else:
                expired[record.episode_id] = (
                    f"lease expired: no call or heartbeat for {record.lease_seconds:g} s"
                )
        await self._drop_each(expired, "lease_expired")
        await self._drop_each(overlong, "timeout")
        self._note_silences()
        return self.open.seconds_to_look()

    @contextlib.contextmanager
    def running_call(
        self, episode: OpenEpisode, work: Coroutine[Any, Any, T]
    ) -> Iterator[asyncio.Task[T]]:
        """A task that does `work` as one of the episode's calls, while the context is open.

        :raises EpisodeClosedError: the episode is over, or about to be.
        """
        with self.open.running_call(episode, work) as task:
            try:
                yield task
            finally:
                self._saw(episode)

    def _add(self, episode: OpenEpisode) -> None:
        self.open.add(episode)
        self.opened(episode.record)

    def _saw(self, episode: OpenEpisode) -> None:
        """An episode's client gave a sign of life."""
        was_silent = self.open.saw(episode)
        if was_silent and self.builder is not None and episode.record.kind == "train":
            self.builder.heard(episode.record)

    def _note_silences(self) -> None:
        """Give the places of silent clients to whoever asks; they get them back when they are heard again."""
        silent = self.open.newly_silent()
        for episode in silent:
            if self.builder is not None and episode.record.kind == "train":
                self.builder.silent(episode.record)
        if self.joint.note_silences(self._clock()) or silent:
            self.freed()

    async def _drop_each(self, reasons: dict[str, str], cause: AbortCause) -> None:
        """Abort episodes by id, each for its reason; the store commits them together.

        :raises StoreError: one or more could not be aborted.
        """
        aborting = [self.drop(episode_id, reason, cause) for episode_id, reason in reasons.items()]
        for outcome in await asyncio.gather(*aborting, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _close(self, episode_id: str, **outcome: object) -> EpisodeRecord:
        async def write(record: EpisodeRecord) -> EpisodeRecord:
            mixed = await self.is_mixed(record)
            changes = {**outcome, "finished_at": self._wall_clock(), "mixed": mixed}
            return await self._store.finish_episode(replace(record, **changes))  # type: ignore[arg-type]

        closed, done = await self.shut(episode_id, write)
        if done:
            self.over(closed)
        return closed

    async def shut(
        self, episode_id: str, write: Callable[[EpisodeRecord], Awaitable[EpisodeRecord]]
    ) -> tuple[EpisodeRecord, bool]:
        """Take an episode out of the open ones, once `write` has stored what becomes of it.

        :return: as it is stored, and whether it was this call that closed it.
        """
        record, found = await self.get(episode_id)
        if found is None:
            return record, False
        async with found.closing:
            if episode_id not in self.open:
                return (await self.get(episode_id))[0], False
            await found.cancel_calls()
            stored = await write(record)
            self.open.remove(episode_id)
        return stored, True

    def over(self, record: EpisodeRecord) -> None:
        """Tell everybody of an episode's outcome, which is durable."""
        self._tenants.closed(record)
        self._account(record)
        self.emit(record, record.state)
        for observer in self.observers:
            observer(record)

    async def is_mixed(self, record: EpisodeRecord) -> bool:
        """Whether weights changed under an evaluation episode; its calls are only looked at if they may have."""
        if record.kind == "train" or record.claim_version == self._board.policy_version:
            return False
        calls = await self._store.calls([record.episode_id])
        return is_mixed(record, calls[record.episode_id])

    def _account(self, record: EpisodeRecord) -> None:
        if self.builder is not None and record.kind == "train":
            if record.state == "ended":
                self.builder.ended(record)
            elif (aside := self.builder.aborted(record)) is not None:
                self._events.emit("task_set_aside", aside.model_dump(), record.client_id)
                self.task_refused(aside, self.builder.refuses(aside.client_id, aside.task_id) or "")
        self._board.touch()
        self.freed()

    def emit(self, record: EpisodeRecord, what: str) -> None:
        """Tell what happened to an episode."""
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
                "cause": record.cause or None,
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
    if record.state == "prepared":
        return f"episode {record.episode_id} is prepared to be ended: it makes no more calls"
    return f"episode {record.episode_id} has ended"
