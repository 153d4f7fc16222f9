"""A run from its boot to its end: trains batch after batch, checkpoints, and replaces workers that fail."""

from __future__ import annotations

import asyncio
import logging
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
from ajet_core.interfaces import BatchRecord
from ajet_core.protocol import MixtureConfig, ServerState, StepSummary
from ajet_core.server import doing
from ajet_core.server.batching import BatchBuilder
from ajet_core.server.checkpoints import CheckpointFolder, Position
from ajet_core.server.dialects.completing import CompletionService
from ajet_core.server.refusals import Refusals
from ajet_core.server.rollouts import Rollouts
from ajet_core.server.run_parts import RunParts
from ajet_core.server.run_setup import ResolvedRun
from ajet_core.server.step import StepClock, Stepped, train_step
from ajet_core.server.step_book import StepBook
from ajet_core.server.supervision import Supervisor

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
    :ivar rollouts: fills the batches.
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
        self._refusals = Refusals(run.config.failures)
        self._deaths = 0
        self._book = StepBook(parts)
        self._last_batch = ""
        self._checkpointed = 0
        self._credit: dict[str, float] = {}
        self._finishing = False
        self._training_step: int | None = None
        self.supervisor = Supervisor(parts.settings, parts.board, parts.events, parts.clock)
        self.rollouts = Rollouts(run.config, parts, self.supervisor, paused=paused, pausing=pausing)
        self.chat: CompletionService | None = None
        self.step = 0

    @property
    def training_step(self) -> int | None:
        """The step that is being trained, or whose weights are being published."""
        return self._training_step

    @property
    def last_step(self) -> StepSummary | None:
        """The last step of this process."""
        return self._book.last

    @property
    def doing(self) -> str:
        """What is done in the states in which nobody rolls out, and how long it may take."""
        settings = self._parts.settings
        if self._board.state is ServerState.BOOTING:
            return doing.booting(settings, self._parts.run_dir)
        if self._finishing:
            return doing.exporting(settings)
        return doing.training(settings, self.step + 1, self.last_step)

    def resume(self) -> None:
        """Undo a pause; what was against the run is forgotten."""
        self._refusals.forget()
        self.rollouts.resume()

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Have another mixture from the next batch on."""
        config = self.run.config.model_copy(update={"mixture": mixture})
        self.run = replace(self.run, config=config)
        self.rollouts.change_mixture(mixture)

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
        self.chat = CompletionService(
            run.renderer,
            self.supervisor.gate,
            run.config.model.name,
            workers.engine_info,
            run.capabilities,
            parts.wall_clock,
        )
        self.supervisor.ready()

    async def _train(self) -> None:
        # Batches that were trained after the checkpoint, or were about to be, come first, in order.
        queued = await self._store.batches(after_step=self.step)
        credit = queued[-1].credit if queued else self._credit
        async with self.rollouts.batches(self.step + len(queued) + 1, credit) as builder:
            await self._train_batches(builder, queued)

    async def _train_batches(self, builder: BatchBuilder, queued: list[BatchRecord]) -> None:
        limit = self.run.config.steps
        workers, rollouts = self.supervisor.workers, self.rollouts
        while not rollouts.stop_requested and (limit is None or self.step < limit):
            stats = await self.supervisor.watched(workers.engine.stats(), "asking the engine")
            timing = StepClock(self._parts.clock(), stats)
            again = bool(queued)
            record = await (
                rollouts.next_queued(queued) if again else rollouts.fill(builder, self.step + 1)
            )
            if record is None:
                return
            self._training_step = self.step + 1
            try:
                # What began before weights that were lost are made up for would be too old when it is trained.
                rolls_on = rollouts.rolls_on and not again
                if not await self._train_on(record, timing, rolls_on=rolls_on):
                    queued.insert(0, record)
            finally:
                self._training_step = None
            await rollouts.trained(builder, self.step)

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
            await self.rollouts.pause_itself(
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
            await self.rollouts.pause_itself(
                f"the trainer refused {self._refusals.in_a_row} batches in a row, the last one because: {error.message}. "
                "The batches are kept (`ajet inspect` shows their episodes)"
            )
        return True

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
        self.rollouts.stepped()
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
