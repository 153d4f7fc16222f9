"""A trainer that records batches instead of learning from them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import select
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.files import read_json
from ajet_core.interfaces import (
    ModelDirectory,
    StepReport,
    Trainer,
    TrainerInfo,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import TrainBatch
from ajet_testing.faults import Count, Faults, FaultSettings
from ajet_testing.scripted_engine import swayed

__all__ = ["ALGORITHM_FIELDS", "WEIGHT_CHANNELS", "ScriptedTrainer", "ScriptedTrainerSettings"]

WEIGHT_CHANNELS = ("in_process", "digest_file")
ALGORITHM_FIELDS = frozenset(AlgorithmConfig.model_fields)

_SHARED_KEY = "scripted.weights"
_STATE_FILE = "scripted_trainer.json"
_WEIGHT_FILE = "scripted-weights"


class ScriptedTrainerSettings(FaultSettings):
    """Settings of the trainer ``scripted``; failures are set by number of step.

    :param refuses_at: refuse the batch, and continue.
    :param tears_at: lose the weights, so that only a checkpoint helps.
    :param reports: values of metrics by name, one for each step; the last one is repeated.
    :param rehearsed_gap: added by rehearsals to each logprob, times the token's position in its
        call.
    :param sways: nats by which its weights change the logprobs of a rehearsal.
    :param reports_checksums: whether published updates have checksums.
    :param memory: maximum number of tokens of a sequence; None for any.
    :param dies_over: number of tokens of a sequence above which a step kills its process.
    :param teacher: a second model directory, which is not read.
    :param dies_in: the method in which it kills its process.
    """

    refuses_at: Count | None = None
    tears_at: Count | None = None
    reports: dict[str, Annotated[tuple[float, ...], Field(min_length=1)]] = Field(
        default_factory=dict
    )
    rehearsed_gap: float = 0.0
    sways: Annotated[float, Field(ge=0)] = 0.0
    reports_checksums: bool = True
    memory: Count | None = None
    dies_over: Count | None = None
    teacher: Annotated[str | None, ModelDirectory()] = None
    dies_in: Literal["start", "load", "publish", "save"] | None = None


class ScriptedTrainer(Trainer[ScriptedTrainerSettings]):
    """The trainer ``scripted``.

    Its "weights" are a digest over all trained batches, in order, so that a test can check whether
    a resumed run trained the same batches. A step that fails leaves the digest unchanged.
    """

    def __init__(self, settings: ScriptedTrainerSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._faults = Faults(settings, context.run_dir, "trainer", TrainerError)
        self._torn = False
        self._algorithm = AlgorithmConfig()
        self._steps = 0
        self._digest = ""

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Initialise the digest with the model's path."""
        self._faults.die(self.settings.dies_in, "start")
        self._algorithm = algorithm
        self._digest = hashlib.sha256(model.path.encode()).hexdigest()
        return TrainerInfo(parameters=32, trainable_parameters=32, device="none")

    def step(self, batch: TrainBatch) -> StepReport:
        """Add `batch` to the digest.

        :raises WeightsLostError: the settings require it, now or in an earlier step.
        :raises StepRefusedError: the settings require it, or a logprob or advantage is not finite.
        :raises TrainerError: the settings require it, a sequence is too long, or a tree of the
            batch is not linear.
        """
        if self._faults.check(batch.step):
            self._hang()
        self._torn |= self._faults.due(batch.step, self.settings.tears_at, "torn")
        if self._torn:
            raise WeightsLostError(f"scripted loss of the weights in step {batch.step}")
        self._refuse(batch)
        self._check_memory(batch)
        try:
            sequences = batch.sequences
        except ValueError as error:
            raise TrainerError(str(error)) from error
        limit = self.settings.dies_over
        if limit is not None and any(len(s.token_ids) > limit for s in sequences):
            self._faults.die("step", "step")
        trained = sum(sum(s.loss_mask) for s in sequences)
        processed = sum(len(s.token_ids) for s in sequences)
        digest = hashlib.sha256(f"{self._digest} {batch.step}".encode())
        for sequence in sequences:
            digest.update(repr((batch.episodes[sequence.episode], sequence)).encode())
        advantages = [call.advantage for call in batch.calls]
        self._digest = digest.hexdigest()
        self._steps += 1
        return StepReport(
            step=batch.step,
            metrics={
                "loss": -sum(advantages) / max(1, len(advantages)),
                "entropy": 1.0,
                "grad_norm": sum(abs(a) for a in advantages),
                "clip_fraction": 0.0,
                "learning_rate": self._algorithm.learning_rate,
                **{
                    name: values[min(batch.step, len(values)) - 1]
                    for name, values in self.settings.reports.items()
                },
            },
            tokens_trained=trained,
            tokens_processed=processed,
            sequences=len(sequences),
            seconds=0.0,
            logprobs=[call.logprobs for call in batch.calls],
        )

    def rehearse(self, batch: TrainBatch) -> StepReport:
        """Report logprobs according to the settings.

        :raises StepRefusedError: a logprob or advantage is not finite.
        :raises TrainerError: a sequence is too long according to the settings.
        """
        self._refuse(batch, rehearsal=True)
        self._check_memory(batch)
        return StepReport(
            step=batch.step,
            tokens_trained=sum(tree.tokens_trained for tree in batch.trees),
            logprobs=[self._rehearsed(call.logprobs) for call in batch.calls],
        )

    def _rehearsed(self, logprobs: list[float]) -> list[float]:
        sways = swayed(self._digest, len(logprobs))
        return [
            one + self.settings.rehearsed_gap * place + self.settings.sways * sways[place]
            for place, one in enumerate(logprobs)
        ]

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Write the digest to the location where a scripted engine reads it."""
        self._faults.die(self.settings.dies_in, "publish")
        if channel not in WEIGHT_CHANNELS:
            raise TrainerError(f"the scripted trainer has no weight channel {channel!r}")
        location = _SHARED_KEY
        if channel == "in_process":
            self.context.shared[_SHARED_KEY] = self._digest
        else:
            location = str(self.context.run_dir / _WEIGHT_FILE)
            Path(location).write_text(self._digest, encoding="utf-8")
        checksums: dict[str, tuple[str, ...]] = {}
        if self.settings.reports_checksums:
            checksums = {"digest": (self._digest,)}
        return WeightUpdate(channel, policy_version, location, checksums=checksums)

    def save(self, directory: Path) -> None:
        """Write digest and number of steps as JSON."""
        self._faults.die(self.settings.dies_in, "save")
        directory.mkdir(parents=True, exist_ok=True)
        state = {"steps": self._steps, "digest": self._digest}
        (directory / _STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote.

        :raises TrainerError: there is nothing to load.
        """
        self._faults.die(self.settings.dies_in, "load")
        try:
            state = read_json(directory / _STATE_FILE)
            self._steps, self._digest = int(state["steps"]), str(state["digest"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainerError(f"cannot load {directory / _STATE_FILE}: {error}") from error
        self._torn = False

    def export(self, directory: Path) -> None:
        """Write a ``config.json`` with the state; there is no model to write."""
        directory.mkdir(parents=True, exist_ok=True)
        config = {"model_type": "scripted", "steps": self._steps, "digest": self._digest}
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")

    def close(self) -> None:
        """Remove the shared "weights"."""
        self.context.shared.pop(_SHARED_KEY, None)

    def _refuse(self, batch: TrainBatch, *, rehearsal: bool = False) -> None:
        if not rehearsal and self._faults.due(batch.step, self.settings.refuses_at, "refused"):
            raise StepRefusedError(f"scripted refusal of step {batch.step}")
        for call in batch.calls:
            if not all(map(math.isfinite, (call.advantage, *call.logprobs))):
                raise StepRefusedError(
                    f"step {batch.step}: a logprob or the advantage of call {call.call_id} is not "
                    "finite"
                )

    def _check_memory(self, batch: TrainBatch) -> None:
        longest = max((tree.tokens for tree in batch.trees), default=0)
        if self.settings.memory is not None and longest > self.settings.memory:
            raise TrainerError(
                f"{longest} tokens do not fit into the memory of the scripted trainer"
            )

    def _hang(self) -> None:
        descriptor = self._faults.open_gate(blocking=True)
        try:
            # Do not read the byte, so that the gate stays open for others.
            select.select([descriptor], [], [])
        finally:
            os.close(descriptor)
