"""A sandbox that stays while commands are run in it, one after another or several at once.

A `Sandbox` runs one program. Here that program (`inside`) runs the commands. It connects to a port
that is served from outside, so that nothing of the host's files is shared for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxExit, BoxLimits, BoxProgram, Sandbox, Serve
from ajet_sources_harbor import inside

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Harbor's commands are those of bash, which not every image has.
_SHELL = 'command -v bash > /dev/null && exec bash -c "$1"; exec sh -c "$1"'
_PORT = 8600
_FOREVER = 1e8
_KEPT = 2**24
_STARTING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """A command that ended. A negative status is that of a signal."""

    status: int
    stdout: bytes
    stderr: bytes


class CommandTimeoutError(Exception):
    """A command took too long, and was killed."""


class Machine:
    """A sandbox in which commands run.

    :param writable: absolute paths of directories that are empty and writable at first.
    :param read_only: files and directories of the host, by their path in the box.
    :param endpoints: what serves ports of 127.0.0.1 in the box, as in `BoxProgram`.
    :param hidden: files and directories of the host that are hidden.
    :param python: the interpreter of the box: Python 3.9 or later, without packages.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        writable: Sequence[str],
        read_only: Mapping[str, Path],
        endpoints: Mapping[int, Serve],
        hidden: Sequence[Path] = (),
        python: str = "python3",
    ) -> None:
        self._sandbox = sandbox
        self._writable = writable
        self._read_only = read_only
        self._endpoints = endpoints
        self._hidden = hidden
        self._python = python
        self._token = secrets.token_hex(16).encode()
        self._waiting: asyncio.Queue[_CommandSlot] = asyncio.Queue()
        self._directory: Path | None = None
        self._running: asyncio.Task[BoxExit] | None = None

    async def open(self) -> None:
        """Start the box, and wait until a command can run in it.

        :raises SandboxError: it did not start.
        """
        self._directory = directory = Path(tempfile.mkdtemp(prefix="ajet-harbor-"))
        work = directory / "work"
        places = {path: work / path.strip("/") for path in self._writable}
        for place in places.values():
            place.mkdir(parents=True)
        (directory / "token").write_bytes(self._token + b"\n")
        # The user of the box may not read the installed one.
        program_directory = directory / "program"
        program_directory.mkdir(mode=0o755)
        script = program_directory / "inside.py"
        shutil.copyfile(inside.__file__, script)
        script.chmod(0o644)
        port = _PORT
        while port in self._endpoints:
            port += 1
        program = BoxProgram(
            argv=(self._python, "/ajet/inside.py", str(port)),
            environ={"PATH": PATH, "LANG": "C.UTF-8"},
            work=work,
            stdin=directory / "token",
            stdout=directory / "stdout",
            stderr=directory / "stderr",
            read_only={**self._read_only, "/ajet": program_directory},
            writable=places,
            hidden=self._hidden,
            endpoints={**self._endpoints, port: self._serve},
            limits=BoxLimits(processes=4096),
        )
        self._running = asyncio.create_task(self._sandbox.run(program, timeout=_FOREVER))
        try:
            async with asyncio.timeout(_STARTING_SECONDS):
                # A command has to have run: a box may be announced before it can be used.
                ran = await self.run("echo ready", cwd="/", environ={"PATH": PATH})
        except TimeoutError:
            raise SandboxError("the sandbox did not start in time") from None
        if ran.stdout != b"ready\n":
            raise SandboxError(f"no command can run in the sandbox: {ran.stderr.decode()}")

    async def close(self) -> None:
        """End all processes of the box, and remove its files."""
        try:
            if self._running is not None:
                self._running.cancel()
                await asyncio.gather(self._running, return_exceptions=True)
        finally:
            while not self._waiting.empty():
                self._waiting.get_nowait().over.set()
            if self._directory is not None:
                await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def run(
        self,
        command: str,
        *,
        cwd: str,
        environ: Mapping[str, str],
        stdin: bytes = b"",
        timeout: float | None = None,
        kept: int = _KEPT,
    ) -> CommandEnd:
        """Run a shell command. A cancellation kills it, with its process group.

        :param timeout: seconds after which it is killed.
        :param kept: bytes kept of stdout, and of stderr: the first and the last half.
        :raises CommandTimeoutError: it was killed after `timeout`.
        :raises SandboxError: the box is gone.
        """
        asked = {
            "argv": ["/bin/sh", "-c", _SHELL, "sh", command],
            "cwd": cwd,
            "environ": dict(environ),
            "stdin": len(stdin),
        }
        connection = await self._connected()
        try:
            async with asyncio.timeout(timeout):
                return await self._served(connection, asked, stdin, kept)
        except TimeoutError:
            raise CommandTimeoutError(f"Command timed out after {timeout} seconds") from None
        finally:
            connection.over.set()

    async def _connected(self) -> _CommandSlot:
        """Return a connection on which the box waits for a command.

        :raises SandboxError: the box is gone.
        """
        assert self._running is not None
        waiting = asyncio.create_task(self._waiting.get())
        try:
            await asyncio.wait((waiting, self._running), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await self._raise_end()
            return waiting.result()
        finally:
            waiting.cancel()

    async def _served(
        self, connection: _CommandSlot, asked: Mapping[str, Any], stdin: bytes, kept: int
    ) -> CommandEnd:
        outputs = {b"o": _Kept(kept), b"e": _Kept(kept)}
        reader, writer = connection.reader, connection.writer
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(json.dumps(asked).encode() + b"\n")
            writer.write(stdin)
            await writer.drain()
            while True:
                head = await reader.readexactly(5)
                data = await reader.readexactly(struct.unpack(">I", head[1:])[0])
                if head[:1] == b"x":
                    return CommandEnd(int(data), outputs[b"o"].all(), outputs[b"e"].all())
                outputs[head[:1]].add(data)
        return await self._raise_end()

    async def _raise_end(self) -> CommandEnd:
        assert self._running is not None
        assert self._directory is not None
        # A process that ends a connection without a status ends the box too.
        done, _ = await asyncio.wait((self._running,), timeout=10.0)
        if done and not self._running.cancelled() and (error := self._running.exception()):
            raise SandboxError(f"the sandbox failed: {error}") from error
        said = ""
        with contextlib.suppress(OSError):
            said = (self._directory / "stderr").read_text(errors="replace").strip()[-500:]
        raise SandboxError(f"the sandbox ended: {said or 'it said nothing'}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not hmac.compare_digest((await reader.readline()).strip(), self._token):
            return
        connection = _CommandSlot(reader, writer, asyncio.Event())
        self._waiting.put_nowait(connection)
        await connection.over.wait()


@dataclass(frozen=True, slots=True)
class _CommandSlot:
    """A connection on which the box waits for a command. It is closed when `over` is set."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    over: asyncio.Event


class _Kept:
    """The first and the last half of an output."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._first = bytearray()
        self._last = bytearray()
        self._left_out = False

    def add(self, data: bytes) -> None:
        room = self._half - len(self._first)
        self._first += data[:room]
        self._last += data[room:]
        if len(self._last) > 2 * self._half:
            self._left_out = True
            del self._last[: -self._half]

    def all(self) -> bytes:
        if len(self._last) > self._half:
            self._left_out = True
            del self._last[: -self._half]
        middle = b"\n[...]\n" if self._left_out else b""
        return bytes(self._first + middle + self._last)
