"""TCP ports that forward to the Unix sockets of engines' servers, as an operator's servers use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ajet_engines.served import Address, HttpModelServer, ServedEngine


def address_of(engine: ServedEngine) -> Address:
    """Return the address of the engine's first server."""
    server = engine.fleet.replicas[0].server
    assert isinstance(server, HttpModelServer)
    return server.http.address


@asynccontextmanager
async def at_port(socket: Path | None) -> AsyncIterator[str]:
    """Yield the URL of a port that forwards to a Unix socket."""
    assert socket is not None, "a server of this engine's own listens at one"

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(65536):
            writer.write(part)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there = await asyncio.open_unix_connection(socket)
        await asyncio.gather(
            pump(reader, there), pump(there_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
