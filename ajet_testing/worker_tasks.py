"""Workers that are tasks of the server's process, for tests that need no process to die."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from ajet_core.errors import WorkerError
from ajet_installation.environment import Interpreter
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.host import WorkerHost
from ajet_server.workers.process import WorkerProcess

# More than any system gives: a signal that a test sends by mistake goes nowhere.
_NO_PID = 2**31 - 1
_spawn = WorkerProcess.spawn


class HostTask:
    """What `WorkerProcess` takes for its process: a host at the other end of a socket pair."""

    pid = _NO_PID

    def __init__(self, connection: socket.socket) -> None:
        self.returncode: int | None = None
        self._connection = connection
        self._task = asyncio.create_task(self._serve())

    async def wait(self) -> int:
        """Return when it has ended."""
        await asyncio.wait([self._task])
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """End it without an answer to anything."""
        self._task.cancel()

    async def _serve(self) -> None:
        host = WorkerHost()
        try:
            await host.serve(self._connection)
            self.returncode = 0
        except asyncio.CancelledError:
            self.returncode = -signal.SIGKILL
        finally:
            await host.close()


async def spawn_task(
    log: Path,
    interpreter: Interpreter | None = None,
    rendezvous: Path | None = None,
    orphan_seconds: float = 0.0,
) -> WorkerProcess:
    """As `WorkerProcess.spawn`; another interpreter needs a process."""
    if interpreter is not None:
        return await _spawn(log, interpreter, rendezvous, orphan_seconds)
    ours, theirs = socket.socketpair()
    return WorkerProcess(HostTask(theirs), await WorkerConnection.open(ours), log)


def work_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make servers of this process spawn tasks."""
    monkeypatch.setattr(WorkerProcess, "spawn", spawn_task)
    # What a boot freezes stays for ever: the garbage of all tests before it.
    monkeypatch.setattr(
        "ajet_server.workers.host._without_garbage_collection", contextlib.nullcontext
    )
    monkeypatch.setattr("ajet_testing.faults.end_process", _refuse_to_die)


def _refuse_to_die() -> NoReturn:
    raise WorkerError(
        "this worker is a task: a test of its death takes the fixture worker_processes"
    )
