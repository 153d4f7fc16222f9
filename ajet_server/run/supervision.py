"""Supervision of a run's workers: boot them, check on them, and stop them when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ajet_core.errors import AjetError, EngineError, WorkerDiedError
from ajet_core.protocol import ServerState
from ajet_installation.settings import ServerSettings
from ajet_server.gateway.engine_gate import EngineGate
from ajet_server.gateway.engine_watch import EngineWatch
from ajet_server.observe.events import EventLog
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.run_workers import RunWorkers
from ajet_server.state import StateBoard
from ajet_server.store.checkpoints import Checkpoint
from ajet_server.workers.methods import LISTEN
from ajet_server.workers.spare_worker import SpareWorker

T = TypeVar("T")

_log = logging.getLogger("ajet.server")

_HEALTH_SECONDS = 10.0
_HANG_SECONDS = 60.0
# A worker's death is detected within milliseconds of the errors that it causes.
_DEATH_SECONDS = 1.0


class Supervisor:
    """Owns the workers of a run; there are none between two generations.

    :param clock: seconds, monotonic.
    :param spare: for the first boot.
    :ivar gate: passes calls on to the engine; open while there are workers that can answer.
    :ivar running: the present workers.
    :ivar health_seconds: the interval between checks of the workers.
    :ivar hang_seconds: how long they may take to respond.
    """

    def __init__(
        self,
        settings: ServerSettings,
        board: StateBoard,
        events: EventLog,
        clock: Callable[[], float],
        spare: SpareWorker,
    ) -> None:
        self._settings, self._board, self._events = settings, board, events
        self._clock = clock
        self._spare = spare
        self._engine_watch = EngineWatch(settings.engine_stall_seconds)
        self.gate = EngineGate(board, settings.call_deadline_seconds)
        self._callers_at = ""
        self.running: RunWorkers | None = None
        self.health_seconds = _HEALTH_SECONDS
        self.hang_seconds = _HANG_SECONDS

    @property
    def workers(self) -> RunWorkers:
        """The present workers; there must be some."""
        assert self.running is not None, "the workers are booted before they are used"
        return self.running

    @property
    def engine_stalled(self) -> float:
        """Seconds for which calls have waited for an idle engine."""
        return self._engine_watch.stalled

    async def boot(
        self, run: ResolvedRun, run_dir: Path, checkpoint: Checkpoint | None
    ) -> RunWorkers:
        """Boot workers that continue from a checkpoint; calls wait until `answer_calls`.

        :raises WorkerDiedError: a worker was killed meanwhile; none is left running.
        :raises WorkerBootError: a worker did not start; none is left running.
        """
        self.running = await RunWorkers.boot(
            run,
            run_dir,
            checkpoint,
            timeout=self._settings.boot_timeout_seconds,
            orphan_seconds=self._settings.orphan_seconds,
            spare=self._spare,
        )
        if self._settings.divided:
            self._callers_at = str(run_dir / "workers" / "engine-calls.sock")
            await self.running.engine_process.connection.call(LISTEN, self._callers_at)
        return self.running

    @property
    def callable_engine(self) -> tuple[str, int] | None:
        """The Unix socket and the process id of the engine; None while calls are to wait.

        Only a server with gateways has one.
        """
        if not (self._callers_at and self.running and self.gate.is_open):
            return None
        return self._callers_at, self.running.engine_process.pid

    def ready(self) -> None:
        """Watch the workers, which serve their weights by now."""
        processes = self.workers.processes()
        for worker in processes:
            worker.died.add_done_callback(lambda _: self._board.touch())
        self._events.emit("worker", {"what": "ready", "pids": [w.pid for w in processes]})

    def answer_calls(self) -> None:
        """Open the gate for calls."""
        if not self.gate.is_open:
            self.gate.open(self.workers.engine)

    async def died(self, error: AjetError) -> bool:
        """Return whether a worker's death caused `error`; the other worker may report it first."""
        if isinstance(error, WorkerDiedError):
            return True
        if self.running is None:
            return False
        deaths = [worker.died for worker in self.running.processes()]
        done, _ = await asyncio.wait(
            deaths, timeout=_DEATH_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)

    async def handle_death(self, error: AjetError) -> None:
        """Stop all workers after one has failed."""
        self.gate.shut()
        self._board.set(ServerState.BOOTING)
        self._events.emit("worker", {"what": "died", "message": error.message})
        _log.warning("%s", error.message)
        await self._end(grace=0.0)

    async def retire(self) -> None:
        """Stop workers that will be replaced; calls wait meanwhile."""
        self._board.set(ServerState.BOOTING)
        await self.close()

    async def close(self) -> None:
        """Stop the workers, if there are any."""
        self.gate.shut()
        await self._end(grace=10.0)

    async def watched(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """Return the result of `work` in the workers, and ping them meanwhile.

        :raises WorkerDiedError: a worker does not respond, or the work exceeds its time limit.
        """
        limit = self._settings.step_timeout_seconds
        began = self._clock()
        task = asyncio.create_task(work)
        try:
            ends: list[asyncio.Future[Any]] = [task, *(w.died for w in self.workers.processes())]
            while True:
                await asyncio.wait(
                    ends, timeout=self.health_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if task.done():
                    return task.result()
                # Check both workers: calls wait for the engine even if only the trainer works.
                if not self.workers.alive():
                    raise WorkerDiedError(self.workers.exit_report())
                await self._ping(what)
                if self._clock() - began > limit:
                    raise WorkerDiedError(
                        f"{what} took longer than {limit:g} s (setting "
                        "server.step_timeout_seconds); the worker is replaced"
                    )
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def begin_rolling(self) -> None:
        """Forget the engine's history: its progress while paused says nothing about its health."""
        self._engine_watch.forget()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, or until the next check of the workers is done.

        :raises WorkerDiedError: a worker has ended.
        :raises EngineError: the engine failed, does not respond, or made no progress for long while
            calls waited.
        """
        workers = self.workers
        try:
            async with asyncio.timeout(self.health_seconds):
                await self._board.wait_until(lambda: not workers.alive() or condition())
        except TimeoutError:
            await self._check_engine(workers)
        if not workers.alive():
            raise WorkerDiedError(workers.exit_report())

    async def _ping(self, what: str) -> None:
        for worker in self.workers.processes():
            try:
                async with asyncio.timeout(self.hang_seconds):
                    await worker.ping()
            except TimeoutError:
                raise WorkerDiedError(
                    f"worker {worker.pid} did not respond for {self.hang_seconds:g} s during "
                    f"{what}; it is replaced"
                ) from None

    async def _check_engine(self, workers: RunWorkers) -> None:
        try:
            async with asyncio.timeout(self.hang_seconds):
                stats = await workers.engine.stats()
        except TimeoutError:
            raise EngineError(
                f"the engine did not respond for {self.hang_seconds:g} s; its worker is replaced"
            ) from None
        running = self.gate.running + self.gate.elsewhere
        self._engine_watch.note(stats, running, self._clock())

    async def _end(self, grace: float) -> None:
        workers, self.running = self.running, None
        if workers is not None:
            await workers.close(grace)
