"""What may stand between a store and PostgreSQL: a network that goes silent, and a pooler."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from postgres_server import NOT_ROOT, PostgresServer


class Network:
    """A network to a server, which can stop to answer.

    :ivar connections: the number of connections that were begun.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._socket = server.directory / ".s.PGSQL.5432"
        self._flows = asyncio.Event()
        self._flows.set()
        self._carrying: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    @property
    def dsn(self) -> str:
        """How to connect through it."""
        return f"host=127.0.0.1 port={self.port} user=ajet dbname=postgres"

    def fall_silent(self) -> None:
        """Carry nothing from now on, also on new connections, which are not closed either."""
        self._flows.clear()

    def speak(self) -> None:
        """Carry everything again."""
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_unix_connection(str(self._socket))
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.closing(target), contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await self._flows.wait()
                target.write(data)
                await target.drain()


def pgbouncer() -> str | None:
    """The program, None if it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Pooler:
    """PgBouncer in front of a server.

    :param mode: its ``pool_mode``.
    :param settings: further lines of its configuration.
    """

    def __init__(self, server: PostgresServer, mode: str, *settings: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="ajet-pool-", dir="/tmp"))
        configuration = [
            "[databases]",
            f"postgres = host={server.directory} user=ajet",
            "[pgbouncer]",
            "auth_type = any",
            "listen_addr =",
            f"unix_socket_dir = {self._directory}",
            f"pool_mode = {mode}",
            *settings,
        ]
        (self._directory / "pgbouncer.ini").write_text("\n".join(configuration))
        self.dsn = f"host={self._directory} port=6432 user=ajet dbname=postgres"

    def __enter__(self) -> Self:
        program = pgbouncer()
        assert program is not None, "the tests that need PgBouncer are skipped without it"
        user = None
        if os.geteuid() == 0:
            user = NOT_ROOT
            for path in (self._directory, self._directory / "pgbouncer.ini"):
                os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        self._process = subprocess.Popen(
            [program, str(self._directory / "pgbouncer.ini")],
            user=user,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        said = ""
        while "process up" not in said:
            line = self._process.stderr.readline()
            assert line, f"pgbouncer failed:\n{said}"
            said += line
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._directory, ignore_errors=True)
