"""The workers of a run, as long as it lasts: booted, watched at their work, and ended when they fail."""

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
from ajet_server.run.checkpoints import Checkpoint
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.state import StateBoard
from ajet_server.workers.run_workers import RunWorkers

T = TypeVar("T")

_log = logging.getLogger("ajet.server")

_HEALTH_SECONDS = 10.0
_HANG_SECONDS = 60.0
# A death is noticed within milliseconds of the errors that it causes.
_DEATH_SECONDS = 1.0


class Supervisor:
    """Has the workers of a run, or none between two generations of them.

    :param clock: seconds, monotonic.
    :ivar gate: what calls go through; open while there are workers that may answer them.
    :ivar running: the present workers.
    :ivar health_seconds: how often workers are asked how they are.
    :ivar hang_seconds: how long they may take to answer.
    """

    def __init__(
        self,
        settings: ServerSettings,
        board: StateBoard,
        events: EventLog,
        clock: Callable[[], float],
    ) -> None:
        self._settings, self._board, self._events = settings, board, events
        self._clock = clock
        self._engine_watch = EngineWatch(settings.engine_stall_seconds)
        self.gate = EngineGate(board, settings.call_deadline_seconds)
        self.running: RunWorkers | None = None
        self.health_seconds = _HEALTH_SECONDS
        self.hang_seconds = _HANG_SECONDS

    @property
    def workers(self) -> RunWorkers:
        """The present workers, where there must be some."""
        assert self.running is not None, "the workers are booted before anything is asked of them"
        return self.running

    @property
    def engine_stalled(self) -> float:
        """Seconds for which calls have waited for an engine that did nothing."""
        return self._engine_watch.stalled

    async def boot(
        self, run: ResolvedRun, run_dir: Path, checkpoint: Checkpoint | None
    ) -> RunWorkers:
        """Get workers that continue from a checkpoint; calls wait until `ready`.

        :raises WorkerDiedError: one was killed meanwhile; none is left running.
        :raises WorkerBootError: one did not come up; none is left running.
        """
        self.running = await RunWorkers.boot(
            run,
            run_dir,
            checkpoint,
            timeout=self._settings.boot_timeout_seconds,
            orphan_seconds=self._settings.orphan_seconds,
        )
        return self.running

    def ready(self) -> None:
        """Let calls through."""
        processes = self.workers.processes()
        for worker in processes:
            worker.died.add_done_callback(lambda _: self._board.touch())
        self._events.emit("worker", {"what": "ready", "pids": [w.pid for w in processes]})
        self.gate.open(self.workers.engine)

    async def died(self, error: AjetError) -> bool:
        """Whether the death of a worker explains `error`, which the other worker may report first."""
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
        """End workers of which one has failed."""
        self.gate.shut()
        self._board.set(ServerState.BOOTING)
        self._events.emit("worker", {"what": "died", "message": error.message})
        _log.warning("%s", error.message)
        await self._end(grace=0.0)

    async def retire(self) -> None:
        """End workers that others take the place of; calls wait meanwhile."""
        self._board.set(ServerState.BOOTING)
        await self.close()

    async def close(self) -> None:
        """End the workers, if there are any."""
        self.gate.shut()
        await self._end(grace=10.0)

    async def watched(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, which the workers do; they are asked meanwhile whether they live.

        :raises WorkerDiedError: one does not answer, or the work takes longer than it may.
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
                # Calls wait for an engine whoever is at work.
                if not self.workers.alive():
                    raise WorkerDiedError(self.workers.exit_report())
                await self._ping(what)
                if self._clock() - began > limit:
                    raise WorkerDiedError(
                        f"{what} took longer than {limit:g} s (setting server.step_timeout_seconds); the "
                        "worker is replaced"
                    )
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def begin_rolling(self) -> None:
        """What the engine did while it was paused says nothing about it."""
        self._engine_watch.forget()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when the board was touched and `condition` holds, or after a look at the workers.

        :raises WorkerDiedError: one has ended.
        :raises EngineError: the engine failed, does not answer, or has done nothing for long though calls wait for it.
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
                    f"worker {worker.pid} did not answer for {self.hang_seconds:g} s while {what}; it is replaced"
                ) from None

    async def _check_engine(self, workers: RunWorkers) -> None:
        try:
            async with asyncio.timeout(self.hang_seconds):
                stats = await workers.engine.stats()
        except TimeoutError:
            raise EngineError(
                f"the engine did not answer for {self.hang_seconds:g} s; its worker is replaced"
            ) from None
        self._engine_watch.note(stats, self.gate.running, self._clock())

    async def _end(self, grace: float) -> None:
        workers, self.running = self.running, None
        if workers is not None:
            await workers.close(grace)
