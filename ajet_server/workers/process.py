"""The server's side: spawns a worker, calls it, and notices when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from ajet_core.errors import AjetError, WorkerBootError, WorkerDiedError, error_from_payload
from ajet_core.interfaces import (
    EngineStats,
    GenerateChunk,
    GenerateRequest,
    SealReport,
    StepReport,
    WeightUpdate,
)
from ajet_core.timeline import TrainBatch
from ajet_installation.environment import Interpreter
from ajet_server.workers import frames
from ajet_server.workers.codec import (
    BootPlan,
    BootReport,
    from_plain,
    pack_request,
    to_plain,
    unpack_chunk,
)
from ajet_server.workers.foundling import FoundProcess
from ajet_server.workers.rendezvous import SUPPORTED, find_worker

_TAIL_LINES = 15
_TAIL_BYTES = 16384
_EXIT_SECONDS = 1.0
# One that was found needs no more to end the calls of the server before.
_ANSWER_SECONDS = 10.0


class _Stream:
    """What a running `generate` is told: its next chunk, what made it fail, or that it is over.

    A queue with one reader and no limit; asyncio's has locks and counters that each call would pay for.
    """

    def __init__(self) -> None:
        self._items: deque[GenerateChunk | Exception | None] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def put(self, item: GenerateChunk | Exception | None) -> None:
        self._items.append(item)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def get(self) -> GenerateChunk | Exception | None:
        if not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._items.popleft()


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


class _Process(Protocol):
    """What is needed of a child, or of a process that was found."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...


class WorkerProcess:
    """One worker process. Made by `WorkerProcess.spawn` or `WorkerProcess.find`.

    Any call raises `WorkerDiedError` with the last lines of the worker's log if the process ends first.

    :ivar died: becomes done, with the description of the death as its result, when the process ends.
    """

    def __init__(self, process: _Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, _Stream] = {}
        self._closing = False
        self._killed = False
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._writer: frames.FrameWriter
        self._read_task: asyncio.Task[None]

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
        worker = cls(process, log)
        await worker._connect(ours)
        return worker

    @classmethod
    async def find(cls, rendezvous: Path, log: Path) -> WorkerProcess | None:
        """The worker of a server that was killed, if one waits for the next."""
        found = await asyncio.to_thread(find_worker, rendezvous)
        if found is None:
            return None
        connection, pid = found
        try:
            worker = cls(FoundProcess(pid), log)
        except OSError:
            connection.close()
            return None
        await worker._connect(connection)
        return worker

    async def _connect(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
        self._writer = frames.FrameWriter(writer)
        self._read_task = asyncio.create_task(self._read(reader))

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
                return from_plain(BootReport, await self.call("boot", to_plain(plan)))
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
                report = await self.call("adopt", to_plain(plan))
        except (AjetError, TimeoutError):
            # Whatever is wrong with it, a new one is started instead.
            return None
        return None if report is None else from_plain(BootReport, report)

    async def call(self, method: str, params: Any = None) -> Any:
        """Call `method` and return its result as plain data; cancelling cancels it in the worker."""
        call_id = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[call_id] = future
        try:
            self._send([frames.CALL, call_id, method, params])
            return await future
        except asyncio.CancelledError:
            self._cancel(call_id)
            raise
        finally:
            self._pending.pop(call_id, None)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """As `Engine.generate`."""
        call_id = next(self._ids)
        stream = self._streams[call_id] = _Stream()
        over = False
        try:
            self._send([frames.CALL, call_id, "generate", pack_request(request)])
            while (item := await stream.get()) is not None:
                over = isinstance(item, Exception) or item.finish_reason is not None
                if isinstance(item, Exception):
                    raise item
                yield item
            over = True
        finally:
            del self._streams[call_id]
            if not over:
                self._cancel(call_id)

    async def ping(self) -> None:
        """Return once the worker has answered, whatever else it does."""
        await self.call("ping")

    async def update_weights(self, update: WeightUpdate) -> None:
        """As `Engine.update_weights`."""
        await self.call("engine.update_weights", to_plain(update))

    async def seal(self) -> SealReport:
        """As `Engine.seal`."""
        return from_plain(SealReport, await self.call("engine.seal"))

    async def stats(self) -> EngineStats:
        """As `Engine.stats`."""
        return from_plain(EngineStats, await self.call("engine.stats"))

    async def metrics(self) -> str:
        """As `Engine.metrics`."""
        return str(await self.call("engine.metrics"))

    async def step(self, batch: TrainBatch) -> StepReport:
        """As `Trainer.step`."""
        # A batch may have millions of tokens: the event loop goes on answering calls meanwhile.
        plain = await asyncio.to_thread(to_plain, batch)
        return from_plain(StepReport, await self.call("trainer.step", plain))

    async def rehearse(self, batch: TrainBatch) -> StepReport:
        """As `Trainer.rehearse`."""
        plain = await asyncio.to_thread(to_plain, batch)
        return from_plain(StepReport, await self.call("trainer.rehearse", plain))

    async def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """As `Trainer.publish`."""
        params = {"channel": channel, "policy_version": policy_version}
        return from_plain(WeightUpdate, await self.call("trainer.publish", params))

    async def close(self, grace: float = 10.0) -> None:
        """End the process: close the connection, wait `grace` seconds, then kill it."""
        self._closing = True
        if not self.died.done():
            self._writer.write(frames.pack([frames.END]))
        self._writer.close()
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._read_task

    def kill(self) -> None:
        """SIGKILL, by pid; harmless if it has ended."""
        if isinstance(self._process, FoundProcess):
            self._process.kill()
        elif self._process.returncode is None:
            # Not Popen.kill: it reaps a process that has just ended, and asyncio loses its exit status.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        """The last lines of the worker's log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-_TAIL_LINES:]) or "(the log is empty)"

    def _send(self, frame: list[Any]) -> None:
        if self.died.done():
            raise WorkerDiedError(self.died.result())
        self._writer.write(frames.pack(frame))

    def _cancel(self, call_id: int) -> None:
        if not self.died.done() and not self._closing:
            self._writer.write(frames.pack([frames.CANCEL, call_id]))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take frames until the worker ends; a frame that makes no sense ends the worker."""
        problem = ""
        reading = asyncio.create_task(self._read_frames(reader))
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
        await asyncio.wait([ending], timeout=None if self._closing else _EXIT_SECONDS)
        if not ending.done():
            # A worker that closed its end but lives on is of no use to anybody.
            self.kill()
        code = await ending
        # Nobody but its parent learns how a worker ended that was found; it had booted, so it was most likely killed.
        self._killed = code < 0 or isinstance(self._process, FoundProcess)
        how = f"exit status {code}" if code >= 0 else _signal_text(-code)
        if isinstance(self._process, FoundProcess):
            how = "its exit status is unknown because another server started it"
        text = f"worker {self.pid} ended ({how}){problem}. Last lines of {self._log}:\n{self.log_tail()}"
        self.died.set_result(text)
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(WorkerDiedError(text))
        for stream in self._streams.values():
            stream.put(WorkerDiedError(text))

    async def _read_frames(self, reader: asyncio.StreamReader) -> None:
        async for frame in frames.read(reader):
            kind, *rest = frame
            if kind == frames.CHUNKS:
                for call_id, chunk in rest[0]:
                    if (stream := self._streams.get(call_id)) is not None:
                        stream.put(unpack_chunk(chunk))
                continue
            call_id, value = rest
            failure = error_from_payload(value) if kind == frames.ERROR else None
            if (stream := self._streams.get(call_id)) is not None:
                stream.put(failure)
                continue
            future = self._pending.get(call_id)
            if future is None or future.done():
                continue
            if failure is None:
                future.set_result(value)
            else:
                future.set_exception(failure)
