"""``ajet serve`` with scripted components, as a process, with settings of the environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from ajet_installation.settings import Settings
from ajet_server.serve import serve
from ajet_testing.plugins import scripted_plugins


@dataclass(slots=True)
class ServerProcess:
    """A server in a process of its own.

    :ivar output: what it has written so far.
    """

    process: asyncio.subprocess.Process
    run_dir: Path
    url: str = ""
    output: bytearray = field(default_factory=bytearray)

    async def wait_listening(self) -> None:
        """Read its output until it says where it listens."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.output += line
            if b"listening on " in line:
                self.url = line.partition(b"listening on ")[2].partition(b",")[0].decode()
                return
        raise AssertionError(f"the server did not start:\n{self.output.decode()}")

    async def drain(self) -> None:
        """Take its output until it ends, so that it never waits for a reader."""
        assert self.process.stdout is not None
        while data := await self.process.stdout.read(65536):
            self.output += data


@contextlib.asynccontextmanager
async def server_process(run_dir: Path, **env: str) -> AsyncIterator[ServerProcess]:
    """A server until the block ends; it is ended as an operator ends it.

    :param env: settings, such as ``AJET_SERVER__LOG_LEVEL``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
    settings = {
        "AJET_SERVER__RUN_DIR": str(run_dir),
        "AJET_SERVER__PORT": "0",
        "XDG_STATE_HOME": str(run_dir.parent / "state"),
        **env,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.scripted_server",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**kept, **settings},
        cwd=Path(__file__).parents[2],
    )
    server = ServerProcess(process, run_dir)
    draining = None
    try:
        await server.wait_listening()
        draining = asyncio.create_task(server.drain())
        yield server
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        if draining is not None:
            await draining


if __name__ == "__main__":
    serve(Settings(), scripted_plugins())
