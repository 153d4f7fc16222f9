"""A run from its boot to its end: fills batches, trains, checkpoints, and replaces workers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from ajet_core.errors import (
    AjetError,
    EngineError,
    StepRefusedError,
    WeightsLostError,
    WorkerDiedError,
    WorkerError,
)
from ajet_core.interfaces import (
    BatchRecord,
    EpisodeRecord,
)
from ajet_core.protocol import MixtureConfig, ServerState, SetAside, StepSummary
from ajet_core.server import doing
from ajet_core.server.batching import BatchBuilder
from ajet_core.server.checkpoints import CheckpointFolder, Position
from ajet_core.server.dialects.chat import ChatService
from ajet_core.server.failures import FailureMeter
from ajet_core.server.places import Places
from ajet_core.server.refusals import Refusals
from ajet_core.server.run_parts import RunParts
from ajet_core.server.run_setup import ResolvedRun
from ajet_core.server.set_aside import TaskFailures
from ajet_core.server.step import StepClock, Stepped, train_step
from ajet_core.server.step_book import StepBook
from ajet_core.server.supervision import Supervisor
from ajet_core.server.tag_watch import TagKeeper

_log = logging.getLogger("ajet.server")


# What a new worker helps against; one that failed in a way that nobody thought of is as good as dead.
_REPLACED = (WorkerError, EngineError, WeightsLostError)


class RunLoop:
    """One run, until it is stopped, done, or cannot go on.

    :param paused: why the run is not to roll yet, "" if it is.
    :param pausing: told when `paused` changes by itself; awaited before the change is seen.
    :ivar step: steps the present weights were trained.
    :ivar chat: answers model calls once the first boot is done.
    :ivar supervisor: has the workers.
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
        self._failures = FailureMeter(run.config.failures)
        self._task_failures = TaskFailures(run.config.batch.max_aborts_per_task)
        self._pausing = pausing
        self._paused = paused
        self._refusals = Refusals(run.config.failures)
        self._deaths = 0
        self._book = StepBook(parts)
        self._last_batch = ""
        self._checkpointed = 0
        self._credit: dict[str, float] = {}
        self._finishing = False
        self._training_step: int | None = None
        self._stop_requested = False
        self.supervisor = Supervisor(parts.settings, parts.board, parts.events, parts.clock)
        self.chat: ChatService | None = None
        self.step = 0

    @property
    def paused(self) -> str:
        """Why no episodes are given out, "" if they are."""
        return self._paused

    @property
    def training_step(self) -> int | None:
        """The step that is being trained, or whose weights are being published."""
        return self._training_step

    @property
    def last_step(self) -> StepSummary | None:
        """The last step of this process."""
        return self._book.last

    @property
    def set_aside(self) -> list[SetAside]:
        """Tasks that are not tried any more."""
        return list(self._task_failures)

    @property
    def doing(self) -> str:
        """What is done in the states in which nobody rolls out, and how long it may take."""
        settings = self._parts.settings
        if self._board.state is ServerState.BOOTING:
            return doing.booting(settings, self._parts.run_dir)
        if self._finishing:
            return doing.exporting(settings)
        return doing.training(settings, self.step + 1, self.last_step)

    def pause(self, reason: str) -> None:
        """Give out no more episodes and train no more batches after the step in progress."""
        self._paused = reason
        self._show_pause()

    def resume(self) -> None:
        """Undo `pause`; tasks that were set aside get another chance."""
        self._paused = ""
        self._refusals.forget()
        self._failures.forget()
        if self._parts.episodes.builder is not None:
            self._parts.episodes.builder.readmit()
        self._show_pause()

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Have another mixture from the next batch on."""
        config = self.run.config.model_copy(update={"mixture": mixture})
        self.run = replace(self.run, config=config)
        if self._parts.episodes.builder is not None:
            self._parts.episodes.builder.places.change(mixture)
        self._events.emit("mixture", {"what": "changed", "ratios": dict(mixture.ratios)})

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
        and a trainer that lost its weights are replaced with their workers. Only the first boot must succeed: what
        is wrong with it is wrong with the configuration.

        :return: the directory the trained model was exported to.
        :raises AjetError: the run cannot go on.
        """
        booted = False
        furthest = 0
        try:
            while True:
                try:
                    await self._boot()
                    if not booted:
                        booted, furthest = True, self.step
                    await self._train()
                    return await self._finish()
                except _REPLACED as error:
                    if not booted:
                        raise
                    # Steps that were trained before, and are trained again, are no progress.
                    self._deaths = self._deaths + 1 if self.step <= furthest else 1
                    furthest = max(furthest, self.step)
                    await self.supervisor.bury(error)
                    if self._deaths > self._parts.settings.worker_restarts:
                        raise WorkerError(
                            f"workers died {self._deaths} times without finishing a step; the last: "
                            f"{error.message}"
                        ) from error
        finally:
            await self.supervisor.close()

    async def _boot(self) -> None:
        run, parts = self.run, self._parts
        self._finishing = False
        await asyncio.to_thread(self._checkpoints.recover)
        checkpoint = await asyncio.to_thread(self._checkpoints.latest, run.run_id)
        self.step = self._checkpointed = checkpoint.step if checkpoint else 0
        self._credit = checkpoint.position.credit if checkpoint else {}
        workers = await self.supervisor.boot(run, parts.run_dir, checkpoint)
        # What was trained after the checkpoint is lost with its weights, and is trained again.
        self._refusals.lost(s.batch_id for s in await self._store.steps() if s.step > self.step)
        await self._store.rewind(self.step)
        update = await self.supervisor.watched(
            workers.trainer.publish(run.channel, self.step), "publishing the weights"
        )
        await self.supervisor.watched(workers.engine.update_weights(update), "loading the weights")
        self._board.policy_version = self.step
        self.chat = ChatService(
            run.renderer,
            self.supervisor.gate,
            run.config.model.name,
            workers.engine_info,
            run.capabilities,
            parts.wall_clock,
        )
        self.supervisor.ready()

    async def _train(self) -> None:
        parts, config = self._parts, self.run.config
        # Batches that were trained after the checkpoint, or were about to be, come first, in order.
        queued = await self._store.batches(after_step=self.step)
        places = Places(
            config.batch,
            config.rollout,
            config.mixture,
            step=self.step + len(queued) + 1,
            credit=queued[-1].credit if queued else self._credit,
        )
        builder = BatchBuilder(config.batch, self._task_failures, places)
        await parts.episodes.begin(builder)
        if self.run.config.mixture is not None:
            # It may have been changed while the builder was being made ready.
            places.change(self.run.config.mixture)
        keeper = TagKeeper(builder, parts.episodes, self._board, self._events, parts.clock)
        watch = asyncio.create_task(keeper.keep())
        try:
            await self._train_batches(builder, queued)
        finally:
            watch.cancel()

    async def _train_batches(self, builder: BatchBuilder, queued: list[BatchRecord]) -> None:
        limit = self.run.config.steps
        workers = self.supervisor.workers
        while not self._stop_requested and (limit is None or self.step < limit):
            stats = await self.supervisor.watched(workers.engine.stats(), "asking the engine")
            timing = StepClock(self._parts.clock(), stats)
            again = bool(queued)
            record = await (self._next_queued(queued) if again else self._roll(builder))
            if record is None:
                return
            self._training_step = self.step + 1
            try:
                # What began before weights that were lost are made up for would be too old when it is trained.
                if not await self._train_on(record, timing, rolls_on=self._rolls_on and not again):
                    queued.insert(0, record)
            finally:
                self._training_step = None
            builder.trained()
            await self._drop_stale()
            # Rollouts that go on meanwhile may now be ahead of the next step.
            self._parts.episodes.freed()
            if self._rolls_on:
                # No change of state tells that there was a step.
                self._board.touch()

    async def _next_queued(self, queued: list[BatchRecord]) -> BatchRecord | None:
        """The first of the batches that wait, once the run is not paused; None if it is to stop."""
        goes_on = await self._wait(lambda: not (self._paused or self._failures.too_many))
        return queued.pop(0) if goes_on else None

    async def _roll(self, builder: BatchBuilder) -> BatchRecord | None:
        """Let episodes run until a batch is full; None if the run is to stop."""
        builder.places.begin(self.step + 1)
        self.supervisor.begin_rolling()
        if self._rolls_on:
            # Also when there is a full batch already.
            self._board.set(self._rolling_state())
        if not await self._full(builder):
            return None
        if not self._rolls_on:
            self._board.set(ServerState.ROLLING_POST)
        taken = builder.take()
        # Whoever waits for a task that was complete may begin it anew.
        self._parts.episodes.freed()
        record = BatchRecord(
            secrets.token_hex(8),
            self.step + 1,
            taken.ended,
            self._parts.wall_clock(),
            aborted_ids=taken.aborted,
            credit=builder.places.credit,
        )
        await self._store.add_batch(record)
        if self.run.config.rollout.late == "drop" and not self._rolls_on:
            await self._parts.episodes.drop_late(
                f"it was late: the batch of step {record.step} was made without it (setting rollout.late)"
            )
        return record

    async def _full(self, builder: BatchBuilder) -> bool:
        """Return once there is a batch to train, and what was late had its time; False if the run is to stop."""
        rollout = self.run.config.rollout
        if not await self._wait(lambda: self._ready(builder)):
            return False
        if not rollout.drain_seconds or not builder.progress().open_episodes:
            return True
        builder.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(rollout.drain_seconds):
                await self.supervisor.wait_until(
                    lambda: self._stop_requested or not builder.progress().open_episodes
                )
        # It may have been paused meanwhile.
        return await self._wait(lambda: self._ready(builder))

    async def _drop_stale(self) -> None:
        """Give up what would be too old to be trained from its first token on."""
        rollout = self.run.config.rollout
        if rollout.late == "drop" and self._rolls_on:
            await self._parts.episodes.drop_late(
                f"it was late: it began more than {rollout.max_staleness} steps before step {self.step} "
                "(setting rollout.max_staleness)",
                before=self.step - rollout.max_staleness,
            )

    @property
    def _rolls_on(self) -> bool:
        """Whether rollouts go on while a step is trained."""
        return self.run.config.rollout.mode == "async"

    async def _wait(self, ready: Callable[[], bool]) -> bool:
        """ROLLING or PAUSED until there is something to train; False if the run is to stop."""

        def goes_on() -> bool:
            return (
                self._stop_requested
                or self._board.state is not self._rolling_state()
                or (self._failures.too_many and not self._paused)
                or ready()
            )

        while not (self._stop_requested or ready()):
            if self._failures.too_many and not self._paused:
                await self._pause_itself(self._failures.diagnosis())
            self._board.set(self._rolling_state())
            await self.supervisor.wait_until(goes_on)
        return not self._stop_requested

    def _ready(self, builder: BatchBuilder) -> bool:
        """Whether there is a batch to train, with nothing against it."""
        return builder.is_full() and not (self._paused or self._failures.too_many)

    def _show_pause(self) -> None:
        if self._board.state in {ServerState.ROLLING, ServerState.PAUSED}:
            self._board.set(self._rolling_state())
        self._board.touch()

    def _rolling_state(self) -> ServerState:
        return ServerState.PAUSED if self._paused else ServerState.ROLLING

    async def _train_on(self, record: BatchRecord, timing: StepClock, *, rolls_on: bool) -> bool:
        """Train on a batch; False if it is still to be trained.

        :param rolls_on: as for `train_step`.
        """
        # The step it was meant for, unless a batch before it was refused.
        step = self.step + 1
        record = replace(record, step=step)
        try:
            stepped = await self.supervisor.watched(
                train_step(
                    self.run,
                    self.supervisor.workers,
                    record,
                    store=self._store,
                    board=self._board,
                    timing=timing,
                    clock=self._parts.clock,
                    rolls_on=rolls_on,
                ),
                f"training step {step}",
            )
        except StepRefusedError as error:
            return await self._refuse(record, error)
        except _REPLACED as error:
            if self.supervisor.workers.only_engine_died:
                raise
            if (fatal := self._refusals.died(record.batch_id, error)) is not None:
                await self._refuse(record, fatal)
                # It was the batch's fault: the others have all their workers before them.
                self._deaths = 0
            raise
        self._refusals.trained(record.batch_id)
        await self._stepped(stepped, record)
        return True

    async def _refuse(self, record: BatchRecord, error: StepRefusedError) -> bool:
        """Keep a batch that cannot be trained for inspection, and go on with the next one.

        :return: False if it is rather the trainer that somebody has to look at: it has trained this batch before.
        """
        if self._refusals.spares(record.batch_id):
            await self._pause_itself(
                f"the trainer refuses batch {record.batch_id}, which was trained before the last restart: "
                f"{error.message}. Look at the machine and the checkpoint; resuming tries it once more"
            )
            return False
        await self._store.refuse_batch(record.batch_id, error.message)
        self._refusals.refused()
        _log.error("batch %s was refused: %s", record.batch_id, error.message)
        self._events.emit(
            "refused",
            {"batch_id": record.batch_id, "step": record.step, "error": error.to_payload()},
        )
        if self._refusals.too_many:
            await self._pause_itself(
                f"the trainer refused {self._refusals.in_a_row} batches in a row, the last one because: {error.message}. "
                "The batches are kept (`ajet inspect` shows their episodes)"
            )
        return True

    async def _pause_itself(self, reason: str) -> None:
        await self._pausing(reason)
        self.pause(reason)
        _log.error("paused: %s", reason)
        self._events.emit("run", {"what": "paused", "reason": reason})

    async def _stepped(self, stepped: Stepped, record: BatchRecord) -> None:
        # Whoever sees the step finds it in the store.
        await self._book.enter(stepped, record)
        self.step = stepped.summary.step
        self._last_batch = record.batch_id
        self._credit = record.credit
        if self.step % self.run.config.checkpoint_every == 0:
            try:
                await self._checkpoint()
            except WorkerDiedError:
                raise
            except AjetError as error:
                # The trainer says it in its own way if the disk is full. The run goes on at its last checkpoint if it must; the next one may find room again.
                _log.error("%s", error.message)
                self._events.emit("run", {"what": "no_checkpoint", "error": error.to_payload()})
        await self._book.tell(stepped)

    async def _checkpoint(self) -> None:
        async def save(directory: Path) -> None:
            work = self.supervisor.workers.trainer.call(
                "trainer.save", {"directory": str(directory)}
            )
            await self.supervisor.watched(work, f"saving the checkpoint of step {self.step}")

        position = Position(self.run.run_id, self._last_batch, self._credit)
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
        work = self.supervisor.workers.trainer.call("trainer.export", {"directory": str(target)})
        await self.supervisor.watched(work, "exporting the model")
        return target
