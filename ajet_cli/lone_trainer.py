"""A trainer without an engine, in a worker process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ajet_core.errors import ConfigError, WorkerBootError
from ajet_core.interfaces import StepReport, TrainerInfo
from ajet_core.plugin import PluginManager, TrainerSpec
from ajet_core.protocol import RunConfig
from ajet_core.timeline import TrainBatch
from ajet_installation.environment import Interpreter
from ajet_installation.interpreters import choose_interpreters, find_trainer
from ajet_installation.settings import Settings
from ajet_server.run.run_setup import (
    check_algorithm,
    component_plan,
    resolve_model_directory,
)
from ajet_server.workers.codec import BootPlan
from ajet_server.workers.process import WorkerProcess
from ajet_server.workers.remote import RemoteTrainer


@dataclass(frozen=True, slots=True)
class TrainerSetup:
    """Everything to start the trainer of a configuration.

    :param channel: the weight channel on which steps are published, so that the trainer counts
        policy versions as in the run.
    """

    spec: TrainerSpec
    plan: BootPlan
    interpreter: Interpreter | None
    channel: str
    timeout: float

    @classmethod
    def of(
        cls, config: RunConfig, settings: Settings, plugins: PluginManager, scratch: Path
    ) -> TrainerSetup:
        """Check a configuration, and plan its trainer.

        :param scratch: a directory for what the trainer writes.
        :raises ConfigError: the trainer, its settings or the model cannot be used.
        """
        trainer = find_trainer(plugins, config.trainer.name)
        check_algorithm(config, trainer)
        # The paths in a stored configuration are absolute and were checked when the run started.
        server = settings.server.model_copy(
            update={"model_roots": [*settings.server.model_roots, Path(config.model.path).parent]}
        )
        allowed = settings.model_copy(update={"server": server})
        directory = resolve_model_directory(config.model.path, allowed)
        interpreters = choose_interpreters(settings, plugins, trainer=trainer)
        plan = BootPlan(
            run_dir=str(scratch),
            seed=config.seed,
            model=config.model.model_copy(update={"path": str(directory)}),
            algorithm=config.algorithm.model_copy(update={"importance": config.importance}),
            engine=None,
            trainer=component_plan(plugins, trainer, config.trainer, allowed),
            checkpoint=None,
            exact=config.exact,
        )
        offered = trainer.capabilities.weight_channels
        channel = "in_process" if "in_process" in offered else "safetensors_dir"
        if channel not in offered:
            raise ConfigError(
                f"trainer {trainer.name!r} cannot be used without an engine: it publishes weights "
                f"only on {', '.join(offered)}",
                param="trainer.name",
            )
        seconds = settings.server.boot_timeout_seconds
        return cls(trainer, plan, interpreters.get("trainer"), channel, seconds)


class LoneTrainer:
    """A running trainer; create it with `running`."""

    def __init__(self, setup: TrainerSetup, log: Path) -> None:
        self._setup = setup
        self._log = log
        self._process: WorkerProcess | None = None
        self.info: TrainerInfo

    @property
    def _trainer(self) -> RemoteTrainer:
        assert self._process is not None, "the trainer is running"
        return RemoteTrainer(self._process.connection)

    @classmethod
    @asynccontextmanager
    async def running(cls, setup: TrainerSetup, log: Path) -> AsyncIterator[LoneTrainer]:
        """Run a trainer within the context; `begin` has to be called first.

        :param log: receives the output of its process.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        trainer = cls(setup, log)
        try:
            yield trainer
        finally:
            await trainer._close()

    def use(self, setup: TrainerSetup) -> None:
        """Train with another configuration from the next `begin` on."""
        self._setup = setup

    async def begin(self, checkpoint: Path | None, step: int) -> None:
        """Continue from a checkpoint, or from the model if there is none.

        :param step: the number of steps that were trained so far.
        :raises WorkerBootError: the trainer cannot be started.
        """
        setup = self._setup
        plan = replace(
            setup.plan,
            checkpoint=None if checkpoint is None else str(checkpoint),
            policy_version=step,
        )
        report = None
        if self._process is not None and setup.spec.capabilities.reloads:
            report = await self._process.adopt(plan, setup.timeout)
        if report is None:
            await self._close()
            self._process = await WorkerProcess.spawn(self._log, setup.interpreter)
            report = await self._process.boot(plan, setup.timeout)
        if report.trainer is None:
            raise WorkerBootError("the worker started without its trainer")
        self.info = report.trainer
        await self._trainer.publish(setup.channel, step)

    async def step(self, batch: TrainBatch, *, publish: bool = True) -> StepReport:
        """Train on a batch.

        :param publish: whether to publish the weights then, so that policy versions are counted.
        """
        report = await self._trainer.step(batch)
        if publish:
            await self._trainer.publish(self._setup.channel, batch.step)
        return report

    async def rehearse(self, batch: TrainBatch) -> StepReport:
        """Compute a batch without changing the weights."""
        return await self._trainer.rehearse(batch)

    async def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        await self._trainer.save(directory)

    async def export(self, directory: Path) -> None:
        """Write the model as a Hugging Face directory."""
        await self._trainer.export(directory)

    async def _close(self) -> None:
        if self._process is not None:
            await self._process.close()
            self._process = None
