"""HTTP by hand, to send what no client would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(slots=True)
class RawConnection:
    """One connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send bytes, as far as the server takes them."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def rest(self) -> bytes:
        """All that the server sends until it closes the connection."""
        received = bytearray()
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(65536):
                received += data
        return bytes(received)

    async def answer(self) -> bytes:
        """The head of one answer."""
        return await self.reader.readuntil(b"\r\n\r\n")


@contextlib.asynccontextmanager
async def raw(url: str) -> AsyncIterator[RawConnection]:
    """A connection to the server at `url`."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 22)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def head(method: str, path: str, headers: dict[str, str], *extra: str) -> bytes:
    """The head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: x"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, *extra, "", ""]).encode("latin-1")
