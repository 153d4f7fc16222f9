"""The scripted trainer as a witness, with delays so that kills hit each of its methods."""

from __future__ import annotations

import time
from pathlib import Path

from recovery_witness import Witness

from ajet_core.interfaces import StepReport, TrainerInfo, WeightUpdate
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import TrainBatch
from ajet_testing.scripted_trainer import ScriptedTrainer

_SECONDS = 0.3


class ScriptedWitness(Witness, ScriptedTrainer):
    """The trainer ``witness_scripted``."""

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Start after a delay."""
        time.sleep(_SECONDS)
        return super().start(model, algorithm)

    def step(self, batch: TrainBatch) -> StepReport:
        """Train after a delay."""
        time.sleep(_SECONDS)
        return super().step(batch)

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish after a delay."""
        time.sleep(_SECONDS / 2)
        return super().publish(channel, policy_version)

    def save(self, directory: Path) -> None:
        """Save, followed by a delay."""
        super().save(directory)
        time.sleep(_SECONDS / 2)

    def load(self, directory: Path) -> None:
        """Load after a delay."""
        time.sleep(_SECONDS)
        super().load(directory)
