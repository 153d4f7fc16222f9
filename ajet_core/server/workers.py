"""The worker processes of a run: one for engine and trainer together, or one for each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import WorkerBootError
from ajet_core.interfaces import EngineInfo, TrainerInfo
from ajet_core.server.checkpoints import Checkpoint
from ajet_core.server.run_setup import ResolvedRun
from ajet_core.worker.codec import BootReport
from ajet_core.worker.process import WorkerProcess


@dataclass(frozen=True, slots=True)
class RunWorkers:
    """Running workers; `engine` and `trainer` are the same process if they share weights."""

    engine: WorkerProcess
    trainer: WorkerProcess
    engine_info: EngineInfo
    trainer_info: TrainerInfo

    @classmethod
    async def boot(
        cls, run: ResolvedRun, run_dir: Path, checkpoint: Checkpoint | None, timeout: float
    ) -> RunWorkers:
        """Start the processes and make the components in them.

        :raises WorkerBootError: one did not come up; none is left running.
        """
        logs = run_dir / "logs"
        spawned: list[WorkerProcess] = []
        try:
            for kind in ("engine",) if run.together else ("engine", "trainer"):
                log = logs / ("worker.log" if run.together else f"{kind}.log")
                spawned.append(await WorkerProcess.spawn(log, run.python.get(kind)))
            engine, trainer = spawned[0], spawned[-1]
            if run.together:
                plan = run.boot_plan(run_dir, engine=True, trainer=True, checkpoint=checkpoint)
                report = await engine.boot(plan, timeout)
            else:
                engine_plan = run.boot_plan(run_dir, engine=True, trainer=False, checkpoint=None)
                trainer_plan = run.boot_plan(
                    run_dir, engine=False, trainer=True, checkpoint=checkpoint
                )
                engine_report, trainer_report = await asyncio.gather(
                    engine.boot(engine_plan, timeout), trainer.boot(trainer_plan, timeout)
                )
                report = BootReport(engine_report.engine, trainer_report.trainer)
            if report.engine is None or report.trainer is None:
                raise WorkerBootError("a worker came up without its engine or its trainer")
            return cls(engine, trainer, report.engine, report.trainer)
        except BaseException:
            await asyncio.gather(*(worker.close(grace=0.0) for worker in spawned))
            raise

    def processes(self) -> list[WorkerProcess]:
        """Each process once."""
        return [self.engine] if self.engine is self.trainer else [self.engine, self.trainer]

    def alive(self) -> bool:
        """Whether all of them run."""
        return not any(worker.died.done() for worker in self.processes())

    def obituary(self) -> str:
        """How those that ended have ended."""
        return "\n".join(w.died.result() for w in self.processes() if w.died.done())

    async def close(self, grace: float = 10.0) -> None:
        """End all processes, by force after `grace` seconds."""
        await asyncio.gather(*(worker.close(grace) for worker in self.processes()))
