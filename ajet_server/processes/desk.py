"""The server's end of its gateway processes: it opens episodes for them and records their calls."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import EpisodeClosedError, WorkerDiedError
from ajet_core.timeline import Call
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.processes.link import Link, answering
from ajet_server.processes.methods import (
    ADD_CALL,
    BEGIN_CALL,
    CLOSE_EPISODE,
    END_CALL,
    HELLO,
    OPEN_EPISODE,
    REPORT,
    SET_STATE,
    Hello,
    Opened,
    Report,
    ServedModel,
    SharedState,
)
from ajet_server.processes.wire import TokensElsewhereError, digest, pack_call, unpack_call
from ajet_server.run.run_loop import RunLoop
from ajet_server.service import SwarmService

_log = logging.getLogger("ajet.server")

# Canceling calls and recording what they sampled takes milliseconds.
_CLOSE_SECONDS = 30.0
# Agents that change their tools are rare.
_KNOWN_TOOLS = 8


@dataclass(slots=True)
class EpisodeElsewhere:
    """An episode whose calls a gateway process answers.

    :ivar link: to the process; None if it has ended.
    :ivar running: as `CallsElsewhere.running`.
    :ivar writing: the writes in progress, by call.
    :ivar tools: the texts of tools that calls have had, by digest.
    """

    episode_id: str
    link: Link | None = None
    running: int = 0
    writing: dict[str, asyncio.Future[bool]] = field(default_factory=dict)
    tools: dict[bytes, str] = field(default_factory=dict)

    async def close(self) -> None:
        """As `CallsElsewhere.close`; nothing runs in a process that has ended."""
        link = self.link
        try:
            if link is not None:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await link.call(CLOSE_EPISODE, self.episode_id)
        except TimeoutError:
            _log.error(
                "a gateway process did not close episode %s within %g s and is disconnected",
                self.episode_id,
                _CLOSE_SECONDS,
            )
            # When it works again, it connects again and learns that the episode is closed.
            assert link is not None
            link.close()
        except WorkerDiedError:
            pass
        await self.written()

    async def written(self) -> None:
        """Wait until the calls that have arrived are written."""
        await asyncio.gather(*self.writing.values(), return_exceptions=True)

    def learn(self, tools: str) -> None:
        """Remember the tools of a call."""
        if tools and len(self.tools) >= _KNOWN_TOOLS:
            del self.tools[next(iter(self.tools))]
        if tools:
            self.tools[digest(tools)] = tools

    def tools_of(self, named: bytes) -> str:
        """Return the tools with a digest.

        :raises TokensElsewhereError: they are unknown.
        """
        if (tools := self.tools.get(named)) is None:
            raise TokensElsewhereError
        return tools


class GatewayDesk:
    """Serves the gateway processes of a server.

    :ivar gateways: those that are connected, by place.
    """

    def __init__(self, service: SwarmService) -> None:
        self._service = service
        self._serving: set[asyncio.Task[None]] = set()
        processes = service.settings.server.processes
        places = range(1, processes + 1) if processes > 1 else ()
        self._missing_since = dict.fromkeys(places, time.monotonic())
        self.gateways: dict[int, Gateway] = {}

    def missing(self) -> dict[int, float]:
        """Return the gateway processes that are not connected, each with the seconds since then."""
        now = time.monotonic()
        return {place: now - since for place, since in self._missing_since.items()}

    def connected(self, gateway: Gateway) -> None:
        """Record that a gateway process has introduced itself."""
        self.gateways[gateway.place] = gateway
        self._missing_since.pop(gateway.place, None)
        _log.info("gateway process %d (pid %d) is connected", gateway.place, gateway.pid)

    def connect(self, connection: socket.socket) -> None:
        """Serve a gateway process until it ends."""
        task = asyncio.create_task(self._serve(connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """Serve no gateway process any more."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, connection: socket.socket) -> None:
        gateway = Gateway(self._service, self)
        gateway.link = await Link.connected(connection, gateway.handlers)
        sending = asyncio.create_task(gateway.send_states())
        try:
            await gateway.link.serve("gateway")
        finally:
            sending.cancel()
            gateway.leave()
            if self.gateways.get(gateway.place) is gateway:
                del self.gateways[gateway.place]
                self._missing_since[gateway.place] = time.monotonic()
                _log.info(
                    "gateway process %d (pid %d) has disconnected", gateway.place, gateway.pid
                )
            await asyncio.gather(sending, return_exceptions=True)
            self.count()

    def count(self) -> None:
        """Add up the calls that the engine is working on for gateway processes."""
        loop = self._service.coordinator.loop
        if loop is not None:
            generating = sum(gateway.report.generating for gateway in self.gateways.values())
            loop.supervisor.gate.elsewhere = generating


class Gateway:
    """A gateway process, as the server sees it.

    :ivar link: the connection to it.
    :ivar place: which of the processes it is; 0 until it has introduced itself.
    :ivar report: its last report.
    """

    link: Link

    def __init__(self, service: SwarmService, desk: GatewayDesk) -> None:
        self._service = service
        self._desk = desk
        self._counted: defaultdict[str, list[ExitStack]] = defaultdict(list)
        self.place, self.pid = 0, 0
        self.report = Report()
        self.handlers = dict(
            [
                answering(HELLO, self._hello),
                answering(OPEN_EPISODE, self._open_episode),
                answering(ADD_CALL, self._add_call),
                answering(REPORT, self._reported),
                answering(BEGIN_CALL, self._begin_call),
                answering(END_CALL, self._end_call),
            ]
        )

    async def send_states(self) -> None:
        """Send the state of the run, and each change of it."""
        latest: SharedState | None = None
        while True:
            await self._service.board.wait_until(lambda: self._state() != latest)  # noqa: B023
            latest = self._state()
            try:
                await self.link.call(SET_STATE, latest)
            except WorkerDiedError:
                return
            except Exception as error:  # noqa: BLE001 - the next state may work
                _log.error("cannot send the state to gateway process %d: %s", self.place, error)

    def leave(self) -> None:
        """Forget the process, which has ended."""
        for episode in self._service.episodes.open:
            if (elsewhere := self._elsewhere(episode)) is not None:
                elsewhere.link, elsewhere.running = None, 0
        for stacks in self._counted.values():
            for stack in stacks:
                stack.close()
        self._counted.clear()
        self.report = Report()

    def _elsewhere(self, episode: OpenEpisode | None) -> EpisodeElsewhere | None:
        """Return the part of an episode that is this process's, None if another has it."""
        elsewhere = None if episode is None else episode.elsewhere
        if isinstance(elsewhere, EpisodeElsewhere) and elsewhere.link is self.link:
            return elsewhere
        return None

    async def _hello(self, hello: Hello) -> list[str]:
        self.place, self.pid = hello.place, hello.pid
        self._desk.connected(self)
        return [i for i in hello.episode_ids if not self._take(i)]

    def _take(self, episode_id: str) -> bool:
        """Let the process answer the calls of an episode; return False if it is not open."""
        episode = self._service.episodes.open.get(episode_id)
        if episode is None or episode.closing.locked():
            return False
        if episode.elsewhere is None:
            episode.elsewhere = EpisodeElsewhere(episode_id)
        assert isinstance(episode.elsewhere, EpisodeElsewhere)
        # What the process before it was still writing stays known.
        episode.elsewhere.link, episode.elsewhere.running = self.link, 0
        return True

    async def _open_episode(self, key: str) -> Opened:
        service = self._service
        episode = await service.episodes.authenticate(key)
        record = episode.record
        if isinstance(episode.elsewhere, EpisodeElsewhere):
            # What a process that has ended was still writing belongs to the conversation.
            await episode.elsewhere.written()
        calls: list[Call] = []
        if episode.session.next_index:
            calls = (await service.store.calls([record.episode_id]))[record.episode_id]
        if not self._take(record.episode_id):
            raise EpisodeClosedError(f"episode {record.episode_id} is being closed")
        return Opened(
            record=record,
            calls=[pack_call(call) for call in calls],
            tools=list({call.tools for call in calls}),
            next_index=episode.session.next_index,
            counts_calls=service.tenants.limits_calls(record.client_id),
        )

    async def _add_call(self, sent: list[Any]) -> bool:
        """Write a call; return False if it is needed whole."""
        again, plain = sent
        call_id, episode_id = plain[0][0], plain[0][1]
        episode = self._service.episodes.open.get(episode_id)
        elsewhere = self._elsewhere(episode)
        if episode is None or elsewhere is None:
            raise EpisodeClosedError(f"episode {episode_id} was closed while this call was running")
        writing = elsewhere.writing.get(call_id)
        if writing is None:
            # Nothing is awaited before it is known, so that a close waits for it.
            writing = asyncio.ensure_future(self._write(plain, episode, elsewhere, again=again))
            elsewhere.writing[call_id] = writing
            writing.add_done_callback(lambda done: _written(elsewhere, call_id, done))
        # A gateway that ends meanwhile does not undo the write.
        return await asyncio.shield(writing)

    async def _write(
        self, plain: list[Any], episode: OpenEpisode, elsewhere: EpisodeElsewhere, *, again: bool
    ) -> bool:
        call_id, episode_id = plain[0][0], plain[0][1]
        if again:
            calls = (await self._service.store.calls([episode_id]))[episode_id]
            if any(call.call_id == call_id for call in calls):
                return True
        try:
            call = unpack_call(plain, lambda *_: None, elsewhere.tools_of)
            elsewhere.learn(call.tools)
            # Its index is taken, whether the write succeeds or not.
            episode.session.next_index = max(episode.session.next_index, call.index + 1)
            await self._service.store.add_call(call)
            episode.session.note(call)
        except TokensElsewhereError:
            return False
        return True

    async def _reported(self, report: Report) -> None:
        service, self.report = self._service, report
        for episode_id, running in report.running.items():
            if self._elsewhere(service.episodes.open.get(episode_id)) is not None:
                service.episodes.called_elsewhere(episode_id, running)
        for use in report.uses:
            service.admission.used(use)
        for message in report.throttled:
            service.throttled.note(message)
        chat = service.coordinator.chat
        if chat is not None and report.unread_calls:
            chat.unread_calls = report.unread_calls
        self._desk.count()

    async def _begin_call(self, tenant: str) -> None:
        stack = ExitStack()
        stack.enter_context(self._service.tenants.call_of(tenant))
        self._counted[tenant].append(stack)

    async def _end_call(self, tenant: str) -> None:
        if stacks := self._counted.get(tenant):
            stacks.pop().close()
            if not stacks:
                del self._counted[tenant]

    def _state(self) -> SharedState:
        service = self._service
        board, coordinator = service.board, service.coordinator
        loop, chat = coordinator.loop, coordinator.chat
        return SharedState(
            state=board.state,
            policy_version=board.policy_version,
            closing=board.closing,
            running=coordinator.running,
            model_name=coordinator.model_name,
            agents=dict(coordinator.agents),
            evaluation_sampling=coordinator.evaluation_sampling,
            model=None if loop is None or chat is None else _served(loop, chat),
            engine=None if loop is None else loop.supervisor.callable_engine,
        )


def _served(loop: RunLoop, chat: CompletionService) -> ServedModel:
    config = loop.run.config
    return ServedModel(config.model, chat.info, chat.capabilities, config.exact)


def _written(elsewhere: EpisodeElsewhere, call_id: str, done: asyncio.Future[bool]) -> None:
    elsewhere.writing.pop(call_id, None)
    if not done.cancelled():
        # Its caller may have been cancelled.
        done.exception()
