"""The worker processes of a run: one for engine and trainer together, or one for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import WorkerBootError
from ajet_core.interfaces import EngineInfo, ServingEngine, TrainerInfo
from ajet_installation.environment import Interpreter
from ajet_server.run.run_setup import ResolvedRun
from ajet_server.store.checkpoints import Checkpoint
from ajet_server.workers.codec import BootPlan, BootReport
from ajet_server.workers.process import WorkerProcess
from ajet_server.workers.remote import RemoteEngine, RemoteTrainer
from ajet_server.workers.spare_worker import SpareWorker, place_of, spawn

_log = logging.getLogger("ajet.server")

_DISMISS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RunWorkers:
    """A running engine and trainer, and their processes: the same one if they share weights."""

    engine: ServingEngine
    trainer: RemoteTrainer
    engine_info: EngineInfo
    trainer_info: TrainerInfo
    engine_process: WorkerProcess
    trainer_process: WorkerProcess

    @classmethod
    async def boot(
        cls,
        run: ResolvedRun,
        run_dir: Path,
        checkpoint: Checkpoint | None,
        *,
        timeout: float,
        orphan_seconds: float,
        spare: SpareWorker | None = None,
    ) -> RunWorkers:
        """Take over the workers of a server that was killed, or start new ones.

        :param orphan_seconds: how long workers wait for the next server if this one is killed.
        :param spare: used by a run that needs one worker of its kind; ended by others.
        :raises WorkerDiedError: a worker was killed meanwhile; none is left running.
        :raises WorkerBootError: a worker did not start; none is left running.
        """
        spare = spare or SpareWorker(run_dir)
        boot = _Boot(run_dir, timeout, orphan_seconds, spare)
        try:
            if run.together:
                plan = run.boot_plan(run_dir, engine=True, trainer=True, checkpoint=checkpoint)
                report = await boot.worker("worker", plan, run.python.get("engine"), run.reloads)
            else:
                await spare.close()
                engine_plan = run.boot_plan(run_dir, engine=True, trainer=False, checkpoint=None)
                trainer_plan = run.boot_plan(
                    run_dir, engine=False, trainer=True, checkpoint=checkpoint
                )
                boots = (
                    boot.worker("trainer", trainer_plan, run.python.get("trainer"), run.reloads),
                    boot.worker("engine", engine_plan, run.python.get("engine"), True),
                )
                if run.config.rollout.engine_sleeps:
                    # They share a device's memory: the engine takes what the trainer leaves, and
                    # must start while the trainer is idle.
                    trained, served = await _in_turn(*boots)
                else:
                    trained, served = await _together(*boots)
                report = BootReport(served.engine, trained.trainer)
            if report.engine is None or report.trainer is None:
                raise WorkerBootError("a worker started without its engine or its trainer")
            engine = boot.running["worker" if run.together else "engine"]
            trainer = boot.running["worker" if run.together else "trainer"]
            return cls(
                engine=RemoteEngine(engine.connection, f"worker {engine.pid}"),
                trainer=RemoteTrainer(trainer.connection),
                engine_info=report.engine,
                trainer_info=report.trainer,
                engine_process=engine,
                trainer_process=trainer,
            )
        except BaseException:
            await asyncio.gather(*(worker.close(grace=0.0) for worker in boot.running.values()))
            raise

    def processes(self) -> list[WorkerProcess]:
        """Return each process once."""
        both = [self.engine_process, self.trainer_process]
        return both[:1] if self.engine_process is self.trainer_process else both

    def alive(self) -> bool:
        """Return whether all processes run."""
        return not any(worker.died.done() for worker in self.processes())

    @property
    def only_engine_died(self) -> bool:
        """Whether only the engine has ended, in a separate process from the trainer's."""
        return self.engine_process.died.done() and not self.trainer_process.died.done()

    def exit_report(self) -> str:
        """Describe how the ended processes ended."""
        return "\n".join(w.died.result() for w in self.processes() if w.died.done())

    async def close(self, grace: float = 10.0) -> None:
        """Stop all processes; kill them after `grace` seconds."""
        await asyncio.gather(*(worker.close(grace) for worker in self.processes()))


async def _in_turn(
    first: Coroutine[None, None, BootReport], second: Coroutine[None, None, BootReport]
) -> tuple[BootReport, BootReport]:
    try:
        return await first, await second
    finally:
        # If the first fails, close the second: Python warns about coroutines never awaited.
        second.close()


async def _together(
    first: Coroutine[None, None, BootReport], second: Coroutine[None, None, BootReport]
) -> tuple[BootReport, BootReport]:
    """Run both concurrently; if one fails, cancel the other."""
    try:
        async with asyncio.TaskGroup() as both:
            tasks = both.create_task(first), both.create_task(second)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()


@dataclass(slots=True)
class _Boot:
    """The boot of a run's workers; `running` holds the processes by name."""

    run_dir: Path
    timeout: float
    orphan_seconds: float
    spare: SpareWorker
    running: dict[str, WorkerProcess] = field(default_factory=dict)

    async def worker(
        self, name: str, plan: BootPlan, interpreter: Interpreter | None, reusable: bool
    ) -> BootReport:
        """Find or start a worker and boot its components."""
        log, rendezvous = place_of(self.run_dir, name)
        former = await WorkerProcess.find(rendezvous, log)
        if former is not None:
            self.running[name] = former
            report = await former.adopt(plan, self.timeout) if reusable else None
            if report is not None:
                await self.spare.close()
                _log.info("worker %d continues after its server was killed", former.pid)
                return report
            # Close it first: it holds memory that the new worker needs.
            await former.close(_DISMISS_SECONDS)
        orphan_seconds = self.orphan_seconds if reusable else 0.0
        try:
            worker = self.spare.take(interpreter, orphan_seconds)
            if worker is None:
                # One that does not fit this run would keep its memory.
                await self.spare.close()
                worker = await spawn(self.run_dir, name, interpreter, orphan_seconds)
            self.running[name] = worker
            return await worker.boot(plan, self.timeout)
        except WorkerBootError as error:
            if interpreter is None or not interpreter.remedy:
                raise
            raise WorkerBootError(
                f"{error.message}\n"
                f"The {name} runs in its own environment, which `ajet doctor` checks. If the "
                f"environment is broken, recreate it: {interpreter.remedy}"
            ) from error
