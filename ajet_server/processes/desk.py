"""The server's end of its gateways: it opens episodes for them and records their calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ajet_core.errors import ConfigError, EpisodeClosedError, WorkerDiedError
from ajet_core.timeline import Call
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.running_calls import RunningSnapshot
from ajet_server.processes.link import STREAM_BYTES, Link, answering
from ajet_server.processes.methods import (
    ADD_CALL,
    BEGIN_CALL,
    CLOSE_EPISODE,
    END_CALL,
    HELLO,
    JUDGED,
    LEAVE,
    LOOK,
    OPEN_EPISODE,
    RELEASE_EPISODE,
    REPORT,
    SET_STATE,
    Hello,
    Opened,
    Report,
    ServedModel,
    SharedState,
    Watched,
)
from ajet_server.processes.wire import TokensElsewhereError, digest, pack_call, unpack_call
from ajet_server.run.run_loop import RunLoop
from ajet_server.service import SwarmService

_log = logging.getLogger("ajet.server")

# Canceling calls and recording what they sampled takes milliseconds.
_CLOSE_SECONDS = 30.0
_ALIVE_SECONDS = 2.0
# Agents that change their tools are rare.
_KNOWN_TOOLS = 8


@dataclass(slots=True)
class EpisodeElsewhere:
    """An episode whose calls a gateway answers.

    :ivar gateway: None if it has ended.
    :ivar running: as `CallsElsewhere.running`.
    :ivar writing: the writes in progress, by call.
    :ivar tools: the texts of tools that calls have had, by digest.
    """

    episode_id: str
    gateway: Gateway | None = None
    running: int = 0
    writing: dict[str, asyncio.Future[bool]] = field(default_factory=dict)
    tools: dict[bytes, str] = field(default_factory=dict)

    async def close(self) -> None:
        """As `CallsElsewhere.close`; nothing runs in a gateway that has ended."""
        gateway = self.gateway
        try:
            if gateway is not None:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await gateway.link.call(CLOSE_EPISODE, self.episode_id)
        except TimeoutError:
            assert gateway is not None
            _log.error(
                "%s did not close episode %s within %g s and is disconnected",
                gateway.name,
                self.episode_id,
                _CLOSE_SECONDS,
            )
            # When it works again, it connects again and learns that the episode is closed.
            gateway.link.close()
        except WorkerDiedError:
            pass
        await self.written()

    async def look(self, seen: Mapping[str, int]) -> RunningSnapshot | None:
        """As `CallsElsewhere.look`; nothing runs in a gateway that has ended."""
        if (gateway := self.gateway) is None:
            return RunningSnapshot([])
        with contextlib.suppress(WorkerDiedError, TimeoutError):
            async with asyncio.timeout(_ALIVE_SECONDS):
                return await gateway.link.call(LOOK, Watched(self.episode_id, dict(seen)))
        return None

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
    """Serves the gateways of a server: processes of its own, or on other machines.

    :ivar gateways: those that are connected, by name.
    """

    def __init__(self, service: SwarmService) -> None:
        self._service = service
        self._serving: set[asyncio.Task[None]] = set()
        server = service.settings.server
        places = range(1, server.processes + 1) if server.processes > 1 else ()
        self._missing_since = dict.fromkeys(places, time.monotonic())
        # Gateways elsewhere come and go, but there should be one.
        self._alone_since = time.monotonic() if server.gateways_listen else None
        self.gateways: dict[str, Gateway] = {}

    def missing(self) -> dict[str, float]:
        """Return a sentence about each gateway that is not connected, with the seconds since then.

        Gateways on other machines are missed only if none is connected.
        """
        now = time.monotonic()
        missing = {
            f"gateway process {place} is not connected to the server process, so the calls of its "
            "episodes wait: the server's log has the reason": now - since
            for place, since in self._missing_since.items()
        }
        if self._alone_since is not None and not self.gateways:
            missing[
                "no gateway is connected, so agents' calls are not answered: start one with "
                "`ajet gateway`, or look into its log"
            ] = now - self._alone_since
        return missing

    async def check_url(self, hello: Hello) -> None:
        """Check that no other gateway has the URL of one that introduces itself.

        :raises ConfigError: another one has it, and answers.
        """
        other = next((g for g in self.gateways.values() if g.url and g.url == hello.url), None)
        if other is None:
            return
        # The connection of one that was lost may still seem open.
        with contextlib.suppress(WorkerDiedError, TimeoutError):
            async with asyncio.timeout(_ALIVE_SECONDS):
                await other.link.call(RELEASE_EPISODE, "")
            raise ConfigError(
                f"another gateway (pid {other.pid}) is connected with the URL {other.url}: give "
                "each its own",
                param="gateway.url",
            )

    def connected(self, gateway: Gateway) -> None:
        """Record that a gateway has introduced itself."""
        if (former := self.gateways.get(gateway.name)) is not None:
            # The end of a connection between machines may be noticed late.
            former.link.close()
            former.leave()
        self.gateways[gateway.name] = gateway
        self._missing_since.pop(gateway.place, None)
        _log.info("%s (pid %d) is connected", gateway.name, gateway.pid)

    def connect(self, connection: socket.socket) -> None:
        """Serve a gateway process of this server until it ends."""
        task = asyncio.create_task(self._serve_process(connection))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve_process(self, connection: socket.socket) -> None:
        streams = await asyncio.open_unix_connection(sock=connection, limit=STREAM_BYTES)
        await self.serve(*streams)

    async def close(self) -> None:
        """Stop serving gateway processes."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a gateway at the other end of a connection until it ends."""
        gateway = Gateway(self._service, self)
        gateway.link = Link(reader, writer, gateway.handlers)
        sending = asyncio.create_task(gateway.send_states())
        try:
            await gateway.link.serve("gateway")
        finally:
            sending.cancel()
            gateway.leave()
            if self.gateways.get(gateway.name) is gateway:
                del self.gateways[gateway.name]
                if gateway.place:
                    self._missing_since[gateway.place] = time.monotonic()
                elif not self.gateways:
                    self._alone_since = time.monotonic()
                _log.info("%s (pid %d) has disconnected", gateway.name, gateway.pid)
            await asyncio.gather(sending, return_exceptions=True)
            self.count()

    def engine(self) -> tuple[str, int] | None:
        """As `Supervisor.callable_engine`."""
        loop = self._service.coordinator.loop
        return None if loop is None else loop.supervisor.callable_engine

    def count(self) -> None:
        """Add up the calls that the engine is working on for gateway processes."""
        loop = self._service.coordinator.loop
        if loop is not None:
            generating = sum(gateway.report.generating for gateway in self.gateways.values())
            loop.supervisor.gate.elsewhere = generating


class Gateway:
    """A gateway, as the server sees it.

    :ivar link: the connection to it.
    :ivar place: which of the server's processes it is; 0 until it has introduced itself, and on
        another machine.
    :ivar url: at which other gateways reach it; "" if it shares the port of the server.
    :ivar leaving: whether it releases its episodes.
    :ivar report: its last report.
    """

    link: Link

    def __init__(self, service: SwarmService, desk: GatewayDesk) -> None:
        self._service = service
        self._desk = desk
        self._counted: defaultdict[str, list[ExitStack]] = defaultdict(list)
        self.place, self.pid, self.url = 0, 0, ""
        self.leaving = False
        self.report = Report()
        self.handlers = dict(
            [
                answering(HELLO, self._hello),
                answering(OPEN_EPISODE, self._open_episode),
                answering(ADD_CALL, self._add_call),
                answering(REPORT, self._reported),
                answering(BEGIN_CALL, self._begin_call),
                answering(END_CALL, self._end_call),
                answering(JUDGED, self._judged),
                answering(LEAVE, self._leave),
            ]
        )

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"the gateway at {self.url}" if self.url else f"gateway process {self.place}"

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
                _log.error("cannot send the state to %s: %s", self.name, error)

    def leave(self) -> None:
        """Forget the gateway, which has ended."""
        for episode in self._service.episodes.open:
            if (elsewhere := self._elsewhere(episode)) is not None:
                if elsewhere.running:
                    # Until it connects again, or another gateway answers a call.
                    episode.session.failed(f"worker_died: {self.name} ended during a call")
                elsewhere.gateway, elsewhere.running = None, 0
        for stacks in self._counted.values():
            for stack in stacks:
                stack.close()
        self._counted.clear()
        self.report = Report()

    def _elsewhere(self, episode: OpenEpisode | None) -> EpisodeElsewhere | None:
        """Return the part of an episode that is this gateway's, None if another has it."""
        elsewhere = None if episode is None else episode.elsewhere
        if isinstance(elsewhere, EpisodeElsewhere) and elsewhere.gateway is self:
            return elsewhere
        return None

    async def _hello(self, hello: Hello) -> list[str]:
        await self._desk.check_url(hello)
        self.place, self.pid, self.url = hello.place, hello.pid, hello.url
        self._desk.connected(self)
        return [i for i, failure in hello.failures.items() if not self._take_again(i, failure)]

    def _take_again(self, episode_id: str, failure: str) -> bool:
        """Take an episode that the gateway has opened; return whether it may still answer calls.

        :param failure: `Session.failure` there, which the server may have missed.
        """
        episode = self._service.episodes.open.get(episode_id)
        if episode is None or episode.calls_over or episode.closing.locked():
            return False
        if self._other(episode) is not None:
            return False
        self._take(episode)
        episode.session.failure = failure
        return True

    def _other(self, episode: OpenEpisode) -> Gateway | None:
        """Return the gateway that has an episode, None if this one may take it.

        A process takes the episodes of the one before it.
        """
        elsewhere = episode.elsewhere
        other = elsewhere.gateway if isinstance(elsewhere, EpisodeElsewhere) else None
        return None if other is None or other.name == self.name else other

    def _take(self, episode: OpenEpisode) -> EpisodeElsewhere:
        """Let the gateway answer the calls of an episode."""
        if episode.elsewhere is None:
            episode.elsewhere = EpisodeElsewhere(episode.record.episode_id)
        assert isinstance(episode.elsewhere, EpisodeElsewhere)
        # What the gateway before it was still writing stays known.
        episode.elsewhere.gateway, episode.elsewhere.running = self, 0
        return episode.elsewhere

    async def _open_episode(self, key: str) -> Opened | str:
        episode = await self._service.episodes.authenticate(key)
        while (other := self._other(episode)) is not None:
            if not other.leaving:
                return other.url
            with contextlib.suppress(WorkerDiedError):
                await other.link.call(RELEASE_EPISODE, episode.record.episode_id)
            if (released := other._elsewhere(episode)) is not None:
                released.gateway, released.running = None, 0
        # From here on other gateways leave the episode to this one.
        elsewhere = self._take(episode)
        try:
            return await self._opened(episode, elsewhere)
        except BaseException:
            if self._elsewhere(episode) is not None:
                elsewhere.gateway = None
            raise

    async def _opened(self, episode: OpenEpisode, elsewhere: EpisodeElsewhere) -> Opened:
        service, record = self._service, episode.record
        # What a gateway that has ended was still writing belongs to the conversation.
        await elsewhere.written()
        calls: list[Call] = []
        if episode.session.next_index:
            calls = (await service.store.calls([record.episode_id]))[record.episode_id]
        is_open = service.episodes.open.get(record.episode_id) is episode
        is_closing = episode.calls_over or episode.closing.locked()
        if not is_open or is_closing or self._elsewhere(episode) is None:
            raise EpisodeClosedError(f"episode {record.episode_id} is being closed")
        return Opened(
            record=record,
            calls=[pack_call(call) for call in calls],
            tools=list({call.tools for call in calls}),
            next_index=episode.session.next_index,
            counts_calls=service.tenants.limits_calls(record.client_id),
            watched=episode.session.running.watched(time.time()),
            failure=episode.session.failure,
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

    async def _judged(self, judged: list[str]) -> None:
        episode_id, failure = judged
        episode = self._service.episodes.open.get(episode_id)
        if episode is not None and self._elsewhere(episode) is not None:
            episode.session.failure = failure

    async def _leave(self, _: None) -> None:
        self.leaving = True

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
    return ServedModel(config.model, chat.info, chat.capabilities, config.exact, chat.tokenizer)


def _written(elsewhere: EpisodeElsewhere, call_id: str, done: asyncio.Future[bool]) -> None:
    elsewhere.writing.pop(call_id, None)
    if not done.cancelled():
        # Its caller may have been cancelled.
        done.exception()
