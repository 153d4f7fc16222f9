"""``ajet gateway`` as processes, and a load balancer that knows nothing of episodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECRET = "gateway-token-of-the-tests"


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@dataclass(slots=True)
class GatewayOfTests:
    """A gateway in a process of its own.

    :ivar output: what it has written so far.
    """

    process: asyncio.subprocess.Process
    url: str
    output: bytearray = field(default_factory=bytearray)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def wrote(self, text: str) -> None:
        """Read its output until it has written a text."""
        assert self.process.stdout is not None
        while text.encode() not in self.output:
            line = await self.process.stdout.readline()
            assert line, f"the gateway ended:\n{self.output.decode()}"
            self.output += line

    async def drain(self) -> None:
        """Take its output until it ends, so that it never waits for a reader."""
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65536):
            self.output += data


@contextlib.asynccontextmanager
async def gateway_process(server: str, **env: str) -> AsyncIterator[GatewayOfTests]:
    """A gateway of the server that listens for gateways at ``HOST:PORT``, until the block ends."""
    port = unused_port()
    url = f"http://127.0.0.1:{port}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
    settings = {
        "AJET_GATEWAY__SERVER": server,
        "AJET_GATEWAY__URL": url,
        "AJET_SERVER__PORT": str(port),
        "AJET_SERVER__GATEWAY_TOKEN": SECRET,
        **env,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; sys.argv[1:] = ['gateway']; from ajet_cli.main import main; main()",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**kept, **settings},
        cwd=Path(__file__).parents[2],
    )
    gateway = GatewayOfTests(process, url)
    draining = None
    try:
        await gateway.wrote("listens on")
        draining = asyncio.create_task(gateway.drain())
        yield gateway
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        if draining is not None:
            await draining


@contextlib.asynccontextmanager
async def balancer(ports: Sequence[int], at: int = 0) -> AsyncIterator[str]:
    """A balancer that leads each connection to the next of some ports that answers.

    :param at: its own port.
    :return: its URL.
    """
    turn = 0
    serving: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        for _ in ports:
            turn += 1
            try:
                there = await asyncio.open_connection("127.0.0.1", ports[turn % len(ports)])
            except OSError:
                continue
            await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
            return
        writer.close()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(lead(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(begin, "127.0.0.1", at)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
