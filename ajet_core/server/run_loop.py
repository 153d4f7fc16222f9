"""A run from its boot to its end: fills batches, trains, checkpoints, and replaces workers that fail."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ajet_core.errors import (
    AjetError,
    EngineError,
    StepRefusedError,
    WorkerDiedError,
    WorkerError,
)
from ajet_core.interfaces import (
    BatchRecord,
    EpisodeRecord,
    MetricsLogger,
    SampleStore,
    StepRecord,
)
from ajet_core.plugin import PluginManager
from ajet_core.protocol import ServerState, SetAside, StepSummary
from ajet_core.server.batch_findings import BatchFault
from ajet_core.server.batching import BatchBuilder
from ajet_core.server.checkpoints import CheckpointFolder, Position
from ajet_core.server.dialects.chat import ChatService
from ajet_core.server.engine_gate import EngineGate
from ajet_core.server.engine_watch import EngineWatch
from ajet_core.server.episodes import EpisodeRegistry
from ajet_core.server.events import EventLog
from ajet_core.server.failures import FailureMeter
from ajet_core.server.run_setup import ResolvedRun
from ajet_core.server.set_aside import TaskFailures
from ajet_core.server.state import StateBoard
from ajet_core.server.step import StepClock, Stepped, train_step
from ajet_core.server.workers import RunWorkers
from ajet_core.settings import ServerSettings

T = TypeVar("T")

_log = logging.getLogger("ajet.server")

_HEALTH_SECONDS = 10.0
_HANG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run works with.

    :param clock: seconds, monotonic.
    :param wall_clock: unix seconds.
    """

    settings: ServerSettings
    store: SampleStore
    plugins: PluginManager
    board: StateBoard
    events: EventLog
    episodes: EpisodeRegistry
    loggers: list[MetricsLogger]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    @property
    def run_dir(self) -> Path:
        """Everything the run writes is in it."""
        return self.settings.run_dir.resolve()


class RunLoop:
    """One run, until it is stopped, done, or cannot go on.

    :param paused: why the run is not to roll yet, "" if it is.
    :param pausing: told when `paused` changes by itself; awaited before the change is seen.
    :ivar step: steps the present weights were trained.
    :ivar chat: answers model calls once the first boot is done.
    :ivar health_seconds: how often workers are asked how they are.
    :ivar hang_seconds: how long they may take to answer.
    """

    def __init__(
        self,
        run: ResolvedRun,
        parts: RunParts,
        *,
        paused: str,
        pausing: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self.run = run
        self._parts = parts
        self._store, self._board, self._events = parts.store, parts.board, parts.events
        self._checkpoints = CheckpointFolder(parts.run_dir)
        self._gate = EngineGate(parts.board, parts.settings.call_deadline_seconds)
        self._engine_watch = EngineWatch(parts.settings.engine_stall_seconds)
        self._failures = FailureMeter(run.config.failures)
        self._task_failures = TaskFailures(run.config.batch.max_aborts_per_task)
        self._pausing = pausing
        self._paused = paused
        self._refused = 0
        self._last_batch = ""
        self._lost: set[str] = set()
        self._checkpointed = 0
        self._finishing = False
        self._faults: frozenset[BatchFault] = frozenset()
        self._stop_requested = False
        self.health_seconds = _HEALTH_SECONDS
        self.hang_seconds = _HANG_SECONDS
        self.workers: RunWorkers | None = None
        self.chat: ChatService | None = None
        self.last_step: StepSummary | None = None
        self.step = 0

    @property
    def paused(self) -> str:
        """Why no episodes are given out, "" if they are."""
        return self._paused

    @property
    def set_aside(self) -> list[SetAside]:
        """Tasks that are not tried any more."""
        return list(self._task_failures)

    @property
    def doing(self) -> str:
        """What is done in the states in which nobody rolls out, and how long it may take."""
        settings = self._parts.settings
        if self._board.state is ServerState.BOOTING:
            return (
                f"the workers load the model (at most {settings.boot_timeout_seconds:g} s); their logs are in "
                f"{self._parts.run_dir / 'logs'}"
            )
        if self._finishing:
            return f"the model is exported (at most {settings.step_timeout_seconds:g} s)"
        last = self.last_step
        before = f"; the one before took {last.metrics['update_seconds']:.0f} s" if last else ""
        at_most = f"at most {settings.step_timeout_seconds:g} s"
        return f"step {self.step + 1} is being trained or its weights are published ({at_most}{before})"

    @property
    def engine_stalled(self) -> float:
        """Seconds for which calls have waited for an engine that did nothing."""
        return self._engine_watch.stalled

    def pause(self, reason: str) -> None:
        """Give out no more episodes and train no more batches after the step in progress."""
        self._paused = reason
        self._board.touch()

    def resume(self) -> None:
        """Undo `pause`; tasks that were set aside get another chance."""
        self._paused = ""
        self._refused = 0
        self._failures.forget()
        if self._parts.episodes.builder is not None:
            self._parts.episodes.builder.readmit()
        self._board.touch()

    def stop(self) -> None:
        """End after the step in progress."""
        self._stop_requested = True
        self._board.touch()

    def episode_finished(self, record: EpisodeRecord) -> None:
        """Take notice of an episode's outcome."""
        self._failures.note(record)

    async def to_end(self) -> Path:
        """Train to the end.

        A worker that dies is replaced and training goes on at the last checkpoint; an engine that fails for good
        is replaced with its worker. Only the first boot must succeed: what is wrong with it is wrong with the
        configuration.

        :return: the directory the trained model was exported to.
        :raises AjetError: the run cannot go on.
        """
        deaths = 0
        booted = False
        try:
            while True:
                step_at_boot = self.step
                try:
                    await self._boot()
                    booted = True
                    step_at_boot = self.step
                    await self._train()
                    return await self._finish()
                # A worker that failed in a way that nobody thought of is as good as dead.
                except (WorkerError, EngineError) as error:
                    if not booted:
                        raise
                    deaths = deaths + 1 if self.step <= step_at_boot else 1
                    await self._bury(error)
                    if deaths > self._parts.settings.worker_restarts:
                        raise WorkerError(
                            f"workers died {deaths} times without finishing a step; the last: "
                            f"{error.message}"
                        ) from error
        finally:
            self._gate.shut()
            if self.workers is not None:
                await self.workers.close()
                self.workers = None

    async def _bury(self, error: AjetError) -> None:
        self._gate.shut()
        self._board.set(ServerState.BOOTING)
        self._events.emit("worker", {"what": "died", "message": error.message})
        _log.warning("%s", error.message)
        if self.workers is not None:
            await self.workers.close(grace=0.0)
            self.workers = None

    async def _boot(self) -> None:
        run, parts = self.run, self._parts
        await asyncio.to_thread(self._checkpoints.recover)
        checkpoint = await asyncio.to_thread(self._checkpoints.latest, run.run_id)
        self.step = self._checkpointed = checkpoint.step if checkpoint else 0
        self.workers = workers = await RunWorkers.boot(
            run,
            parts.run_dir,
            checkpoint,
            timeout=parts.settings.boot_timeout_seconds,
            orphan_seconds=parts.settings.orphan_seconds,
        )
        # What was trained after the checkpoint is lost with its weights, and is trained again.
        self._lost = {s.batch_id for s in await self._store.steps() if s.step > self.step}
        await self._store.rewind(self.step)
        update = await self._watched(
            workers.trainer.publish(run.channel, self.step), "publishing the weights"
        )
        await self._watched(workers.engine.update_weights(update), "loading the weights")
        self._board.policy_version = self.step
        self.chat = ChatService(
            run.renderer,
            self._gate,
            run.config.model.name,
            workers.engine_info,
            run.capabilities,
            parts.wall_clock,
        )
        for worker in workers.processes():
            worker.died.add_done_callback(lambda _: self._board.touch())
        self._events.emit("worker", {"what": "ready", "pids": [w.pid for w in workers.processes()]})
        self._gate.open(workers.engine)

    async def _train(self) -> None:
        builder = BatchBuilder(
            self.run.config.batch, self._task_failures, before=self._parts.episodes.builder
        )
        await self._parts.episodes.begin(builder)
        # Batches that were trained after the checkpoint, or were about to be, come first, in order.
        queued = await self._store.batches(after_step=self.step)
        limit = self.run.config.steps
        workers = self._need_workers()
        while not self._stop_requested and (limit is None or self.step < limit):
            stats = await self._watched(workers.engine.stats(), "asking the engine")
            timing = StepClock(self._parts.clock(), stats)
            record = await (self._next_queued(queued) if queued else self._roll(builder))
            if record is None:
                return
            if not await self._train_on(record, timing):
                queued.insert(0, record)

    async def _next_queued(self, queued: list[BatchRecord]) -> BatchRecord | None:
        """The first of the batches that wait, once the run is not paused; None if it is to stop."""
        goes_on = await self._wait(lambda: not (self._paused or self._failures.too_many))
        return queued.pop(0) if goes_on else None

    async def _roll(self, builder: BatchBuilder) -> BatchRecord | None:
        """Let episodes run until a batch is full; None if the run is to stop."""
        self._engine_watch.forget()
        if not await self._wait(lambda: self._ready(builder)):
            return None
        self._board.set(ServerState.ROLLING_POST)
        record = BatchRecord(
            secrets.token_hex(8), self.step + 1, builder.take(), self._parts.wall_clock()
        )
        await self._store.add_batch(record)
        return record

    async def _wait(self, ready: Callable[[], bool]) -> bool:
        """ROLLING or PAUSED until there is something to train; False if the run is to stop."""
        workers = self._need_workers()

        def goes_on() -> bool:
            return (
                self._stop_requested
                or not workers.alive()
                or self._board.state is not self._rolling_state()
                or (self._failures.too_many and not self._paused)
                or ready()
            )

        while not (self._stop_requested or ready()):
            if self._failures.too_many and not self._paused:
                await self._pause_itself(self._failures.diagnosis())
            self._board.set(self._rolling_state())
            try:
                async with asyncio.timeout(self.health_seconds):
                    await self._board.wait_until(goes_on)
            except TimeoutError:
                await self._check_engine(workers)
            if not workers.alive():
                raise WorkerDiedError(workers.obituary())
        return not self._stop_requested

    def _ready(self, builder: BatchBuilder) -> bool:
        """Whether there is a batch to train, with nothing against it."""
        return builder.is_full() and not (self._paused or self._failures.too_many)

    def _rolling_state(self) -> ServerState:
        return ServerState.PAUSED if self._paused else ServerState.ROLLING

    async def _train_on(self, record: BatchRecord, timing: StepClock) -> bool:
        """Train on a batch; False if it is still to be trained."""
        # The step it was meant for, unless a batch before it was refused.
        step = self.step + 1
        record = BatchRecord(record.batch_id, step, record.episode_ids, record.created_at)
        try:
            stepped = await self._watched(
                train_step(
                    self.run,
                    self._need_workers(),
                    record,
                    store=self._store,
                    board=self._board,
                    timing=timing,
                    clock=self._parts.clock,
                ),
                f"training step {step}",
            )
        except StepRefusedError as error:
            return await self._refuse(record, error)
        self._refused = 0
        await self._stepped(stepped, record)
        return True

    async def _refuse(self, record: BatchRecord, error: StepRefusedError) -> bool:
        """Keep a batch that the trainer refused for inspection, and go on with the next one.

        :return: False if it is rather the trainer that somebody has to look at: it has trained this batch before.
        """
        if record.batch_id in self._lost:
            self._lost.discard(record.batch_id)
            await self._pause_itself(
                f"the trainer refuses batch {record.batch_id}, which was trained before the last restart: "
                f"{error.message}. Look at the machine and the checkpoint; resuming tries it once more"
            )
            return False
        await self._store.refuse_batch(record.batch_id, error.message)
        self._refused += 1
        _log.error("batch %s was refused: %s", record.batch_id, error.message)
        self._events.emit(
            "refused",
            {"batch_id": record.batch_id, "step": record.step, "error": error.to_payload()},
        )
        if self._refused >= self.run.config.failures.max_refused:
            await self._pause_itself(
                f"the trainer refused {self._refused} batches in a row, the last one because: {error.message}. "
                "The batches are kept (`ajet inspect` shows their episodes)"
            )
        return True

    async def _pause_itself(self, reason: str) -> None:
        await self._pausing(reason)
        self.pause(reason)
        _log.error("paused: %s", reason)
        self._events.emit("run", {"what": "paused", "reason": reason})

    async def _watched(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, which the workers do; they are asked meanwhile whether they live.

        :raises WorkerDiedError: one does not answer, or the work takes longer than it may.
        """
        limit = self._parts.settings.step_timeout_seconds
        began = self._parts.clock()
        task = asyncio.create_task(work)
        try:
            while True:
                done, _ = await asyncio.wait([task], timeout=self.health_seconds)
                if done:
                    return task.result()
                await self._ping(what)
                if self._parts.clock() - began > limit:
                    raise WorkerDiedError(
                        f"{what} took longer than {limit:g} s (setting server.step_timeout_seconds); the "
                        "worker is replaced"
                    )
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _ping(self, what: str) -> None:
        for worker in self._need_workers().processes():
            try:
                async with asyncio.timeout(self.hang_seconds):
                    await worker.ping()
            except TimeoutError:
                raise WorkerDiedError(
                    f"worker {worker.pid} did not answer for {self.hang_seconds:g} s while {what}; it is replaced"
                ) from None

    async def _check_engine(self, workers: RunWorkers) -> None:
        """Ask the engine how it is.

        :raises EngineError: it failed, does not answer, or has done nothing for long though calls wait for it.
        """
        try:
            async with asyncio.timeout(self.hang_seconds):
                stats = await workers.engine.stats()
        except TimeoutError:
            raise EngineError(
                f"the engine did not answer for {self.hang_seconds:g} s; its worker is replaced"
            ) from None
        self._engine_watch.note(stats, self._gate.running, self._parts.clock())

    async def _stepped(self, stepped: Stepped, record: BatchRecord) -> None:
        summary, parts = stepped.summary, self._parts
        # Whoever sees the step finds it in the store.
        await self._store.add_step(
            StepRecord(summary.step, record.batch_id, dict(summary.metrics), parts.wall_clock()),
            stepped.scores,
        )
        self.step = summary.step
        self.last_step = summary
        self._last_batch = record.batch_id
        if self.step % self.run.config.checkpoint_every == 0:
            try:
                await self._checkpoint()
            except WorkerDiedError:
                raise
            except AjetError as error:
                # The trainer says it in its own way if the disk is full. The run goes on at its last checkpoint if it must; the next one may find room again.
                _log.error("%s", error.message)
                self._events.emit("run", {"what": "no_checkpoint", "error": error.to_payload()})
        if stepped.faults - self._faults:
            # What was so in the step before too is said by the status, and need not fill the log.
            _log.warning("step %d: %s", summary.step, "; ".join(summary.findings))
        self._faults = stepped.faults
        self._events.emit("step", summary.model_dump())
        await asyncio.to_thread(self._log_metrics, summary)
        parts.plugins.notify("ajet_step_finished", summary=summary)

    def _log_metrics(self, summary: StepSummary) -> None:
        for logger in self._parts.loggers:
            try:
                logger.log(summary.step, summary.metrics)
            except AjetError as error:
                # The step is done and recorded; a logger's full disk must not undo it.
                _log.error("metrics of step %d were not logged: %s", summary.step, error.message)

    async def _checkpoint(self) -> None:
        async def save(directory: Path) -> None:
            work = self._need_workers().trainer.call("trainer.save", {"directory": str(directory)})
            await self._watched(work, f"saving the checkpoint of step {self.step}")

        position = Position(self.run.run_id, self._last_batch)
        await self._checkpoints.write(self.step, position, save)
        self._checkpointed = self.step

    async def _finish(self) -> Path:
        """Leave a checkpoint and the trained model behind."""
        self._finishing = True
        self._board.set(ServerState.WEIGHT_SYNCING)
        await self._parts.episodes.abort_all("the run was stopped", "run_stopped")
        if self.step > self._checkpointed:
            await self._checkpoint()
        target = self._parts.run_dir / "export" / f"step-{self.step:06d}"
        work = self._need_workers().trainer.call("trainer.export", {"directory": str(target)})
        await self._watched(work, "exporting the model")
        return target

    def _need_workers(self) -> RunWorkers:
        assert self.workers is not None, "the workers are booted before anything is asked of them"
        return self.workers
