"""The records of a run from which its steps can be trained again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from ajet_core.errors import RequestError
from ajet_core.interfaces import (
    AdvantageEstimator,
    BatchRecord,
    EpisodeRecord,
    Merger,
    RunRecord,
    SampleStore,
    StepRecord,
    TrainerInfo,
    WorkerContext,
)
from ajet_core.plugin import PluginManager
from ajet_core.protocol import RunConfig
from ajet_core.timeline import Call
from ajet_server.batches.training_data import TrainingData, training_data
from ajet_server.observe.checked_components import CheckedEstimator
from ajet_server.observe.run_merger import make_merger
from ajet_server.run.run_setup import stored_config
from ajet_server.store.checkpoints import Checkpoint, CheckpointFolder
from ajet_server.store.store_reader import StoredEpisode, StoreReader


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A finished step with everything that it was trained on.

    :param metrics: as recorded when it was trained.
    """

    record: StepRecord
    batch: BatchRecord
    episodes: list[StoredEpisode]

    @property
    def number(self) -> int:
        """The number of the step, from 1 on."""
        return self.record.step

    @property
    def calls(self) -> dict[str, list[Call]]:
        """The calls by episode id."""
        return {one.record.episode_id: one.calls for one in self.episodes}

    @property
    def episode_records(self) -> list[EpisodeRecord]:
        """The records of the episodes, in the order in which they were trained."""
        return [one.record for one in self.episodes]


@dataclass(frozen=True, slots=True)
class Preparation:
    """How batches become training data, for one configuration."""

    config: RunConfig
    merger: Merger
    estimator: AdvantageEstimator

    @classmethod
    def of(cls, config: RunConfig, plugins: PluginManager, run_dir: Path) -> Self:
        """Create the merger and the estimator of a configuration.

        :raises ConfigError: one of them does not exist, or its settings are wrong.
        :raises PluginError: a plugin cannot be used.
        """
        spec = plugins.advantage(config.algorithm.advantage)
        settings = plugins.validate_settings(spec, config.algorithm.advantage_settings)
        context = WorkerContext(run_dir=run_dir, seed=config.seed)
        return cls(
            config,
            make_merger(config.merger, plugins, context),
            CheckedEstimator(
                plugins.create(spec, settings, config.algorithm), plugins.describe(spec)
            ),
        )

    def data(self, step: RecordedStep, trainer: TrainerInfo) -> TrainingData:
        """Return the training data of a step."""
        return training_data(
            step.batch.batch_id,
            step.number,
            step.episode_records,
            step.calls,
            config=self.config,
            merger=self.merger,
            estimator=self.estimator,
            trainer=trainer,
        )


class RecordedRun:
    """A stored run, opened for reading; its server may be running.

    :ivar config: its latest configuration.
    """

    def __init__(self, run_dir: Path, reader: StoreReader, store: SampleStore) -> None:
        self.run_dir = run_dir
        self._reader = reader
        self._store = store
        self._steps: list[StepRecord] = []
        self._batches: dict[str, BatchRecord] = {}
        self._checkpoints = CheckpointFolder(run_dir)
        self.record: RunRecord
        self.config: RunConfig

    @classmethod
    async def open(cls, run_dir: Path, store: SampleStore) -> Self:
        """Open the store of a run.

        :raises StoreError: the store does not exist or cannot be read.
        :raises RequestError: no run was started in the directory, or no step was trained.
        """
        run = cls(run_dir, StoreReader(store, run_dir), store)
        await run._reader.__aenter__()
        try:
            await run._read()
        except BaseException:
            await run.close()
            raise
        return run

    async def _read(self) -> None:
        record = await self._reader.run()
        if record is None:
            raise RequestError(f"{self.run_dir} has no run: give the run directory of a server")
        self.record, self.config = record, stored_config(record)
        self._steps = await self._store.steps()
        batches = await self._store.batches(after_step=0)
        self._batches = {batch.batch_id: batch for batch in batches}
        if not self._steps:
            raise RequestError(
                f"{self.run_dir} has no trained step yet, so there is nothing to replay"
            )

    async def close(self) -> None:
        """Close the store."""
        await self._reader.__aexit__()

    @property
    def first_step(self) -> int:
        """The number of the first recorded step, which is greater than 1 in a pack."""
        return self._steps[0].step

    @property
    def last_step(self) -> int:
        """The number of the last trained step."""
        return self._steps[-1].step

    async def step(self, number: int) -> RecordedStep:
        """Load a step.

        :raises RequestError: it was not trained, or episodes are missing.
        """
        record = next((one for one in self._steps if one.step == number), None)
        if record is None:
            raise RequestError(
                f"step {number} was not trained: {self.run_dir} has the steps "
                f"{self._steps[0].step} to {self.last_step}"
            )
        batch = self._batches.get(record.batch_id)
        if batch is None:
            raise RequestError(f"the batch of step {number} is missing in {self.run_dir}")
        episodes = [await self._reader.load(one) for one in batch.episode_ids]
        return RecordedStep(record, replace(batch, step=number), episodes)

    def config_of(self, step: int) -> RunConfig:
        """Return the configuration with which a step was trained, with the model of `config`."""
        for record in reversed(self._steps):
            if record.step <= step and record.config_json:
                config = stored_config(replace(self.record, config_json=record.config_json))
                return config.model_copy(update={"model": self.config.model})
        return self.config

    def checkpoint_before(self, step: int) -> Checkpoint | None:
        """Return the last intact checkpoint from which `step` can be reached, if there is one."""
        for number in reversed(self._checkpoints.steps()):
            if number < step and (checkpoint := self.checkpoint_at(number)) is not None:
                return checkpoint
        return None

    def checkpoint_at(self, step: int) -> Checkpoint | None:
        """Return the intact checkpoint of a step, None if there is none."""
        return self._checkpoints.at(step, self.record.run_id)
