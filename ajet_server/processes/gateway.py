"""A gateway process: it answers the calls of its episodes, and records them with the server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ajet_core import __version__
from ajet_core.errors import (
    AjetError,
    DeadlineError,
    EpisodeClosedError,
    ModelDirectoryError,
    NotRollingError,
    WorkerDiedError,
)
from ajet_core.protocol import (
    SUPPORTED_VERSIONS,
    AgentRule,
    CallSampling,
    ProtocolInfo,
    ServerState,
)
from ajet_core.timeline import Call
from ajet_installation.settings import ServerSettings
from ajet_server.admission.concurrency import CallUse
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.episodes.registry import unknown_key
from ajet_server.gateway.engine_gate import EngineGate
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.gateway.rendering.factory import make_renderer
from ajet_server.http.model_service import ModelService
from ajet_server.observe.events import EventLog
from ajet_server.processes.link import Link, answering
from ajet_server.processes.machines import Reach
from ajet_server.processes.methods import (
    ADD_CALL,
    BEGIN_CALL,
    CLOSE_EPISODE,
    END_CALL,
    HELLO,
    LEAVE,
    OPEN_EPISODE,
    RELEASE_EPISODE,
    REPORT,
    SET_STATE,
    Hello,
    Report,
    ServedModel,
    SharedState,
)
from ajet_server.processes.wire import digest, pack_call, unpack_call, without_base
from ajet_server.security.api_keys import episode_of, hash_secret
from ajet_server.security.tenants import NO_TOKENS, TenantLimits, Tenants
from ajet_server.state import StateBoard
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.methods import Method
from ajet_server.workers.remote import RemoteEngine

P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("ajet.server")

_REPORT_SECONDS = 0.25
_RETRY_SECONDS = 0.2
# How long agents wait before another gateway may be asked.
_UNABLE_SECONDS = 5.0
_KNOWN_PLACES = 10_000


class ServerLink:
    """The link to the server, also across its restarts."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._link: Link | None = None
        self._given_up: NotRollingError | None = None
        # Set while there is a link, or none is awaited any more.
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
    def ids(self) -> list[str]:
        """The ids of the episodes."""
        return list(self._open)

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
        session = Session(record.episode_id, index, opened.next_index)
        for call in calls.values():
            session.note(call)
        # The server watches the lease.
        episode = OpenEpisode(record, session, seen_at=now, called_at=now, ends_at=float("inf"))
        self._open[record.episode_id] = episode
        if opened.counts_calls:
            self._counted.add(record.episode_id)
        return episode


class GatewayProcess:
    """What a gateway has instead of a `SwarmService`.

    :param place: which of the server's processes it is; 0 on another machine.
    :param url: as `Hello.url`.
    :ivar episodes: those it has opened.
    :ivar board: as the server's.
    :ivar unreported: what the next report says.
    """

    def __init__(
        self, settings: ServerSettings, reach: Reach, place: int = 0, url: str = ""
    ) -> None:
        self._settings = settings
        self._place, self._url = place, url
        self._reach = reach
        self._server = ServerLink(reach)
        self._state = SharedState()
        self._served: ServedModel | None = None
        self._chat: CompletionService | None = None
        self._engine: tuple[tuple[str, int], WorkerConnection] | None = None
        self._spawned: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._using_engine = asyncio.Lock()
        self._unreachable = False
        self._unable = ""
        self._ending = False
        self.unreported = Unreported()
        limits = TenantLimits(
            settings.max_open_episodes,
            settings.max_waiting_claims,
            settings.max_calls_at_once,
            settings.max_calls_per_episode,
            settings.max_event_streams,
        )
        self.episodes = GatewayEpisodes(
            self._server,
            self.unreported,
            limits,
            settings.call_deadline_seconds,
            check=lambda: self.chat,
        )
        self.board = StateBoard(EventLog(time.time), time.monotonic)
        self._gate = EngineGate(self.board, settings.call_deadline_seconds)

    # --- The run, as `ServedRun` ------------------------------------------------------------------

    @property
    def model_name(self) -> str | None:
        """As `ServedRun.model_name`."""
        return self._state.model_name

    @property
    def agents(self) -> Mapping[str, str | AgentRule]:
        """As `ServedRun.agents`."""
        return self._state.agents

    @property
    def evaluation_sampling(self) -> CallSampling:
        """As `ServedRun.evaluation_sampling`."""
        return self._state.evaluation_sampling

    @property
    def running(self) -> bool:
        """As `ServedRun.running`; a server that restarts is about to continue its run."""
        return self._state.running or self._state == SharedState()

    @property
    def chat(self) -> CompletionService | None:
        """As `ServedRun.chat`.

        :raises NotRollingError: this gateway cannot answer calls; others may.
        """
        if self._unable:
            raise NotRollingError(self._unable, retry_after=_UNABLE_SECONDS)
        return self._chat

    # --- From its start to its end ----------------------------------------------------------------

    def open(self) -> None:
        """Connect to the server, and stay connected."""
        handlers = dict(
            [
                answering(SET_STATE, self._set_state),
                answering(CLOSE_EPISODE, self.episodes.close),
                answering(RELEASE_EPISODE, self.episodes.release),
            ]
        )
        self._tasks = [
            asyncio.create_task(self._server.keep(handlers, self._introduce, self._lost)),
            asyncio.create_task(self._keep_reporting()),
        ]

    async def close(self) -> None:
        """Disconnect; calls must have ended."""
        if self._server.link is not None:
            await self._report()
        for task in (*self._tasks, *self._spawned):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._spawned, return_exceptions=True)

    def end(self) -> None:
        """Answer the calls in progress; if the server is gone, refuse them."""
        self._ending = True
        if (link := self._server.link) is None:
            self._give_up()
        elif self._url:
            self._spawn(_leave(link))

    def model_service(self) -> ModelService:
        """Return what agents' routes need."""
        return ModelService(
            settings=self._settings,
            board=self.board,
            episodes=self.episodes,
            run=self,
            add_call=self.add_call,
            started_at=time.time(),
        )

    async def protocol(self, _: Request) -> Response:
        """Answer a health check: fail without a server, or without the tokenizer of its run."""
        info = ProtocolInfo(versions=list(SUPPORTED_VERSIONS), server_version=__version__)
        able = self._server.link is not None and not self._unable
        status = 200 if able else 503
        return JSONResponse(info.model_dump(), status_code=status)

    async def add_call(self, call: Call) -> None:
        """Have the server record a call, once, also if the server restarts meanwhile."""
        again = False
        while True:
            try:
                if await self._server.call_once(ADD_CALL, [again, pack_call(call)]):
                    return
                call = without_base(call)
            except WorkerDiedError:
                again = True

    # --- Inside -----------------------------------------------------------------------------------

    async def _introduce(self, link: Link) -> None:
        hello = Hello(self._place, os.getpid(), self.episodes.ids, self._url)
        for episode_id in await link.call(HELLO, hello):
            # Its calls may be waiting for the link, so this does not wait for their end.
            self._spawn(self.episodes.close(episode_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    def _lost(self) -> None:
        """Let calls wait until the server is back; they continue with the engine that it has."""
        self._state = replace(self._state, engine=None)
        self._drop_engine("the server is restarting")
        if self._ending:
            self._give_up()

    def _give_up(self) -> None:
        self.board.closing = True
        self.board.set(ServerState.OFFLINE)
        self.board.touch()
        self._server.give_up(self.board.not_running())

    async def _set_state(self, state: SharedState) -> None:
        if state.closing:
            # A new server process follows, or SIGTERM.
            self._lost()
            return
        if state.model is not None and state.model != self._served:
            self._served = self._chat = None
            try:
                self._chat = await self._make_chat(state.model)
            except AjetError as error:
                self._log_unable(error)
                raise
            self._served, self._unable = state.model, ""
        elif state.model is None:
            self._served = self._chat = None
        self._state = state
        self.board.policy_version = state.policy_version
        self.board.set(state.state)
        await self._use_engine()
        self.board.touch()

    def _log_unable(self, error: AjetError) -> None:
        if error.message != self._unable:
            _log.error("this gateway cannot answer calls: %s", error.message)
        self._unable = error.message
        # Calls that wait get the error.
        self.board.touch()

    async def _make_chat(self, served: ServedModel) -> CompletionService:
        directory = Path(served.model.path)
        words = "words" in self._settings.fast_paths
        renderer = await asyncio.to_thread(make_renderer, served.model, directory, words=words)
        if renderer.digest != served.tokenizer:
            raise ModelDirectoryError(
                f"the tokenizer in {directory} is not that of the server: copy the files of the "
                "model, without its weights, from the server"
            )
        return CompletionService(
            renderer,
            self._gate,
            served.model.name,
            served.info,
            served.capabilities,
            time.time,
            exact=served.exact,
            note=lambda call, cached: self.unreported.uses.append(CallUse.of(call, cached)),
        )

    async def _use_engine(self) -> None:
        """Send calls to the engine that the state names, or to none."""
        async with self._using_engine:
            engine = self._state.engine
            if self._engine is not None and engine == self._engine[0]:
                return
            self._drop_engine("its engine was replaced")
            if engine is None:
                return
            path, pid = engine
            try:
                connection = WorkerConnection(*await self._reach.engine(path, pid))
            except (OSError, AjetError) as error:
                # The server notices that the engine's process has ended, and names the next one.
                if not self._unreachable:
                    _log.warning(
                        "cannot reach the engine's worker %d, trying again: %s", pid, error
                    )
                self._unreachable = True
                return
            self._unreachable = False
            if engine != self._state.engine:
                connection.close()
                return
            self._engine = (engine, connection)
            self._spawn(self._read(connection))
            self._gate.open(RemoteEngine(connection, f"worker {pid}"))

    async def _read(self, connection: WorkerConnection) -> None:
        try:
            await connection.read()
        finally:
            if self._engine is not None and self._engine[1] is connection:
                self._drop_engine("the engine's process ended")

    def _drop_engine(self, why: str) -> None:
        if self._engine is not None:
            _, connection = self._engine
            self._engine = None
            self._gate.shut()
            connection.lose(why)
            connection.close()

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            try:
                if self._engine is None and self._state.engine is not None:
                    await self._use_engine()
                await self._report()
            except NotRollingError:
                return
            except AjetError as error:
                _log.error("cannot report to the server process: %s", error.message)

    async def _report(self) -> None:
        unread = "" if self._chat is None else self._chat.unread_calls
        report = self.unreported.taken(self._gate.running, unread)
        if report is not None:
            with contextlib.suppress(WorkerDiedError):
                await self._server.call_once(REPORT, report)


async def _leave(link: Link) -> None:
    with contextlib.suppress(WorkerDiedError):
        await link.call(LEAVE, None)
