"""The episodes of a gateway process, and its link to the server that it gets them from."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ajet_core.errors import (
    AjetError,
    DeadlineError,
    EpisodeClosedError,
    NotRollingError,
    WorkerDiedError,
)
from ajet_core.timeline import Call
from ajet_server.admission.concurrency import CallUse
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.episodes.registry import unknown_key
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.gateway.running_calls import RunningSnapshot
from ajet_server.processes.link import Link
from ajet_server.processes.machines import Reach
from ajet_server.processes.methods import (
    BEGIN_CALL,
    END_CALL,
    JUDGED,
    OPEN_EPISODE,
    Report,
    Watched,
)
from ajet_server.processes.wire import digest, unpack_call
from ajet_server.security.api_keys import episode_of, hash_secret
from ajet_server.security.tenants import NO_TOKENS, TenantLimits, Tenants
from ajet_server.workers.methods import Method

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("ajet.server")

_RETRY_SECONDS = 0.2
_KNOWN_PLACES = 10_000


class ServerLink:
    """The link to the server, also across its restarts."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._link: Link | None = None
        self._given_up: NotRollingError | None = None
        # Set while there is a link, or once none is awaited.
        self._changed = asyncio.Event()

    @property
    def link(self) -> Link | None:
        """The present link, None while the server restarts."""
        return self._link

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call a method of the server; while the server restarts, wait, and call it again.

        :param params: of a call that may be made twice.
        """
        while True:
            with contextlib.suppress(WorkerDiedError):
                return await self.call_once(method, params)

    async def call_once(self, method: Method[P, R], params: P) -> R:
        """Call a method of the server.

        :raises WorkerDiedError: the server ended first.
        :raises NotRollingError: this process ends before the server is back.
        """
        while (link := self._link) is None:
            if self._given_up is not None:
                raise self._given_up
            await self._changed.wait()
        try:
            return await link.call(method, params)
        except WorkerDiedError:
            if self._link is link:
                # `keep` notices it a moment later.
                self._unlink()
            raise

    def give_up(self, error: NotRollingError) -> None:
        """Fail the calls that wait for the server, and later ones."""
        self._given_up = error
        self._changed.set()

    def _unlink(self) -> None:
        self._link = None
        self._changed.clear()

    async def keep(
        self,
        handlers: Mapping[str, Any],
        introduce: Callable[[Link], Coroutine[Any, Any, None]],
        lost: Callable[[], object],
    ) -> None:
        """Connect to the server whenever it is gone, without end.

        :param introduce: awaited first over each new link.
        :param lost: called when a link is gone.
        """
        logged = ""
        while True:
            try:
                await self._connect(handlers, introduce, lost)
                why = ""
            except OSError as error:
                # Too many open files, or another machine that is down, for example.
                why = f"cannot connect to the server, trying again: {error}"
            except AjetError as error:
                why = f"the server refused this gateway, trying again: {error.message}"
            if why and why != logged:
                _log.error("%s", why)
            logged = why
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(
        self,
        handlers: Mapping[str, Any],
        introduce: Callable[[Link], Coroutine[Any, Any, None]],
        lost: Callable[[], object],
    ) -> None:
        """Connect to the server, and return when it is gone."""
        link = Link(*await self._reach.server(), handlers)
        serving = asyncio.create_task(link.serve("server"))
        try:
            with contextlib.suppress(WorkerDiedError):
                await introduce(link)
                self._link = link
                self._changed.set()
            await asyncio.wait([serving])
        finally:
            self._unlink()
            lost()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@dataclass(slots=True)
class Unreported:
    """What the next report says (`Report`)."""

    running: Counter[str] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)
    uses: list[CallUse] = field(default_factory=list)
    throttled: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        """As `ThrottleMeter.note`."""
        self.throttled.append(message)

    def ended(self, episode_id: str) -> None:
        """Record the end of a call."""
        self.running[episode_id] -= 1
        if not self.running[episode_id]:
            del self.running[episode_id]

    def taken(self, generating: int, unread_calls: str) -> Report | None:
        """Return the report, and begin a new one; None if there is nothing to report."""
        running = {i: self.running[i] for i in (*self.seen, *self.running)}
        report = Report(running, self.uses, generating, self.throttled, unread_calls)
        self.seen, self.uses, self.throttled = set(), [], []
        return report if report != Report(unread_calls=unread_calls) else None


class EpisodeAtError(Exception):
    """Another gateway has an episode.

    :ivar url: of that gateway.
    """

    def __init__(self, episode_id: str, url: str) -> None:
        super().__init__(episode_id, url)
        self.episode_id, self.url = episode_id, url


class GatewayEpisodes:
    """The episodes that this process has opened.

    :param limits: of the server.
    :param check: raises an error while this process cannot answer calls, so that it opens no
        episode that another one could answer.
    """

    def __init__(
        self,
        server: ServerLink,
        unreported: Unreported,
        limits: TenantLimits,
        deadline: float,
        check: Callable[[], object],
    ) -> None:
        self._server = server
        self._check = check
        self._unreported = unreported
        self._deadline = deadline
        self._tenants = Tenants(NO_TOKENS, limits)
        self._open: dict[str, OpenEpisode] = {}
        self._opening: dict[str, asyncio.Future[OpenEpisode]] = {}
        # The URLs of the gateways that have other episodes.
        self._elsewhere: dict[str, str] = {}
        # Requests in progress, by episode, and what waits for their end.
        self._requests: Counter[str] = Counter()
        self._idle: dict[str, asyncio.Event] = {}
        self._counted: set[str] = set()

    @property
    def failures(self) -> dict[str, str]:
        """`Session.failure` of each episode, by its id."""
        return {id_: episode.session.failure for id_, episode in self._open.items()}

    async def authenticate(self, key: str) -> OpenEpisode:
        """As `EpisodeRegistry.authenticate`; the server authenticates episodes that are new.

        :raises EpisodeAtError: another gateway has the episode.
        """
        episode_id = episode_of(key)
        episode = self._open.get(episode_id)
        if episode is None:
            if (url := self._elsewhere.get(episode_id)) is not None:
                raise EpisodeAtError(episode_id, url)
            # A release meanwhile waits for this request.
            with self._in_progress(episode_id):
                episode = await self._opened(episode_id, key)
        if not hmac.compare_digest(episode.record.key_hash, hash_secret(key)):
            raise unknown_key()
        if episode.closing.locked():
            raise EpisodeClosedError(f"episode {episode_id} is being closed")
        self._unreported.seen.add(episode_id)
        return episode

    @contextlib.contextmanager
    def running_call(
        self, episode: OpenEpisode, work: Coroutine[Any, Any, T]
    ) -> Iterator[asyncio.Task[T]]:
        """As `EpisodeRegistry.running_call`."""
        episode_id = episode.record.episode_id
        task = episode.begin(work, is_open=self._open.get(episode_id) is episode)
        self._unreported.running[episode_id] += 1
        try:
            yield task
        finally:
            episode.calls_running.discard(task)
            self._unreported.seen.add(episode_id)
            self._unreported.ended(episode_id)

    @contextlib.asynccontextmanager
    async def counted(self, episode: OpenEpisode) -> AsyncIterator[None]:
        """As `EpisodeRegistry.counted`; the server counts for tokens with a quota."""
        record = episode.record
        with (
            self._in_progress(record.episode_id),
            self._tenants.call(record, episode.session.next_index),
        ):
            if record.episode_id not in self._counted:
                yield
                return
            await self._server.call(BEGIN_CALL, record.client_id)
            link = self._server.link
            try:
                yield
            finally:
                # A server that has restarted meanwhile has forgotten what it counted.
                if link is not None and link is self._server.link:
                    with contextlib.suppress(WorkerDiedError):
                        await link.call(END_CALL, record.client_id)

    async def judged(self, episode: OpenEpisode) -> None:
        """Send the server what the end of the episode needs."""
        judged = [episode.record.episode_id, episode.session.failure]
        await self._server.call(JUDGED, judged)

    @contextlib.contextmanager
    def _in_progress(self, episode_id: str) -> Iterator[None]:
        self._requests[episode_id] += 1
        try:
            yield
        finally:
            self._requests[episode_id] -= 1
            if not self._requests[episode_id]:
                del self._requests[episode_id]
                if (idle := self._idle.pop(episode_id, None)) is not None:
                    idle.set()

    def forget_place(self, episode_id: str) -> None:
        """Ask the server again which gateway has an episode, when it is needed."""
        self._elsewhere.pop(episode_id, None)

    async def release(self, episode_id: str) -> None:
        """Forget an episode once none of its requests is in progress."""
        while self._requests[episode_id]:
            await self._idle.setdefault(episode_id, asyncio.Event()).wait()
        self._open.pop(episode_id, None)
        self._counted.discard(episode_id)

    async def look(self, watched: Watched) -> RunningSnapshot:
        """Return the running calls of an episode (`LOOK`)."""
        episode = self._open.get(watched.episode_id)
        if episode is None:
            return RunningSnapshot([])
        return episode.session.running.look(watched.seen, time.time())

    async def close(self, episode_id: str) -> None:
        """Cancel the calls of an episode and forget it."""
        episode = self._open.get(episode_id)
        if episode is None:
            return
        async with episode.closing:
            await episode.cancel_calls()
            self._open.pop(episode_id, None)
            self._counted.discard(episode_id)

    async def _opened(self, episode_id: str, key: str) -> OpenEpisode:
        # By key: a request with a wrong one must not fail the others.
        if (opening := self._opening.get(key)) is None:
            opening = asyncio.ensure_future(self._open_with(episode_id, key))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        try:
            async with asyncio.timeout(self._deadline):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise DeadlineError(
                f"the server process did not open the episode within {self._deadline:g} s (setting "
                "server.call_deadline_seconds)",
                retry_after=5.0,
            ) from None

    async def _open_with(self, episode_id: str, key: str) -> OpenEpisode:
        # The request may be cancelled before.
        with self._in_progress(episode_id):
            return await self._open_in_progress(episode_id, key)

    async def _open_in_progress(self, episode_id: str, key: str) -> OpenEpisode:
        self._check()
        opened = await self._server.call(OPEN_EPISODE, key)
        if isinstance(opened, str):
            if len(self._elsewhere) >= _KNOWN_PLACES:
                del self._elsewhere[next(iter(self._elsewhere))]
            self._elsewhere[episode_id] = opened
            raise EpisodeAtError(episode_id, opened)
        if (known := self._open.get(episode_id)) is not None:
            return known
        record, now = opened.record, time.monotonic()
        calls: dict[str, Call] = {}
        tools = {digest(text): text for text in opened.tools}
        for plain in opened.calls:
            call = unpack_call(plain, lambda call_id, _: calls[call_id], tools.__getitem__)
            calls[call.call_id] = call
        index = ConversationIndex.restore(calls.values())
        session = Session(record.episode_id, index, opened.next_index, failure=opened.failure)
        for call in calls.values():
            session.note(call)
        if opened.watched:
            session.running.watch(time.time())
        # The server watches the lease.
        episode = OpenEpisode(record, session, seen_at=now, called_at=now, ends_at=float("inf"))
        self._open[record.episode_id] = episode
        if opened.counts_calls:
            self._counted.add(record.episode_id)
        return episode
