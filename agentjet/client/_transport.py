"""Makes happen what flows ask for: one driver over `httpx.Client`, one over `httpx.AsyncClient`.

httpx is imported at the first request: it takes as long to import as all the rest of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from agentjet.client._flows import Flow, Flows
from agentjet.client._sse import EventFeed
from agentjet.client._wire import CONNECT_TIMEOUT, Answer, Pause, Send, TransportFailure
from ajet_core.errors import StateError
from ajet_core.protocol import Event

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

# Shorter than the 5 s after which servers (uvicorn) close idle connections: a request must not meet one
# that is being closed.
KEEPALIVE_SECONDS = 3.0
# httpcore looks at every idle connection of its pool (a system call each) for every request: 64 of them
# cost more than the requests.
MAX_IDLE_CONNECTIONS = 16


def _limits() -> httpx.Limits:
    import httpx

    # Long polls hold their connections, so the number of connections is that of open requests.
    return httpx.Limits(
        max_connections=None,
        max_keepalive_connections=MAX_IDLE_CONNECTIONS,
        keepalive_expiry=KEEPALIVE_SECONDS,
    )


def _timeout(send: Send) -> httpx.Timeout:
    import httpx

    return httpx.Timeout(CONNECT_TIMEOUT, read=send.read_timeout)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn httpx's transport errors into ours."""
    import httpx

    try:
        yield
    except httpx.TransportError as error:
        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise TransportFailure(text, sent=not unsent) from error


def _closed_error(what: str) -> StateError:
    return StateError(f"this {what} is closed; make a new one")


class SyncDriver:
    """Runs flows over an `httpx.Client`, from any thread, and after a fork with new connections."""

    def __init__(
        self,
        flows: Flows,
        transport: httpx.BaseTransport | None,
        sleep: Callable[[float], None],
    ) -> None:
        self._flows = flows
        self._transport = transport
        self._sleep = sleep
        self._closed = False
        self._lock = threading.Lock()
        self._http: httpx.Client | None = None
        self._pid = os.getpid()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._http is not None and self._pid == os.getpid():
            self._http.close()
        self._http = None

    def run(self, flow: Flow[R]) -> R:
        """The result of `flow`, after agreeing on a protocol version if that was not done yet."""
        return self._drive(self._connected(), flow)

    def events(self, feed: EventFeed) -> Iterator[Event]:
        """All events of `feed`, over as many connections as it takes."""
        while True:
            http = self._connected()
            send = feed.request()
            try:
                with (
                    _failures(),
                    http.stream(
                        send.method, send.url, headers=dict(send.headers), timeout=_timeout(send)
                    ) as response,
                ):
                    if response.status_code == 200:
                        for chunk in response.iter_bytes():
                            yield from feed.feed(chunk)
                        pause = feed.lost(None)
                    else:
                        pause = feed.refused(_answer(response, response.read()))
            except TransportFailure as failure:
                pause = feed.lost(failure)
            self._sleep(pause)

    def _drive(self, http: httpx.Client, flow: Flow[R]) -> R:
        reply: Answer | TransportFailure | None = None
        while True:
            try:
                step = (
                    flow.throw(reply) if isinstance(reply, TransportFailure) else flow.send(reply)
                )
            except StopIteration as stop:
                result: R = stop.value
                return result
            reply = None
            if isinstance(step, Pause):
                self._sleep(step.seconds)
                continue
            try:
                with _failures():
                    response = http.request(
                        step.method,
                        step.url,
                        headers=dict(step.headers),
                        content=step.content,
                        timeout=_timeout(step),
                    )
                reply = _answer(response, response.content)
            except TransportFailure as failure:
                reply = failure

    def _connected(self) -> httpx.Client:
        http = self._ready()
        if self._flows.version is None:
            with self._lock:
                if self._flows.version is None:
                    self._drive(http, self._flows.connect())
        return http

    def _ready(self) -> httpx.Client:
        if self._closed:
            raise _closed_error("SwarmClient")
        if self._pid != os.getpid():
            # The parent's connections (and a lock it may have held) are not ours to use or to close.
            self._pid, self._http, self._lock = os.getpid(), None, threading.Lock()
        if self._http is None:
            import httpx

            with self._lock:
                if self._http is None:
                    self._http = httpx.Client(
                        transport=self._transport, limits=_limits(), trust_env=True
                    )
        return self._http


@dataclass(frozen=True, slots=True)
class _OfLoop:
    """What belongs to one event loop.

    :param connecting: held while a protocol version is agreed on.
    """

    http: httpx.AsyncClient
    connecting: asyncio.Lock


class AsyncDriver:
    """Runs flows over an `httpx.AsyncClient` for each event loop that asks."""

    def __init__(
        self,
        flows: Flows,
        transport: httpx.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._flows = flows
        self._transport = transport
        self._sleep = sleep
        self._closed = False
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    async def close(self) -> None:
        """Close all connections of this event loop; those of another one went with it."""
        self._closed = True
        mine = self._of_loop.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            await mine.http.aclose()

    async def run(self, flow: Flow[R]) -> R:
        """The result of `flow`, after agreeing on a protocol version if that was not done yet."""
        return await self._drive(await self._connected(), flow)

    async def events(self, feed: EventFeed) -> AsyncIterator[Event]:
        """All events of `feed`, over as many connections as it takes."""
        while True:
            http = await self._connected()
            send = feed.request()
            try:
                with _failures():
                    async with http.stream(
                        send.method, send.url, headers=dict(send.headers), timeout=_timeout(send)
                    ) as response:
                        if response.status_code == 200:
                            async for chunk in response.aiter_bytes():
                                for event in feed.feed(chunk):
                                    yield event
                            pause = feed.lost(None)
                        else:
                            pause = feed.refused(_answer(response, await response.aread()))
            except TransportFailure as failure:
                pause = feed.lost(failure)
            await self._sleep(pause)

    async def _drive(self, http: httpx.AsyncClient, flow: Flow[R]) -> R:
        reply: Answer | TransportFailure | None = None
        while True:
            try:
                step = (
                    flow.throw(reply) if isinstance(reply, TransportFailure) else flow.send(reply)
                )
            except StopIteration as stop:
                result: R = stop.value
                return result
            reply = None
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
                continue
            try:
                with _failures():
                    response = await http.request(
                        step.method,
                        step.url,
                        headers=dict(step.headers),
                        content=step.content,
                        timeout=_timeout(step),
                    )
                reply = _answer(response, response.content)
            except TransportFailure as failure:
                reply = failure

    async def _connected(self) -> httpx.AsyncClient:
        mine = self._ready()
        if self._flows.version is None:
            async with mine.connecting:
                if self._flows.version is None:
                    await self._drive(mine.http, self._flows.connect())
        return mine.http

    def _ready(self) -> _OfLoop:
        if self._closed:
            raise _closed_error("AsyncSwarmClient")
        loop = asyncio.get_running_loop()
        mine = self._of_loop.get(loop)
        if mine is None:
            import httpx

            http = httpx.AsyncClient(transport=self._transport, limits=_limits())
            mine = self._of_loop[loop] = _OfLoop(http, asyncio.Lock())
        return mine


def _answer(response: httpx.Response, body: bytes) -> Answer:
    return Answer(response.status_code, response.headers, body)
