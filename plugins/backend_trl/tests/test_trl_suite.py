"""The conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ajet_backend_trl.hooks import WEIGHT_CHANNELS
from batches import make
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_testing.suites.trainer_suite import TrainerSuite


class TestTrlTrainer(TrainerSuite):
    vocab_size = VOCAB
    weight_channels = WEIGHT_CHANNELS
    rehearses = True

    @pytest.fixture(
        autouse=True,
        params=[
            (None, AlgorithmConfig(learning_rate=1e-2)),
            (
                None,
                AlgorithmConfig(
                    learning_rate=1e-2, kl_coef=0.1, minibatches=2, epochs=2, token_budget=24
                ),
            ),
            (LoraConfig(rank=4, dropout=0.1), AlgorithmConfig(warmup_steps=5, minibatches=2)),
            (
                LoraConfig(rank=4, dropout=0.1),
                AlgorithmConfig(
                    importance="truncated",
                    minibatches=2,
                    epochs=2,
                    aggregation="episode_mean",
                    kl_coef=0.1,
                ),
            ),
        ],
        ids=["one optimiser step", "four", "dropout", "truncated"],
    )
    def kind(self, request: pytest.FixtureRequest, models: Callable[..., str]) -> None:
        self.lora, self.algorithm = request.param
        self.path = models("qwen2")

    def make_trainer(self, run_dir: Path) -> Trainer:
        return make(self.path, run_dir, self.algorithm, self.lora)

    def make_truncating_trainer(self, run_dir: Path) -> Trainer:
        algorithm = self.algorithm.model_copy(update={"importance": "truncated"})
        return make(self.path, run_dir, algorithm, self.lora)
