"""Connections between a server and its gateways on other machines.

A gateway opens them: one is its link (`ajet_server.processes.link`), and one leads to the engine's
worker, whose Unix socket the server connects it with. A connection begins with one frame of the
gateway, the secret that both share, and one of the server: None, or why it refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgpack

from ajet_core import __version__
from ajet_core.errors import AjetError, AuthError, ConfigError, VersionError, error_from_payload
from ajet_installation.settings import ServerSettings, Settings, host_and_port
from ajet_server.processes.link import STREAM_BYTES
from ajet_server.workers import frames
from ajet_server.workers.rendezvous import SUPPORTED, connect

_log = logging.getLogger("ajet.server")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# Tokens travel between the processes as this machine stores them.
_RELEASE = f"{__version__} {sys.byteorder}"
_LINK, _ENGINE = "link", "engine"
_GREETING_SECONDS = 10.0
_GREETING_BYTES = 16 * 1024
_MOST_GREETING = 64
_SIZE = struct.Struct(">I")
# A machine that disappears is noticed after this many seconds.
_KEEP_IDLE, _KEEP_INTERVAL, _KEEP_COUNT = 10, 5, 3
_UNACKNOWLEDGED_MS = 25_000
_COPIED = 1 << 16


class Reach(Protocol):
    """How a gateway reaches its server."""

    async def server(self) -> Streams:
        """Connect to the server.

        :raises OSError: it cannot be reached.
        :raises AjetError: it refuses this gateway.
        """

    async def engine(self, path: str, pid: int) -> Streams:
        """Connect to the engine's worker, with the errors of `server`.

        :param path: of its Unix socket.
        """


class SameMachine:
    """Reaches the server process that was forked by the same parent.

    :param ask: sends the server the other end of a new connection.
    """

    def __init__(self, ask: Callable[[socket.socket], object]) -> None:
        self._ask = ask

    async def server(self) -> Streams:
        """As in `Reach`."""
        ours, theirs = socket.socketpair()
        self._ask(theirs)
        return await asyncio.open_unix_connection(sock=ours, limit=STREAM_BYTES)

    async def engine(self, path: str, pid: int) -> Streams:
        """As in `Reach`."""
        worker = connect(Path(path), pid)
        return await asyncio.open_unix_connection(sock=worker, limit=STREAM_BYTES)


class OtherMachine:
    """Reaches the server at its `server.gateways_listen`.

    :param tls: None to send everything in the clear.
    """

    def __init__(self, address: str, secret: str, tls: ssl.SSLContext | None) -> None:
        self._address = host_and_port(address)
        self._secret = secret
        self._tls = tls

    async def server(self) -> Streams:
        """As in `Reach`."""
        return await self._connect(_LINK)

    async def engine(self, path: str, pid: int) -> Streams:  # noqa: ARG002
        """As in `Reach`; the server knows the path."""
        return await self._connect(_ENGINE, pid)

    async def _connect(self, purpose: str, pid: int = 0) -> Streams:
        host, port = self._address
        async with asyncio.timeout(_GREETING_SECONDS):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=self._tls, limit=STREAM_BYTES
            )
            try:
                _watch(writer)
                writer.write(frames.pack([self._secret, _RELEASE, purpose, pid]))
                try:
                    (refusal,) = await _greeting(reader)
                except (asyncio.IncompleteReadError, ValueError):
                    raise ConnectionError(f"{host}:{port} does not accept gateways") from None
                if refusal is not None:
                    raise error_from_payload(refusal)
            except BaseException:
                writer.close()
                raise
        return reader, writer


def reach_of(settings: Settings) -> OtherMachine:
    """Return how the gateway with these settings reaches its server.

    :raises ConfigError: a setting is missing.
    """
    gateway, secret = settings.gateway, settings.server.gateway_token
    for name, value, what in (
        ("gateway.server", gateway.server, "the HOST:PORT of the server's server.gateways_listen"),
        ("gateway.url", gateway.url, "the URL at which the other gateways reach this one"),
        ("server.gateway_token", secret, "the secret of the server and its gateways"),
    ):
        if value is None:
            raise ConfigError(f"a gateway needs {name}: {what}", param=name)
    assert gateway.server is not None
    assert secret is not None
    tls = ssl.create_default_context() if gateway.tls else None
    return OtherMachine(gateway.server, secret.get_secret_value(), tls)


class MachineListener:
    """Accepts gateways on other machines.

    :param serve: serves a gateway over its link.
    :param engine: returns the Unix socket and the process id of the engine's worker, if it answers.
    """

    def __init__(
        self,
        settings: ServerSettings,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
        engine: Callable[[], tuple[str, int] | None],
    ) -> None:
        assert settings.gateways_listen is not None
        assert settings.gateway_token is not None
        if not SUPPORTED:
            raise ConfigError(
                "gateways on other machines need a server on Linux: remove server.gateways_listen",
                param="server.gateways_listen",
            )
        self._address = settings.gateways_listen
        self._secret = settings.gateway_token.get_secret_value()
        self._tls = _certificate(settings)
        self._serve_link = serve
        self._engine = engine
        self._greeting = 0
        self._serving: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Accept gateways while the context is open.

        :raises ConfigError: the address cannot be used.
        """
        host, port = host_and_port(self._address)
        try:
            server = await asyncio.start_server(
                self._accept, host, port, ssl=self._tls, limit=STREAM_BYTES
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._address}: {error.strerror or error}",
                param="server.gateways_listen",
            ) from error
        _log.info("gateways can connect to %s", self._address)
        try:
            yield
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._greeting >= _MOST_GREETING:
            return
        self._greeting += 1
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                purpose, pid = self._admitted(await _greeting(reader))
        except AjetError as error:
            _log.warning("refused a gateway: %s", error.message)
            writer.write(frames.pack([error.to_payload()]))
            await writer.drain()
            return
        except (TimeoutError, asyncio.IncompleteReadError, ValueError):
            return
        finally:
            self._greeting -= 1
        _watch(writer)
        if purpose == _LINK:
            writer.write(frames.pack([None]))
            await self._serve_link(reader, writer)
            return
        engine = self._engine()
        if engine is None or engine[1] != pid:
            raise ConnectionError("the engine was replaced")
        worker = connect(Path(engine[0]), pid)
        worker_reader, worker_writer = await asyncio.open_unix_connection(sock=worker)
        writer.write(frames.pack([None]))
        await _join((reader, writer), (worker_reader, worker_writer))

    def _admitted(self, greeting: list[Any]) -> tuple[str, int]:
        """Return what a connection is for, and the worker that it expects.

        :raises AjetError: the gateway is refused.
        :raises ValueError: the greeting is not one.
        """
        secret, release, purpose, pid = greeting
        if not hmac.compare_digest(str(secret).encode(), self._secret.encode()):
            raise AuthError("the gateway has another server.gateway_token than the server")
        if release != _RELEASE:
            raise VersionError(
                f"the gateway is agentjet {release}, the server {_RELEASE}: install the same "
                "version on both machines"
            )
        return str(purpose), int(pid)


def _certificate(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise ConfigError(
            f"cannot use the certificate {settings.tls_cert} with the key {settings.tls_key}: "
            f"{error}",
            param="server.tls_cert",
        ) from error
    return context


def watching_options() -> list[tuple[int, int, int]]:
    """Return options of a socket whose connection breaks when the other machine is gone."""
    wanted = (
        ("TCP_KEEPIDLE", _KEEP_IDLE),
        ("TCP_KEEPINTVL", _KEEP_INTERVAL),
        ("TCP_KEEPCNT", _KEEP_COUNT),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS),
    )
    # macOS has not all of them.
    options = [
        (socket.IPPROTO_TCP, int(getattr(socket, name)), value)
        for name, value in wanted
        if hasattr(socket, name)
    ]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *options]


def _watch(writer: asyncio.StreamWriter) -> None:
    """Let a connection break when the other machine is gone."""
    tcp: socket.socket = writer.get_extra_info("socket")
    for option in watching_options():
        tcp.setsockopt(*option)


async def _greeting(reader: asyncio.StreamReader) -> list[Any]:
    """Return the first frame of a connection.

    :raises ValueError: it is too long, or no frame.
    :raises asyncio.IncompleteReadError: the connection ends before.
    """
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if size > _GREETING_BYTES:
        raise ValueError("the greeting is too long")
    frame = msgpack.unpackb(await reader.readexactly(size))
    if not isinstance(frame, list):
        raise ValueError("the greeting is not an array")
    return frame


async def _join(one: Streams, other: Streams) -> None:
    """Pass on what arrives at either end of two connections, until one of them ends."""
    copying = [
        asyncio.create_task(_copy(one[0], other[1])),
        asyncio.create_task(_copy(other[0], one[1])),
    ]
    try:
        await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in copying:
            task.cancel()
        await asyncio.gather(*copying, return_exceptions=True)
        for _, writer in (one, other):
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_COPIED):
        writer.write(data)
        await writer.drain()
