"""The server's handle of a worker process: spawn or find it, boot it, and detect its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Protocol

from ajet_core.errors import AjetError, WorkerBootError, WorkerDiedError
from ajet_installation.environment import Interpreter
from ajet_server.workers.adopted import AdoptedProcess
from ajet_server.workers.codec import BootPlan, BootReport
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.methods import ADOPT, BOOT, PING
from ajet_server.workers.rendezvous import SUPPORTED, find_worker

_TAIL_LINES = 15
_TAIL_BYTES = 16384
_EXIT_SECONDS = 1.0
# A found worker needs no longer than this to end the calls of the previous server.
_ANSWER_SECONDS = 10.0


def _environment(interpreter: Interpreter) -> dict[str, str]:
    """Return this environment without agentjet's settings, which may include secrets.

    Workers receive their settings otherwise. Models are local directories, so libraries that would
    download what a directory lacks are set to offline mode, unless the operator sets otherwise in
    the server's environment.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return {
        **offline,
        **interpreter.environ(kept),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _signal_text(number: int) -> str:
    """Describe the end of a process that a signal killed."""
    text = f"killed by signal {number}"
    if number == signal.SIGKILL:
        text += ", which the kernel also sends when memory runs out: see dmesg"
    return text


class Hosting(Protocol):
    """The process that a worker runs in: a child, or one that was found."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int:
        """Wait for its end; return the exit status, or the negative number of a fatal signal."""

    def kill(self) -> None:
        """Kill it; no effect if it has ended."""


class _Child:
    """A process that this one has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            # Not Popen.kill: it would reap a process that has just ended, and asyncio would lose
            # its exit status.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class WorkerProcess:
    """One worker process. Create it with `WorkerProcess.spawn` or `WorkerProcess.find`.

    :ivar connection: for calls, which raise `WorkerDiedError` with the last lines of the worker's
        log if the process ends first.
    :ivar died: completed when the process ends; its result describes the death.
    """

    def __init__(self, process: Hosting, connection: WorkerConnection, log: Path) -> None:
        self._process = process
        self._log = log
        self._killed = False
        self.connection = connection
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def spawn(
        cls,
        log: Path,
        interpreter: Interpreter | None = None,
        rendezvous: Path | None = None,
        orphan_seconds: float = 0.0,
    ) -> WorkerProcess:
        """Start a worker.

        :param log: the file to which its stdout and stderr are appended.
        :param interpreter: to run it in, this process's by default.
        :param rendezvous: where it waits for `find` for `orphan_seconds` if this process is killed.
        :raises WorkerBootError: the interpreter cannot be started.
        """
        interpreter = interpreter or Interpreter(sys.executable)
        ours, theirs = socket.socketpair()
        arguments = ["-m", "ajet_server.workers", "--fd", str(theirs.fileno())]
        if rendezvous is not None and orphan_seconds > 0 and SUPPORTED:
            arguments += ["--rendezvous", str(rendezvous)]
            arguments += ["--orphan-seconds", str(orphan_seconds)]
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    interpreter.python,
                    *arguments,
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_environment(interpreter),
                )
        except OSError as error:
            ours.close()
            raise WorkerBootError(
                f"cannot start a worker with {interpreter.python!r}: {error}"
            ) from error
        finally:
            theirs.close()
        return cls(_Child(process), await WorkerConnection.open(ours), log)

    @classmethod
    async def find(cls, rendezvous: Path, log: Path) -> WorkerProcess | None:
        """Return the worker of a server that was killed, None if none waits for the next."""
        waiting = await asyncio.to_thread(find_worker, rendezvous)
        if waiting is None:
            return None
        connected, pid = waiting
        try:
            process = AdoptedProcess(pid)
        except OSError:
            connected.close()
            return None
        return cls(process, await WorkerConnection.open(connected), log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def boot(self, plan: BootPlan, timeout: float) -> BootReport:
        """Create the plan's components.

        :param timeout: seconds after which the boot has failed.
        :raises WorkerDiedError: a signal killed the worker, so the plan need not be at fault.
        :raises WorkerBootError: it exited, hung, or a component failed; the message says why.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self.connection.call(BOOT, plan)
        except WorkerDiedError as error:
            message = f"the worker died during startup: {error.message}"
            raise (WorkerDiedError if self._killed else WorkerBootError)(message) from error
        except TimeoutError as error:
            raise WorkerBootError(
                f"the worker was not ready after {timeout:.0f} s (setting "
                f"server.boot_timeout_seconds). Last lines of {self._log}:\n{self.log_tail()}"
            ) from error

    async def adopt(self, plan: BootPlan, timeout: float) -> BootReport | None:
        """Reuse a found worker's components at the plan's checkpoint; None if not possible."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self.ping()
            async with asyncio.timeout(timeout):
                return await self.connection.call(ADOPT, plan)
        except (AjetError, TimeoutError):
            # Whatever is wrong, a new worker is started instead.
            return None

    async def ping(self) -> None:
        """Wait until the worker has responded; it does so during other work, too."""
        await self.connection.call(PING, None)

    async def close(self, grace: float = 10.0) -> None:
        """Close the connection, and kill the process if it does not end in `grace` seconds."""
        self.connection.close()
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._watching

    def kill(self) -> None:
        """Send SIGKILL; no effect if it has ended."""
        self._process.kill()

    def log_tail(self) -> str:
        """Return the last lines of the worker's log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_TAIL_LINES:]) or "(the log is empty)"

    async def _watch(self) -> None:
        """Read responses until the worker ends; a malformed frame ends the worker."""
        problem = ""
        reading = asyncio.create_task(self.connection.read())
        ending = asyncio.create_task(self._process.wait())
        await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
        # Read the last frames, but not forever: a process that the worker forked may keep the
        # connection open.
        await asyncio.wait([reading], timeout=_EXIT_SECONDS)
        reading.cancel()
        # Whatever the error, all callers that wait for this worker must be notified.
        (error,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(error, Exception):
            problem = f" after sending an unreadable frame ({type(error).__name__}: {error})"
        # The process ends a moment after its connection, and its exit status says why.
        await asyncio.wait([ending], timeout=None if self.connection.closed else _EXIT_SECONDS)
        if not ending.done():
            # A worker that closed its end but still runs is useless.
            self.kill()
        code = await ending
        # The exit status of a found worker is unknown; it had booted, so it was probably killed.
        self._killed = code < 0 or isinstance(self._process, AdoptedProcess)
        how = f"exit status {code}" if code >= 0 else _signal_text(-code)
        if isinstance(self._process, AdoptedProcess):
            how = "its exit status is unknown because another server started it"
        tail = f"Last lines of {self._log}:\n{self.log_tail()}"
        text = f"worker {self.pid} ended ({how}){problem}. {tail}"
        self.died.set_result(text)
        self.connection.lose(text)
