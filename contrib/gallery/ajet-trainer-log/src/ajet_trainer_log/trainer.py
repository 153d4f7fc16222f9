"""The trainer ``log``."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path

from ajet_core.errors import StepRefusedError, TrainerError
from ajet_core.interfaces import StepReport, Trainer, TrainerInfo, WeightUpdate, WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import TrainBatch
from ajet_trainer_log.files import StepFiles
from ajet_trainer_log.hooks import WEIGHT_CHANNELS
from ajet_trainer_log.rows import Row, rows_of
from ajet_trainer_log.settings import LogTrainerSettings

STATE = "log_trainer.json"


class LogTrainer(Trainer[LogTrainerSettings]):
    """Writes what would be trained to a file for each step, and publishes the model as it is."""

    def __init__(self, settings: LogTrainerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._files = StepFiles(context.run_dir / settings.directory, settings.format)
        self._model = Path()
        self._step = 0

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:  # noqa: ARG002
        """Remember where the model is."""
        self._model = Path(model.path)
        return TrainerInfo(parameters=0, trainable_parameters=0, device="none")

    def step(self, batch: TrainBatch) -> StepReport:
        """Write the batch.

        :raises StepRefusedError: it has a number that is not finite.
        :raises TrainerError: it is no batch of sequences, or cannot be written.
        """
        began = time.perf_counter()
        rows = self._rows(batch)
        self._files.write(batch.step, rows)
        self._step = batch.step
        return self._report(batch, rows, time.perf_counter() - began)

    def rehearse(self, batch: TrainBatch) -> StepReport:
        """Check the batch, and write nothing.

        :raises StepRefusedError: it has a number that is not finite.
        :raises TrainerError: it is no batch of sequences.
        """
        return self._report(batch, self._rows(batch), 0.0)

    def _rows(self, batch: TrainBatch) -> list[Row]:
        for call in batch.calls:
            if not all(map(math.isfinite, (call.advantage, *call.logprobs))):
                raise StepRefusedError(
                    f"step {batch.step}: the advantage or a logprob of call {call.call_id} is not "
                    "finite"
                )
        try:
            return rows_of(batch)
        except ValueError as error:
            raise TrainerError(str(error)) from error

    def _report(self, batch: TrainBatch, rows: list[Row], seconds: float) -> StepReport:
        trained = sum(sum(row.loss_mask) for row in rows)
        return StepReport(
            step=batch.step,
            metrics={"logged_sequences": float(len(rows)), "logged_tokens": float(trained)},
            tokens_trained=trained,
            # Nothing is computed.
            tokens_processed=0,
            sequences=len(rows),
            seconds=seconds,
        )

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish the directory of the model.

        :raises TrainerError: the channel is another one.
        """
        if channel not in WEIGHT_CHANNELS:
            raise TrainerError(
                f"the trainer 'log' has no weight channel {channel!r}, only "
                f"{', '.join(WEIGHT_CHANNELS)}"
            )
        return WeightUpdate(channel, policy_version, location=str(self._model))

    def save(self, directory: Path) -> None:
        """Write which step was the last."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / STATE).write_text(json.dumps({"step": self._step}), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Go back to a saved step, and remove the files of later ones.

        :raises TrainerError: there is no saved step.
        """
        try:
            state = json.loads((directory / STATE).read_text(encoding="utf-8"))
            step = int(state["step"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainerError(f"cannot load {directory / STATE}: {error}") from error
        self._step = step
        self._files.drop_after(step)

    def export(self, directory: Path) -> None:
        """Copy the model."""
        shutil.copytree(self._model, directory, dirs_exist_ok=True)

    def close(self) -> None:
        """There is nothing to free."""
