"""The run: boots the workers, fills batches, trains, checkpoints, and takes up again after a crash."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ajet_core.errors import (
    AjetError,
    EngineError,
    StateError,
    StoreError,
    WorkerBootError,
    WorkerDiedError,
    WorkerError,
    error_from_payload,
)
from ajet_core.interfaces import BatchRecord, MetricsLogger, RunRecord, SampleStore, StepRecord
from ajet_core.plugin import PluginManager
from ajet_core.protocol import ErrorDetail, RunConfig, RunStatus, ServerState, StepSummary
from ajet_core.server.batching import BatchBuilder
from ajet_core.server.checkpoints import CheckpointFolder
from ajet_core.server.dialects.chat import ChatService
from ajet_core.server.engine_gate import EngineGate
from ajet_core.server.episodes import EpisodeRegistry
from ajet_core.server.events import EventLog
from ajet_core.server.run_setup import ResolvedRun, check_same_run, resolve_run
from ajet_core.server.state import StateBoard
from ajet_core.server.step import StepClock, Stepped, train_step
from ajet_core.server.workers import RunWorkers
from ajet_core.settings import Settings

_log = logging.getLogger("ajet.server")

_HEALTH_SECONDS = 10.0
_HANG_SECONDS = 60.0


class Coordinator:
    """Owns the state machine; at most one run is active.

    :param clock: seconds, monotonic.
    :param wall_clock: unix seconds.
    :ivar chat: answers model calls while a run is active or booting again; None before the first boot.
    :ivar health_seconds: how often a rolling engine is asked how it is.
    :ivar error: what ended the last run, if it failed.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: SampleStore,
        plugins: PluginManager,
        board: StateBoard,
        events: EventLog,
        episodes: EpisodeRegistry,
        loggers: list[MetricsLogger],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._plugins = plugins
        self._board = board
        self._events = events
        self._episodes = episodes
        self._loggers = loggers
        self._clock = clock
        self._wall_clock = wall_clock
        self._checkpoints = CheckpointFolder(self._run_dir)
        self._gate = EngineGate(board, settings.server.call_deadline_seconds)
        self._record: RunRecord | None = None
        self._run: ResolvedRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._workers: RunWorkers | None = None
        self._stop_requested = False
        self._configuring = asyncio.Lock()
        self._export_dir: Path | None = None
        self.health_seconds = _HEALTH_SECONDS
        self.chat: ChatService | None = None
        self.error: ErrorDetail | None = None
        self.last_step: StepSummary | None = None
        self.step = 0

    @property
    def run_id(self) -> str | None:
        """Id of the configured run."""
        return self._record.run_id if self._record else None

    @property
    def model_name(self) -> str | None:
        """Name of the served model."""
        return self._run.config.model.name if self._run else None

    @property
    def running(self) -> bool:
        """Whether a run is active, in whatever state."""
        return self._task is not None and not self._task.done()

    @property
    def workers(self) -> RunWorkers | None:
        """The running workers, if any."""
        return self._workers

    async def restore(self) -> None:
        """Take up the run of the store, if there is one; a run that was active when the server died
        goes on by itself."""
        self._record = await self._store.get_run()
        if self._record is None:
            return
        checkpoint = await asyncio.to_thread(self._checkpoints.latest)
        self.step = self._board.policy_version = checkpoint.step if checkpoint else 0
        if self._record.active:
            config = RunConfig.model_validate_json(self._record.config_json)
            try:
                self._run = await self._resolve(self._record.run_id, config)
            except AjetError as error:
                self._fail(error)
                return
            self._launch()

    async def configure(self, config: RunConfig) -> RunStatus:
        """Check `config` and make it the run of this server.

        :raises StateError: a run is active.
        :raises ConfigError: it cannot be used; nothing has changed then.
        """
        async with self._configuring:
            self._require_offline("configure a run")
            before = self._record
            run_id = before.run_id if before else secrets.token_hex(6)
            created = before.created_at if before else self._wall_clock()
            run = await self._resolve(run_id, config)
            if before is not None and await self._has_history():
                check_same_run(before.config_json, run.config)
            record = RunRecord(run_id, run.config.model_dump_json(), created)
            await self._store.put_run(record)
            self._run, self._record, self.error = run, record, None
            return self.run_status()

    async def start(self, wait_seconds: float) -> RunStatus:
        """Start the configured run, and wait up to `wait_seconds` until it is ROLLING.

        :raises StateError: no run is configured, or one is active already.
        :raises AjetError: what made the boot fail, if it fails while waiting.
        """
        async with self._configuring:
            self._require_offline("start a run")
            if self._record is None:
                raise StateError("no run is configured: PUT /v1/run first")
            if self._run is None:
                config = RunConfig.model_validate_json(self._record.config_json)
                self._run = await self._resolve(self._record.run_id, config)
            self._record = replace(self._record, active=True)
            await self._store.put_run(self._record)
            self._launch()
        task = self._task
        try:
            async with asyncio.timeout(wait_seconds):
                await self._board.wait_until(
                    lambda: (
                        self._board.state is not ServerState.BOOTING or task is None or task.done()
                    )
                )
        except TimeoutError:
            # Not an error: the caller sees BOOTING and asks again.
            return self.run_status()
        return self._status_or_error()

    async def stop(self) -> RunStatus:
        """Stop the run after the step in progress: checkpoint, export, end the workers.

        :raises StateError: no run is active.
        """
        if self._task is None or not self.running:
            raise StateError("no run is active")
        self._stop_requested = True
        self._board.touch()
        await asyncio.wait([self._task])
        if self._task.cancelled():
            raise self._board.not_running()
        return self._status_or_error()

    async def shutdown(self) -> None:
        """End the workers without stopping the run: it goes on when the server is started again."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def run_status(self) -> RunStatus:
        """The configured run.

        :raises StateError: there is none.
        """
        if self._record is None:
            raise StateError("no run is configured: PUT /v1/run first")
        return RunStatus(
            run_id=self._record.run_id,
            state=self._board.state,
            config=RunConfig.model_validate_json(self._record.config_json),
            export_dir=str(self._export_dir) if self._export_dir else None,
        )

    def _status_or_error(self) -> RunStatus:
        if self.error is not None:
            raise error_from_payload(self.error.model_dump())
        return self.run_status()

    @property
    def _run_dir(self) -> Path:
        return self._settings.server.run_dir.resolve()

    async def _has_history(self) -> bool:
        """Whether the run has samples or weights, which fix what it is."""
        return self.step > 0 or bool((await self._store.counters())["episodes"])

    def _require_offline(self, what: str) -> None:
        if self.running:
            raise StateError(f"cannot {what}: a run is active (the server is {self._board.state})")

    async def _resolve(self, run_id: str, config: RunConfig) -> ResolvedRun:
        return await asyncio.to_thread(resolve_run, run_id, config, self._settings, self._plugins)

    def _launch(self) -> None:
        assert self._run is not None
        self.error = None
        self._stop_requested = False
        self._export_dir = None
        self._board.set(ServerState.BOOTING)
        self._task = asyncio.create_task(self._run_to_end(self._run))

    async def _run_to_end(self, run: ResolvedRun) -> None:
        try:
            await self._restarting(run)
        except AjetError as error:
            await self._end_failed(error)
        except asyncio.CancelledError:
            _log.info("run %s interrupted at step %d", run.run_id, self.step)
            raise
        # Whatever else goes wrong is a defect of ours or of a plugin: it must end in the status and
        # the log, not in a task nobody looks at.
        except Exception as error:  # noqa: BLE001
            _log.exception("run %s failed", run.run_id)
            await self._end_failed(AjetError(f"the run failed: {type(error).__name__}: {error}"))
        finally:
            self._gate.shut()
            if self._workers is not None:
                await self._workers.close()
                self._workers = None
            self._board.set(ServerState.OFFLINE)

    async def _restarting(self, run: ResolvedRun) -> None:
        """Train to the end; a worker that dies is replaced and training goes on at the checkpoint.

        An engine that fails for good is replaced with its worker. Only the first boot must succeed:
        what is wrong with it is wrong with the configuration.
        """
        deaths = 0
        booted = False
        while True:
            step_at_boot = self.step
            try:
                await self._boot(run)
                booted = True
                await self._train(run)
                await self._finish(run)
                return
            except (WorkerDiedError, WorkerBootError, EngineError) as error:
                if not booted:
                    raise
                self._gate.shut()
                self._board.set(ServerState.BOOTING)
                deaths = deaths + 1 if self.step <= step_at_boot else 1
                self._events.emit("worker", {"what": "died", "message": error.message})
                _log.warning("%s", error.message)
                if self._workers is not None:
                    await self._workers.close(grace=0.0)
                    self._workers = None
                if deaths > self._settings.server.worker_restarts:
                    raise WorkerError(
                        f"workers died {deaths} times without finishing a step; the last: "
                        f"{error.message}"
                    ) from error

    async def _boot(self, run: ResolvedRun) -> None:
        checkpoint = await asyncio.to_thread(self._checkpoints.latest)
        self.step = checkpoint.step if checkpoint else 0
        self._workers = workers = await RunWorkers.boot(
            run,
            self._run_dir,
            checkpoint,
            self._settings.server.boot_timeout_seconds,
        )
        update = await workers.trainer.publish(run.channel, self.step)
        await workers.engine.update_weights(update)
        self._board.policy_version = self.step
        self.chat = ChatService(
            run.renderer,
            self._gate,
            run.config.model.name,
            workers.engine_info,
            run.capabilities,
            self._wall_clock,
        )
        for worker in workers.processes():
            worker.died.add_done_callback(lambda _: self._board.touch())
        self._events.emit("worker", {"what": "ready", "pids": [w.pid for w in workers.processes()]})
        self._gate.open(workers.engine)

    async def _train(self, run: ResolvedRun) -> None:
        builder = BatchBuilder(run.config.batch)
        await self._episodes.begin(builder)
        # Batches that were trained after the checkpoint, or were about to be, come first, in order.
        queued = await self._store.batches(after_step=self.step)
        limit = run.config.steps
        workers = self._need_workers()
        while not self._stop_requested and (limit is None or self.step < limit):
            timing = StepClock(self._clock(), await workers.engine.stats())
            record = queued.pop(0) if queued else await self._roll(builder)
            if record is None:
                return
            stepped = await train_step(
                run,
                workers,
                record,
                store=self._store,
                board=self._board,
                timing=timing,
                clock=self._clock,
            )
            await self._stepped(run, stepped, record)

    async def _roll(self, builder: BatchBuilder) -> BatchRecord | None:
        """Let episodes run until a batch is full; None if the run is to stop."""
        workers = self._need_workers()
        self._board.set(ServerState.ROLLING)
        while not (self._stop_requested or builder.is_full()):
            try:
                async with asyncio.timeout(self.health_seconds):
                    await self._board.wait_until(
                        lambda: self._stop_requested or builder.is_full() or not workers.alive()
                    )
            except TimeoutError:
                await self._check_health(workers)
            if not workers.alive():
                raise WorkerDiedError(workers.obituary())
        if self._stop_requested:
            return None
        self._board.set(ServerState.ROLLING_POST)
        record = BatchRecord(
            secrets.token_hex(8), self.step + 1, builder.take(), self._wall_clock()
        )
        await self._store.add_batch(record)
        return record

    async def _check_health(self, workers: RunWorkers) -> None:
        """Ask the engine how it is.

        :raises EngineError: it failed, or did not answer.
        """
        try:
            async with asyncio.timeout(_HANG_SECONDS):
                await workers.engine.stats()
        except TimeoutError:
            raise EngineError(
                f"the engine did not answer for {_HANG_SECONDS:g} s; its worker is replaced"
            ) from None

    async def _stepped(self, run: ResolvedRun, stepped: Stepped, record: BatchRecord) -> None:
        summary = stepped.summary
        # Whoever sees the step finds it in the store.
        await self._store.add_step(
            StepRecord(summary.step, record.batch_id, dict(summary.metrics), self._wall_clock()),
            stepped.scores,
        )
        self.step = summary.step
        self.last_step = summary
        if self.step % run.config.checkpoint_every == 0:
            try:
                await self._checkpoint()
            except StoreError as error:
                # The run goes on at its last checkpoint if it must; the next one may find room again.
                _log.error("%s", error.message)
                self._events.emit("run", {"what": "no_checkpoint", "error": error.to_payload()})
        self._events.emit("step", summary.model_dump())
        await asyncio.to_thread(self._log_metrics, summary)
        self._plugins.notify("ajet_step_finished", summary=summary)

    def _log_metrics(self, summary: StepSummary) -> None:
        for logger in self._loggers:
            try:
                logger.log(summary.step, summary.metrics)
            except AjetError as error:
                # The step is done and recorded; a logger's full disk must not undo it.
                _log.error("metrics of step %d were not logged: %s", summary.step, error.message)

    async def _checkpoint(self) -> None:
        trainer = self._need_workers().trainer

        async def save(directory: Path) -> None:
            await trainer.call("trainer.save", {"directory": str(directory)})

        await self._checkpoints.write(self.step, save)

    async def _finish(self, run: ResolvedRun) -> None:
        """Leave a checkpoint and the trained model behind."""
        self._board.set(ServerState.WEIGHT_SYNCING)
        await self._episodes.abort_all("the run was stopped")
        if self.step > 0:
            await self._checkpoint()
        target = self._run_dir / "export" / f"step-{self.step:06d}"
        await self._need_workers().trainer.call("trainer.export", {"directory": str(target)})
        self._export_dir = target
        await self._deactivate()
        self._events.emit("run", {"what": "stopped", "run_id": run.run_id, "step": self.step})

    async def _deactivate(self) -> None:
        assert self._record is not None
        self._record = replace(self._record, active=False)
        await self._store.put_run(self._record)

    async def _end_failed(self, error: AjetError) -> None:
        self._fail(error)
        if isinstance(error, StoreError):
            # Nothing is wrong with the run: once there is room it goes on when the server is started.
            return
        try:
            # A run that failed is started again by a person, not by the next start of the server.
            await self._deactivate()
        except StoreError as second:
            _log.error("cannot record that the run failed: %s", second.message)

    def _need_workers(self) -> RunWorkers:
        assert self._workers is not None, "the workers are booted before anything is asked of them"
        return self._workers

    def _fail(self, error: AjetError) -> None:
        _log.error("%s", error.message)
        self.error = ErrorDetail(**error.to_payload())
        self._events.emit("run", {"what": "failed", "error": error.to_payload()})
