"""The `httpx2` clients behind a connection: one for each process, or one for each event loop.

httpx2 is imported at the first request because its import takes as long as the rest of the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from agentjet.client._wire import CONNECT_TIMEOUT, TransportFailure
from ajet_core.errors import StateError

if TYPE_CHECKING:
    import httpx2

# Shorter than the 5 s after which servers (uvicorn) close idle connections, so that no request uses
# a connection that is being closed.
KEEPALIVE_SECONDS = 3.0
# For every request, httpcore2 checks every idle connection of its pool, with a system call each:
# with 64 of them, that costs more than the requests.
MAX_IDLE_CONNECTIONS = 16


def timeouts(read: float) -> httpx2.Timeout:
    """Return the timeouts of a request, given the seconds to wait for its answer."""
    import httpx2

    return httpx2.Timeout(CONNECT_TIMEOUT, read=read)


@contextlib.contextmanager
def transport_failures() -> Iterator[None]:
    """Convert httpx2's transport errors to `TransportFailure`."""
    import httpx2

    try:
        yield
    except httpx2.TransportError as error:
        unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise TransportFailure(text, sent=not unsent) from error


def _limits() -> httpx2.Limits:
    import httpx2

    # Long polls hold their connections, so there is one connection per open request.
    return httpx2.Limits(
        max_connections=None,
        max_keepalive_connections=MAX_IDLE_CONNECTIONS,
        keepalive_expiry=KEEPALIVE_SECONDS,
    )


def _closed_error(what: str) -> StateError:
    return StateError(f"this {what} is closed; create a new one")


@dataclass(slots=True)
class _OfProcess:
    """State of one process.

    :param lock: held while `http` is created.
    :param connecting: held while a protocol version is agreed on.
    """

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connecting: threading.Lock = field(default_factory=threading.Lock)
    http: httpx2.Client | None = None


class Pool:
    """The `httpx2.Client` of this process, shared by its threads; a forked process gets another."""

    def __init__(self, transport: httpx2.BaseTransport | None) -> None:
        self._transport = transport
        self._closed = False
        self._mine = _OfProcess()

    def client(self) -> httpx2.Client:
        """Return the client of this process.

        :raises StateError: the pool is closed.
        """
        mine = self._ready()
        if mine.http is None:
            import httpx2

            with mine.lock:
                if mine.http is None:
                    mine.http = httpx2.Client(
                        transport=self._transport, limits=_limits(), trust_env=True
                    )
        return mine.http

    def connecting(self) -> threading.Lock:
        """Return the lock to hold while a protocol version is agreed on.

        :raises StateError: the pool is closed.
        """
        return self._ready().connecting

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._mine.http is not None and self._mine.pid == os.getpid():
            self._mine.http.close()
        self._mine.http = None

    def _ready(self) -> _OfProcess:
        if self._closed:
            raise _closed_error("SwarmClient")
        if self._mine.pid != os.getpid():
            # The parent's connections and locks must be neither used nor closed here.
            self._mine = _OfProcess()
        return self._mine


@dataclass(frozen=True, slots=True)
class _OfLoop:
    """State of one event loop.

    :param connecting: held while a protocol version is agreed on.
    """

    http: httpx2.AsyncClient
    connecting: asyncio.Lock


class AsyncPool:
    """An `httpx2.AsyncClient` for each event loop that uses it."""

    def __init__(self, transport: httpx2.AsyncBaseTransport | None) -> None:
        self._transport = transport
        self._closed = False
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    def client(self) -> httpx2.AsyncClient:
        """Return the client of the running event loop.

        :raises StateError: the pool is closed.
        """
        return self._ready().http

    def connecting(self) -> asyncio.Lock:
        """Return the lock to hold while a protocol version is agreed on.

        :raises StateError: the pool is closed.
        """
        return self._ready().connecting

    async def close(self) -> None:
        """Close all connections of this event loop; those of other loops ended with them."""
        self._closed = True
        mine = self._of_loop.pop(asyncio.get_running_loop(), None)
        if mine is not None:
            await mine.http.aclose()

    def _ready(self) -> _OfLoop:
        if self._closed:
            raise _closed_error("AsyncSwarmClient")
        loop = asyncio.get_running_loop()
        mine = self._of_loop.get(loop)
        if mine is None:
            import httpx2

            http = httpx2.AsyncClient(transport=self._transport, limits=_limits())
            mine = self._of_loop[loop] = _OfLoop(http, asyncio.Lock())
        return mine
