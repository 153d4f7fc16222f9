"""What serves the ports of a box: the way to the episode's endpoint, and to chosen hosts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection
from urllib.parse import urlsplit

from ajet_core.interfaces import Serve

_CHUNK = 65536
_HEAD_LINES = 100
_HTTPS = 443
_HTTP = 80


def port_of(url: str) -> int:
    """Return the port of a URL."""
    parts = urlsplit(url)
    return parts.port or (_HTTPS if parts.scheme == "https" else _HTTP)


def relay(url: str) -> Serve:
    """Return what connects a box to the server of a URL. TLS begins outside the box."""
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    host, port = parts.hostname or "", port_of(url)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, port, ssl=secure)
        await _join(reader, writer, far_reader, far_writer)

    return serve


def egress_proxy(hosts: Collection[str]) -> Serve:
    """Return an HTTP proxy that tunnels to ``HOST`` or ``HOST:PORT`` of a list, and to no other.

    It knows ``CONNECT`` alone, which programs use for https.
    """
    allowed = {(host if ":" in host else f"{host}:{_HTTPS}").lower() for host in hosts}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode("latin-1").split()
        for _ in range(_HEAD_LINES):
            if (await reader.readline()).strip() == b"":
                break
        if len(line) != 3 or line[0] != "CONNECT" or line[1].lower() not in allowed:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\r\n")
            await writer.drain()
            return
        host, _, port = line[1].rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n")
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await _join(reader, writer, far_reader, far_writer)

    return serve


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until both have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, far_writer))
            group.create_task(_copy(far_reader, writer))
    finally:
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()
    # Either end may leave at any time; the other one then sees the end.
    except OSError:
        writer.close()
