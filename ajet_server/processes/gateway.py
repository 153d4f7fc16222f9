"""A gateway process: it answers the calls of its episodes, and records them with the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ajet_core import __version__
from ajet_core.errors import (
    AjetError,
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
from ajet_server.gateway.engine_gate import EngineGate
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.rendering.factory import make_renderer
from ajet_server.http.model_service import ModelService
from ajet_server.observe.events import EventLog
from ajet_server.processes.gateway_episodes import GatewayEpisodes, ServerLink, Unreported
from ajet_server.processes.link import Link, answering
from ajet_server.processes.machines import Reach
from ajet_server.processes.methods import (
    ADD_CALL,
    CLOSE_EPISODE,
    HELLO,
    LEAVE,
    LOOK,
    RELEASE_EPISODE,
    REPORT,
    SET_STATE,
    Hello,
    ServedModel,
    SharedState,
)
from ajet_server.processes.wire import pack_call, without_base
from ajet_server.security.tenants import TenantLimits
from ajet_server.state import StateBoard
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.remote import RemoteEngine

if TYPE_CHECKING:
    from ajet_server.telemetry.telemetry import Telemetry

_log = logging.getLogger("ajet.server")

_REPORT_SECONDS = 0.25
# How long agents wait before another gateway may be asked.
_UNABLE_SECONDS = 5.0


class GatewayProcess:
    """What a gateway has instead of a `SwarmService`.

    :param place: which of the server's processes it is; 0 on another machine.
    :param url: as `Hello.url`.
    :param telemetry: exports the spans of calls; None if that is off.
    :ivar episodes: those it has opened.
    :ivar board: as the server's.
    :ivar unreported: what the next report says.
    """

    def __init__(
        self,
        settings: ServerSettings,
        reach: Reach,
        place: int = 0,
        url: str = "",
        telemetry: Telemetry | None = None,
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
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
        if self._telemetry is not None:
            self._telemetry.open()
        handlers = dict(
            [
                answering(SET_STATE, self._set_state),
                answering(CLOSE_EPISODE, self.episodes.close),
                answering(RELEASE_EPISODE, self.episodes.release),
                answering(LOOK, self.episodes.look),
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
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close)

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
            telemetry=self._telemetry,
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
        hello = Hello(self._place, os.getpid(), self.episodes.failures, self._url)
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
