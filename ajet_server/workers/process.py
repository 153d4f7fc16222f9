"""A worker's process, as the server has it: spawned or found, booted, and noticed when it dies."""

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
from ajet_server.workers.connection import Connection
from ajet_server.workers.methods import ADOPT, BOOT, PING
from ajet_server.workers.rendezvous import SUPPORTED, find_worker

_TAIL_LINES = 15
_TAIL_BYTES = 16384
_EXIT_SECONDS = 1.0
# One that was found needs no more to end the calls of the server before.
_ANSWER_SECONDS = 10.0


def _environment(interpreter: Interpreter) -> dict[str, str]:
    """Ours without our own settings: workers are told theirs, and tokens or a store's password are none of them.

    Models are local directories: libraries that would fetch what a directory lacks are told to stay offline, unless
    the operator says otherwise in the server's environment.
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
    """How a process ended that a signal killed."""
    text = f"killed by signal {number}"
    if number == signal.SIGKILL:
        text += ", which is also what the kernel sends when memory runs out: see dmesg"
    return text


class Hosting(Protocol):
    """What a worker runs in: a child, or a process that was found."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int:
        """Return when it has ended: its exit status, or the number of the signal that ended it, negative."""

    def kill(self) -> None:
        """End it at once; harmless if it has ended."""


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
            # Not Popen.kill: it reaps a process that has just ended, and asyncio loses its exit status.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class WorkerProcess:
    """One worker process. Made by `WorkerProcess.spawn` or `WorkerProcess.find`.

    :ivar connection: for calls, which raise `WorkerDiedError` with the last lines of the worker's log
        if the process ends first.
    :ivar died: becomes done, with the description of the death as its result, when the process ends.
    """

    def __init__(self, process: Hosting, connection: Connection, log: Path) -> None:
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

        :param log: file its stdout and stderr are appended to.
        :param interpreter: to run it in, this one by default.
        :param rendezvous: where it waits for `find` if this process is killed, for `orphan_seconds`.
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
        return cls(_Child(process), await Connection.open(ours), log)

    @classmethod
    async def find(cls, rendezvous: Path, log: Path) -> WorkerProcess | None:
        """The worker of a server that was killed, if one waits for the next."""
        found = await asyncio.to_thread(find_worker, rendezvous)
        if found is None:
            return None
        connected, pid = found
        try:
            process = AdoptedProcess(pid)
        except OSError:
            connected.close()
            return None
        return cls(process, await Connection.open(connected), log)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def boot(self, plan: BootPlan, timeout: float) -> BootReport:
        """Make the plan's components.

        :param timeout: seconds after which the boot has failed.
        :raises WorkerDiedError: a signal killed it, which says nothing about the plan.
        :raises WorkerBootError: it exited, hung, or a component refused; the message shows why.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self.connection.call(BOOT, plan)
        except WorkerDiedError as error:
            message = f"the worker died while it booted: {error.message}"
            raise (WorkerDiedError if self._killed else WorkerBootError)(message) from error
        except TimeoutError as error:
            raise WorkerBootError(
                f"the worker was not ready after {timeout:.0f} s (setting server.boot_timeout_seconds). "
                f"Last lines of {self._log}:\n{self.log_tail()}"
            ) from error

    async def adopt(self, plan: BootPlan, timeout: float) -> BootReport | None:
        """Go on with the components that a found worker has, at the plan's checkpoint; None if that cannot be."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self.ping()
            async with asyncio.timeout(timeout):
                return await self.connection.call(ADOPT, plan)
        except (AjetError, TimeoutError):
            # Whatever is wrong with it, a new one is started instead.
            return None

    async def ping(self) -> None:
        """Return once the worker has answered, whatever else it does."""
        await self.connection.call(PING, None)

    async def close(self, grace: float = 10.0) -> None:
        """End the process: close the connection, wait `grace` seconds, then kill it."""
        self.connection.close()
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._watching

    def kill(self) -> None:
        """SIGKILL, by pid; harmless if it has ended."""
        self._process.kill()

    def log_tail(self) -> str:
        """The last lines of the worker's log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_TAIL_LINES:]) or "(the log is empty)"

    async def _watch(self) -> None:
        """Read answers until the worker ends; a frame that makes no sense ends the worker."""
        problem = ""
        reading = asyncio.create_task(self.connection.read())
        ending = asyncio.create_task(self._process.wait())
        await asyncio.wait([reading, ending], return_when=asyncio.FIRST_COMPLETED)
        # Its last frames are read, but a process that it forked may keep the connection open for ever.
        await asyncio.wait([reading], timeout=_EXIT_SECONDS)
        reading.cancel()
        # Whatever it was, all who wait for this worker have to hear of its end.
        (error,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(error, Exception):
            problem = f" after a frame that could not be read ({type(error).__name__}: {error})"
        # Its own end comes a moment after that of its connection, and its status says why.
        await asyncio.wait([ending], timeout=None if self.connection.closed else _EXIT_SECONDS)
        if not ending.done():
            # A worker that closed its end but lives on is of no use to anybody.
            self.kill()
        code = await ending
        # Nobody but its parent learns how a worker ended that was found; it had booted, so it was most likely killed.
        self._killed = code < 0 or isinstance(self._process, AdoptedProcess)
        how = f"exit status {code}" if code >= 0 else _signal_text(-code)
        if isinstance(self._process, AdoptedProcess):
            how = "its exit status is unknown because another server started it"
        text = f"worker {self.pid} ended ({how}){problem}. Last lines of {self._log}:\n{self.log_tail()}"
        self.died.set_result(text)
        self.connection.lose(text)
