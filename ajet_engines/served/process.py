"""A model server as a child process, with reliable termination."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from ajet_core.errors import EngineError
from ajet_engines.served import guard

_log = logging.getLogger("ajet.served")

# How often a server is started if signals kill it before it is ready.
_STARTS = 3
_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 5.0
_TAIL_LINES = 20
_TAIL_BYTES = 262144
# The error in a server's process may be long before the last lines, which show its consequences.
_SAYS_WHY = re.compile(r"\b\w*(Error|Exception): ")
_REASONS = 5


class ServerProcess:
    """One model server, created by `start`.

    :ivar died: done when the server ends; its result has the last lines of the log.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, name: str, log: Path, begins: int
    ) -> None:
        self._process = process
        self._name = name
        self._log = log
        self._begins = begins
        self._closing = False
        self._killed = False
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watch = asyncio.create_task(self._await_end())

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        ready: Callable[[], Awaitable[bool]],
        timeout: float,
    ) -> ServerProcess:
        """Start a server and wait until it is ready.

        :param name: name for messages.
        :param environment: the complete environment.
        :param log: file to which its stdout and stderr are appended.
        :param ready: returns whether the server answers; polled.
        :param timeout: seconds.
        :raises EngineError: it could not be started, ended, or was not ready in time; nothing of it
            is left. A server that is killed by a signal is first restarted.
        """
        for left in reversed(range(_STARTS)):
            server = await cls._spawn(name, command, environment, log)
            try:
                await server._until_ready(ready, timeout)
            except BaseException:
                await server.close()
                if not (left and server._killed):
                    raise
                _log.warning("%s", server.died.result().partition("\n")[0])
            else:
                break
        return server

    @classmethod
    async def _spawn(
        cls, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> ServerProcess:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            begins = file.tell()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                # The guard must not be affected by variables that are meant for the command.
                "-I",
                guard.__file__,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=dict(environment),
            )
        return cls(process, name, log, begins)

    async def _until_ready(self, ready: Callable[[], Awaitable[bool]], timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not await self._is_ready(ready):
                    await asyncio.wait([self.died], timeout=_LOOK_SECONDS)
        except TimeoutError:
            tail = await asyncio.to_thread(_tail, self._log, self._begins)
            raise EngineError(
                f"{self._name} was not ready within {timeout:g} s (log {self._log}); its last "
                f"lines:\n{tail}"
            ) from None

    @property
    def pid(self) -> int:
        """Process id of the guard, which ends together with the server."""
        return self._process.pid

    async def close(self) -> None:
        """End the server by SIGTERM, and by force after some seconds."""
        self._closing = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    await asyncio.shield(self._watch)
        # The guard kills all remaining processes when its input ends.
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.close()
        await self._watch

    async def _is_ready(self, ready: Callable[[], Awaitable[bool]]) -> bool:
        if self.died.done():
            raise EngineError(self.died.result())
        return await ready()

    async def _await_end(self) -> None:
        status = await self._process.wait()
        # Like a shell, the guard adds 128 to the number of the signal that killed the command.
        number = -status if status < 0 else status - 128
        self._killed = number > 0 and not self._closing
        how = f"exited with status {status}"
        if self._closing:
            how = "was ended"
        elif self._killed:
            how = f"was killed by signal {number}"
            if number == signal.SIGKILL:
                how += ", which the kernel also sends when memory runs out"
        tail = await asyncio.to_thread(_tail, self._log, self._begins)
        self.died.set_result(f"{self._name} {how} (log {self._log}); its last lines:\n{tail}")


def _tail(log: Path, begins: int) -> str:
    """Return the last lines since a position in a log, preceded by the latest lines with errors."""
    try:
        with log.open("rb") as file:
            file.seek(max(begins, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(the log cannot be read: {error})"
    reasons = [line for line in lines[:-_TAIL_LINES] if _SAYS_WHY.search(line)][-_REASONS:]
    return "\n".join([*reasons, *(["..."] if reasons else []), *lines[-_TAIL_LINES:]])
