"""The loop of a run: boot, train batch after batch, save checkpoints, replace failed workers."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ajet_core.errors import (
    AjetError,
    EngineError,
    PluginError,
    StepRefusedError,
    StoreError,
    WeightsLostError,
    WorkerBootError,
    WorkerDiedError,
    WorkerError,
)
from ajet_core.interfaces import BatchRecord, LoggedRun, ModelServers, StepReport
from ajet_core.protocol import MixtureConfig, PreflightReport, ServerState, StepSummary
from ajet_core.timeline import TrainBatch
from ajet_server.admission.batching import BatchBuilder
from ajet_server.batches.refusals import Refusals
from ajet_server.batches.sharing import Sharing
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.run.batch_preparation import UnprocessableError, untrainable_episodes
from ajet_server.run.preflight import Preflights, preflight
from ajet_server.run.probing import probed, wants_probe
from ajet_server.run.refused_batches import RefusedBatches
from ajet_server.run.rollouts import Rollouts
from ajet_server.run.run_health import BatchHeld, RunHealth
from ajet_server.run.run_parts import RunParts
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.run.sealing import SealWatch
from ajet_server.run.step import StepClock, Stepped, train_step, trainer_alone
from ajet_server.run.step_book import StepBook
from ajet_server.run.supervision import Supervisor
from ajet_server.spending.meter import IDLE, ROLLOUT
from ajet_server.store.checkpoints import Checkpoint, CheckpointFolder, Position

_log = logging.getLogger("ajet.server")


# Failures that a new worker can fix; a worker with any unexpected failure counts as dead.
_REPLACED = (WorkerError, EngineError, WeightsLostError)
# The parts of a step's duration that are measured.
_PARTS_OF_STEP = (
    "idle_seconds",
    "rollout_seconds",
    "merge_seconds",
    "update_seconds",
    "sync_seconds",
)


@dataclass(frozen=True, slots=True)
class GoBack:
    """A request to go back to the checkpoint of `step`; 0 is the initial model.

    :param retrain: train the later batches again.
    """

    step: int
    retrain: bool = False


class RunLoop:
    """One run, until it is stopped, done, or cannot continue.

    :param paused: why the run is paused, "" if it is not.
    :param pausing: awaited before the run pauses itself, with the reason.
    :param back: what the run is to go back to before anything else.
    :param went_back: awaited once the run has gone back.
    :ivar step: the number of steps that the present weights have been trained.
    :ivar health: judges the batches and steps.
    :ivar chat: answers model calls once the first boot is done.
    :ivar supervisor: owns the workers.
    :ivar rollouts: fills the batches.
    :ivar preflights: decides which batches get a preflight.
    """

    def __init__(
        self,
        run: ResolvedRun,
        parts: RunParts,
        *,
        paused: str,
        pausing: Callable[[str], Coroutine[Any, Any, None]],
        back: GoBack | None,
        went_back: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.run = run
        self._parts = parts
        self._store, self._board, self._events = parts.store, parts.board, parts.events
        self._checkpoints = CheckpointFolder(parts.run_dir)
        self._refusals = Refusals(run.config.failures)
        self._sharing = Sharing(lambda: parts.episodes.clients)
        self._seals = SealWatch(run.capabilities, parts.events)
        self._deaths = 0
        self._book = StepBook(parts)
        self.health = RunHealth(run.config.failures, parts, self._checkpoints)
        self._last_batch = ""
        self._checkpointed = 0
        self._credit: dict[str, float] = {}
        self._finishing = False
        self._back, self._went_back = back, went_back
        self._training_step: int | None = None
        self.supervisor = Supervisor(
            parts.settings, parts.board, parts.events, parts.clock, parts.spare
        )
        self.rollouts = Rollouts(
            run.config, parts, self.supervisor, self._sharing, paused=paused, pausing=pausing
        )
        self._refused = RefusedBatches(parts, self._refusals, self.rollouts, self._sharing)
        self.preflights = Preflights(run.config.preflight, paused)
        self.chat: CompletionService | None = None
        self.step = 0

    @property
    def training_step(self) -> int | None:
        """The step that is being trained, or whose weights are being published."""
        return self._training_step

    @property
    def last_step(self) -> StepSummary | None:
        """The last step trained by this process."""
        return self._book.last

    @property
    def last_step_at(self) -> float:
        """When it ended, in Unix seconds; 0 without one."""
        return self._book.last_at

    @property
    def activity(self) -> str:
        """A description of the work in states without rollouts, and its time limit."""
        settings = self._parts.settings
        if self._board.state is ServerState.BOOTING:
            return (
                "the workers are loading the model (at most "
                f"{settings.boot_timeout_seconds:g} s); their logs are in "
                f"{self._parts.run_dir / 'logs'}"
            )
        at_most = f"at most {settings.step_timeout_seconds:g} s"
        if self._finishing:
            return f"the model is being exported ({at_most})"
        last = self.last_step
        before = f"; the one before took {last.metrics['update_seconds']:.0f} s" if last else ""
        return (
            f"step {self.step + 1} is being trained or its weights are published "
            f"({at_most}{before})"
        )

    def resume(self) -> None:
        """Undo a pause, and forget the refused batches and failed proofs that led to it."""
        self._refusals.forget()
        self._seals.forget()
        if self.supervisor.running is None:
            # The run paused between two generations of workers: boot them first.
            self._board.set(ServerState.BOOTING)
        self.rollouts.resume()

    def go_back(self, back: GoBack) -> None:
        """Go back to a checkpoint after the step in progress is trained; undo a pause."""
        self._back = back
        self.rollouts.leave(leaving=True)
        self.resume()

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Use another mixture from the next batch on."""
        config = self.run.config.model_copy(update={"mixture": mixture})
        self.run = replace(self.run, config=config)
        self.rollouts.change_mixture(mixture)

    def change_servers(self, servers: ModelServers) -> None:
        """Use other model servers, also after a restart of the engine."""
        self.run = replace(self.run, servers=servers)

    async def to_end(self) -> Path:
        """Train until the run ends.

        A worker that dies, even while it boots, is replaced, and training resumes from the last
        checkpoint. An engine that failed for good, or a trainer that lost its weights, is replaced
        together with its worker. In the first boot, any failure but a death ends the run, because
        the configuration is at fault.

        :return: the directory of the exported model.
        :raises AjetError: the run cannot continue.
        """
        booted = False
        furthest = 0
        try:
            while True:
                try:
                    await self._boot()
                    if not booted:
                        booted, furthest = True, self.step
                        facts = LoggedRun(self.run.run_id, self.run.config, self.step)
                        self._parts.loggers.start(facts)
                    await self._train()
                    if self._back is None or self.rollouts.stop_requested:
                        return await self._finish()
                    await self.supervisor.retire()
                    self._deaths = 0
                    furthest = min(furthest, self._back.step)
                except _REPLACED as error:
                    if not (booted or await self.supervisor.died(error)):
                        raise
                    # A new worker would export older weights as if they were the last ones.
                    if self._finishing and not await self.supervisor.died(error):
                        raise
                    # Training a step again is not progress.
                    self._deaths = self._deaths + 1 if self.step <= furthest else 1
                    furthest = max(furthest, self.step)
                    await self.supervisor.handle_death(error)
                    if self._seals.hopeless:
                        await self._pause_without_workers(
                            "the engine was replaced and failed the proof of the same weights "
                            f"again: {error.message}. Check the disk or network between trainer "
                            "and engine, and the engine's log; resuming the run tries once more"
                        )
                        self._seals.forget()
                        self._deaths = 0
                    if self._deaths > self._parts.settings.worker_restarts:
                        await self._too_many_deaths(error, booted)
                except StoreError as error:
                    # The step in progress is not in the store, so its weights are given up.
                    await self.supervisor.retire()
                    await self._pause_without_workers(
                        f"{error.message}. Resuming the run continues it from its last checkpoint"
                    )
                    if self.rollouts.stop_requested:
                        raise
        finally:
            await self.supervisor.close()

    async def _too_many_deaths(self, last: AjetError, booted: bool) -> None:
        """Pause the run, or end it, when workers fail repeatedly.

        :param last: the last failure.
        :param booted: whether any workers have booted since the run was started.
        :raises WorkerError: the run ends.
        """
        if not booted:
            raise WorkerBootError(
                f"workers died {self._deaths} times in a row before the run was ready "
                f"(setting server.worker_restarts). Last reason: {last.message}"
            ) from last
        final = WorkerError(
            f"workers died {self._deaths} times without finishing a step. Last reason: "
            f"{last.message}"
        )
        if isinstance(last, WorkerDiedError):
            raise final from last
        # An error of a component, which its next version may not have: clients wait for that.
        await self._pause_without_workers(
            f"workers failed {self._deaths} times without finishing a step. Last reason: "
            f"{last.message}. Resuming the run tries again"
        )
        if self.rollouts.stop_requested:
            raise final from last
        self._deaths = 0

    async def _boot(self) -> None:
        run, parts = self.run, self._parts
        self._finishing = False
        await asyncio.to_thread(self._checkpoints.recover)
        back = self._back
        checkpoint = await asyncio.to_thread(self._checkpoint_to_load, back)
        self.step = self._checkpointed = checkpoint.step if checkpoint else 0
        self._credit = checkpoint.position.credit if checkpoint else {}
        workers = await self.supervisor.boot(run, parts.run_dir, checkpoint)
        # Training after the checkpoint is lost with the weights, and is repeated.
        steps = await self._store.steps()
        lost = [s.batch_id for s in steps if s.step > self.step]
        self._refusals.lost(lost)
        if back is None:
            await self._store.rewind(self.step)
        else:
            await self._forget_what_came_after(back)
        kept = [s for s in steps if s.step <= self.step]
        self.health.begin(kept)
        parts.spending.begin(s.metrics["step_seconds"] for s in kept if "step_seconds" in s.metrics)
        self.health.accept(lost)
        update = await self.supervisor.watched(
            workers.trainer.publish(run.channel, self.step), "publishing the weights"
        )
        if wants_probe(run, workers, update):
            async with trainer_alone(run, workers):
                update = await self.supervisor.watched(
                    probed(run, workers, update), "probing the weights"
                )
        await self.supervisor.watched(
            self._seals.serve(workers.engine, update), "loading the weights"
        )
        self._board.policy_version = self.step
        self.chat = CompletionService(
            run.renderer,
            self.supervisor.gate,
            run.config.model.name,
            workers.engine_info,
            run.capabilities,
            parts.wall_clock,
            exact=run.config.exact,
            note=parts.admission.called,
        )
        self.supervisor.ready()

    def _checkpoint_to_load(self, back: GoBack | None) -> Checkpoint | None:
        """Return the newest checkpoint, or that of the step to which the run goes back."""
        run_id = self.run.run_id
        if back is None:
            return self._checkpoints.latest(run_id)
        checkpoint = self._checkpoints.at(back.step, run_id) if back.step else None
        if back.step and checkpoint is None:
            raise StoreError(
                f"the checkpoint of step {back.step}, to which the run was to return, is "
                "damaged or missing: restore it, then start the server again"
            )
        return checkpoint

    async def _forget_what_came_after(self, back: GoBack) -> None:
        """Forget the steps and samples after `back`, whose weights are loaded.

        A run that is killed at any point in between repeats all of this.
        """
        discard = None
        if not back.retrain:
            reason = f"the run went back to step {back.step}"
            # The open episodes were sampled by weights that are given up.
            await self._parts.episodes.abort_training(reason, "run_stopped")
            discard = BatchRecord(
                secrets.token_hex(8), back.step + 1, [], self._parts.wall_clock(), refused=reason
            )
        await self._store.rewind(back.step, discard=discard)
        await asyncio.to_thread(self._checkpoints.forget_after, back.step)
        self._book.forget_after(back.step)
        if self._back is back:
            await self._went_back()
            self._back = None
            self.rollouts.leave(leaving=False)
        self._events.emit("run", {"what": "went_back", "step": back.step})
        _log.warning("the run went back to step %d", back.step)

    async def _train(self) -> None:
        # First the batches that were trained after the checkpoint or were about to be, in order.
        queued = await self._store.batches(after_step=self.step)
        credit = queued[-1].credit if queued else self._credit
        async with self.rollouts.batches(self.step + len(queued) + 1, credit) as builder:
            await self._train_batches(builder, queued)

    async def _train_batches(self, builder: BatchBuilder, queued: list[BatchRecord]) -> None:
        limit = self.run.config.steps
        workers, rollouts = self.supervisor.workers, self.rollouts
        while not rollouts.over and (limit is None or self.step < limit):
            stats = await self.supervisor.watched(workers.engine.stats(), "querying the engine")
            timing = StepClock(self._parts.clock(), stats)
            self._parts.spending.begin_step()
            again = bool(queued)
            # In an exact run, no call is answered with older weights than without the restart.
            if not (again and self.run.config.exact):
                self.supervisor.answer_calls()
            step = self.step + 1
            try:
                record = await (
                    rollouts.next_queued(queued)
                    if again
                    # A status in between would show neither a full batch nor its training.
                    else rollouts.fill(builder, step, partial(self._train_step, step))
                )
                if record is None:
                    return
                phases = self._parts.spending.step_phases()
                timing.rollout_seconds = phases.get(ROLLOUT, 0.0)
                timing.idle_seconds = phases.get(IDLE, 0.0)
                self._train_step(step)
                # While lost steps are trained again, new episodes would be too old when trained.
                rolls_on = rollouts.rolls_on and not again
                left = await self._train_on(record, timing, rolls_on=rolls_on)
            finally:
                self._train_step(None)
            if left is None:
                await rollouts.trained(builder, self.step)
            else:
                queued.insert(0, left)

    def _train_step(self, step: int | None) -> None:
        """Note which step is trained from now on."""
        self._training_step = step
        self._parts.spending.mark()

    async def _train_on(
        self, record: BatchRecord, timing: StepClock, *, rolls_on: bool
    ) -> BatchRecord | None:
        """Train on a batch, without those of its episodes that cannot be processed or trained.

        :param rolls_on: as for `train_step`.
        :return: the batch if it is still to be trained.
        """
        # This is the step the batch was made for, unless an earlier batch was refused.
        step = self.step + 1
        whole = await self._refused.without_quarantined(replace(record, step=step))
        if whole is None:
            return None
        record = whole
        tried_again = False
        while True:
            try:
                if self.preflights.due(step) and not await self._passes(record, rolls_on=rolls_on):
                    return record
                stepped = await self._step(record, timing, rolls_on=rolls_on)
                stepped = await self._enter(stepped, record)
                break
            except BatchHeld as held:
                await self._hold(held.reason)
                self.health.accept([record.batch_id])
                return record
            except UnprocessableError as error:
                culprits = error.episode_ids
                if (culprits or tried_again) and await self._is_fault_of_plugin(record, error):
                    await self._hold(
                        f"{error.refusal.message}. This is an error of the plugin: batch "
                        f"{record.batch_id} is kept. Upgrade the plugin, start the server again, "
                        "and run `ajet resume` to train the batch"
                    )
                    return record
                if len(culprits) == len(record.episode_ids) or (tried_again and not culprits):
                    return await self._refused.refuse(record, error.refusal)
                tried_again = True
                if culprits:
                    record = await self._refused.leave_out(record, culprits, error.refusal)
            except _REPLACED as error:
                if not (timing.trained or isinstance(error, EngineError)):
                    await self._count_death(record, error)
                raise
            except AjetError:
                raise
            # A defect of the server or a plugin after the trainer got the batch: engine and trainer
            # may have different weights, as after the death of a worker.
            except Exception as error:
                _log.exception("step %d failed", step)
                lost = WeightsLostError(f"step {step} failed: {type(error).__name__}: {error}")
                await self._count_death(record, lost)
                raise lost from error
        self._sharing.batch(stepped.clients)
        self._refusals.trained(record.batch_id, stepped.clients)
        await self._stepped(stepped, record)
        return None

    async def _step(self, record: BatchRecord, timing: StepClock, *, rolls_on: bool) -> Stepped:
        """Train one step, as `train_step` does.

        :raises UnprocessableError: also if the trainer refuses the batch.
        """
        work = train_step(
            self.run,
            self.supervisor.workers,
            record,
            store=self._store,
            board=self._board,
            timing=timing,
            clock=self._parts.clock,
            seals=self._seals,
            rolls_on=rolls_on,
            judge=self.health.judge,
        )
        telemetry = self._parts.telemetry
        try:
            with nullcontext() if telemetry is None else telemetry.step(record) as span:
                stepped = await self.supervisor.watched(work, f"training step {record.step}")
                if span is not None:
                    span.summary = stepped.summary
            return stepped
        except StepRefusedError as error:
            culprits = await self._untrainable(record)
            # If no rehearsal identifies the episodes, refuse the whole batch.
            raise UnprocessableError(error, culprits or record.episode_ids) from error

    async def _is_fault_of_plugin(self, record: BatchRecord, error: UnprocessableError) -> bool:
        """Return whether a plugin that failed on a batch may fail on other batches as well."""
        if not error.by_plugin:
            return False
        blamed = error.episode_ids or record.episode_ids
        whole = len(blamed) == len(record.episode_ids)
        # Episodes of others can be processed, so one client's episodes pause nothing.
        others = not whole or self.last_step is not None
        if others and await self._refused.are_one_clients(blamed):
            return False
        return whole or not error.alone

    async def _untrainable(self, record: BatchRecord) -> Iterable[str]:
        """Return the episodes for which the trainer refuses a batch, as far as they are known."""
        run, workers = self.run, self.supervisor.workers
        if not run.rehearses or self._refusals.was_trained(record.batch_id):
            return ()

        async def rehearse(batch: TrainBatch) -> StepReport:
            return await self.supervisor.watched(
                workers.trainer.rehearse(batch),
                f"the search for the episodes that make step {record.step} fail",
            )

        async with trainer_alone(run, workers):
            try:
                return await untrainable_episodes(
                    run, self._store, record, workers.trainer_info, rehearse
                )
            except PluginError as error:
                _log.error("cannot find the episodes that cannot be trained: %s", error.message)
                return ()

    async def _passes(self, record: BatchRecord, *, rolls_on: bool) -> bool:
        """Run the preflight of a batch; False if the run was paused because of it."""
        if not rolls_on:
            self._board.set(ServerState.ROLLING_POST)
        self.preflights.begin()
        try:
            report = await self._preflight(record, refusable=True)
        except UnprocessableError:
            self.preflights.again()
            raise
        except StepRefusedError as error:
            culprits = await self._untrainable(record)
            if await self._refused.are_one_clients(culprits):
                self.preflights.again()
                raise UnprocessableError(error, culprits) from error
            report = await self._preflight(record, refusable=False)
        reason = self.preflights.done(report)
        self._events.emit("preflight", {"verdict": report.verdict, **report.model_dump()})
        for check in report.checks:
            if check.verdict != "pass":
                _log.warning("preflight, %s: %s (%s)", check.name, check.found, check.way_out)
        if reason:
            await self.rollouts.pause_itself(reason)
        return not reason

    async def _preflight(self, record: BatchRecord, *, refusable: bool) -> PreflightReport:
        """Run a preflight, as `preflight` does, under supervision."""
        work = preflight(
            self.run,
            self.supervisor.workers,
            record,
            store=self._store,
            seal=self._seals.last,
            clock=self._parts.clock,
            refusable=refusable,
        )
        return await self.supervisor.watched(work, f"the preflight of step {record.step}")

    async def _pause_without_workers(self, reason: str) -> None:
        """Wait until an operator resumes or stops the run."""
        await self.rollouts.pause_itself(reason)
        self._board.set(ServerState.PAUSED)
        await self._board.wait_until(
            lambda: not self.rollouts.paused or self.rollouts.stop_requested
        )
        self._board.set(ServerState.BOOTING)

    async def _hold(self, reason: str) -> None:
        """Pause before a batch is trained, with a checkpoint of the weights before it."""
        if self.step > self._checkpointed:
            await self._try_checkpoint()
        await self.rollouts.pause_itself(reason)

    async def _count_death(self, record: BatchRecord, error: AjetError) -> None:
        """Count the loss of a worker against its batch.

        After too many, the batch is refused, or divided if it has episodes of several clients.
        """
        if self.supervisor.workers.only_engine_died:
            return
        if (fatal := self._refusals.died(record.batch_id, error)) is not None:
            known = self._refusals.was_trained(record.batch_id)
            if known or not await self._refused.divide(record, fatal):
                await self._refused.refuse(record, fatal)
            # The batch was at fault: later batches get the full number of restarts.
            self._deaths = 0

    async def _enter(self, stepped: Stepped, record: BatchRecord) -> Stepped:
        """Judge and record a step."""
        spending = self._parts.spending
        seconds = spending.step_seconds()
        metrics = dict(stepped.summary.metrics)
        known = math.fsum(metrics.get(name, 0.0) for name in _PARTS_OF_STEP)
        metrics |= {"step_seconds": seconds, "other_seconds": max(0.0, seconds - known)}
        timed = stepped.summary.model_copy(update={"metrics": metrics})
        summary, grave = self.health.stepped(timed, stepped.clients, stepped.faults)
        stepped = replace(stepped, summary=summary)
        if reason := grave or self._overspent(summary.step):
            # Pause first: a server that is killed in between must not continue without notice.
            await self.rollouts.pause_itself(reason)
        # Store the step before it is announced.
        await self._book.enter(stepped, record, self.run.config)
        spending.stepped(seconds)
        return stepped

    async def keep_budget(self) -> None:
        """Pause while rolling out if the budget is spent; steps check it themselves."""
        rolling = self._board.rolling and self._training_step is None
        if rolling and not self.rollouts.paused and (reason := self._overspent(self.step)):
            await self.rollouts.pause_itself(reason)

    def _overspent(self, step: int) -> str:
        """Return why the run is to pause after a step; "" if its budget suffices so far."""
        if step == self.run.config.steps:
            # The run ends.
            return ""
        over = self._parts.spending.overspent(self.run.config.budget)
        return over and f"{over}, then run `ajet resume`"

    async def _stepped(self, stepped: Stepped, record: BatchRecord) -> None:
        self.step = stepped.summary.step
        self._last_batch = record.batch_id
        self._credit = record.credit
        if self.step % self.run.config.checkpoint_every == 0:
            await self._try_checkpoint()
        self.rollouts.stepped()
        self._book.tell(stepped)

    async def _try_checkpoint(self) -> None:
        try:
            await self._checkpoint()
        except WorkerDiedError:
            raise
        except AjetError as error:
            # If the disk is full, the trainer raises an error of any kind. The run can still
            # recover from its last checkpoint, and the next one may find space again.
            _log.error("%s", error.message)
            self._events.emit("run", {"what": "no_checkpoint", "error": error.to_payload()})

    async def _checkpoint(self) -> None:
        async def save(directory: Path) -> None:
            work = self.supervisor.workers.trainer.save(directory)
            await self.supervisor.watched(work, f"saving the checkpoint of step {self.step}")

        position = Position(self.run.run_id, self._last_batch, self._credit)
        trusted = self.health.trusted_step(self.step)
        await self._checkpoints.write(self.step, position, save, trusted_step=trusted)
        self._checkpointed = self.step

    async def _finish(self) -> Path:
        """Save a checkpoint, and export the trained model."""
        self._finishing = True
        self._board.set(ServerState.WEIGHT_SYNCING)
        await self._parts.episodes.abort_all("the run was stopped", "run_stopped")
        if self.step > self._checkpointed:
            await self._checkpoint()
        target = self._parts.run_dir / "export" / f"step-{self.step:06d}"
        work = self.supervisor.workers.trainer.export(target)
        await self.supervisor.watched(work, "exporting the model")
        return target
