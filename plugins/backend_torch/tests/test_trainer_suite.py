"""The conformance suite, on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ajet_backend_torch.hooks import OFFERED_CHANNELS
from test_trainer import make
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer, WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_testing.suites.trainer_suite import TrainerSuite


class TestTorchTrainer(TrainerSuite):
    vocab_size = VOCAB
    weight_channels = OFFERED_CHANNELS
    rehearses = True

    @pytest.fixture(
        autouse=True,
        params=[
            pytest.param((None, AlgorithmConfig(learning_rate=1e-2)), marks=pytest.mark.nightly),
            (None, AlgorithmConfig(learning_rate=1e-2, kl_coef=0.1, minibatches=2, epochs=2)),
            (LoraConfig(rank=4, dropout=0.1), AlgorithmConfig(warmup_steps=5, minibatches=2)),
            pytest.param(
                (
                    LoraConfig(rank=4, dropout=0.1),
                    AlgorithmConfig(importance="truncated", minibatches=2, epochs=2),
                ),
                marks=pytest.mark.nightly,
            ),
        ],
        ids=["one optimiser step", "four", "dropout", "truncated"],
    )
    def kind(self, request: pytest.FixtureRequest, models: Callable[[str], str]) -> None:
        self.lora, self.algorithm = request.param
        self.path = models("qwen2")

    def make_trainer(self, run_dir: Path) -> Trainer:
        return make(self.path, WorkerContext(run_dir), self.algorithm, self.lora)

    def make_truncating_trainer(self, run_dir: Path) -> Trainer:
        algorithm = self.algorithm.model_copy(update={"importance": "truncated"})
        return make(self.path, WorkerContext(run_dir), algorithm, self.lora)
