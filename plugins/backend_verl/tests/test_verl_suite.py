"""The conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ajet_backend_verl.hooks import WEIGHT_CHANNELS
from batches import LORA, Started
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer
from ajet_core.protocol import AlgorithmConfig
from ajet_testing.suites.trainer_suite import TrainerSuite

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


class TestVerlTrainer(TrainerSuite):
    vocab_size = VOCAB
    weight_channels = WEIGHT_CHANNELS
    rehearses = True

    @pytest.fixture(
        autouse=True,
        params=[
            (
                None,
                AlgorithmConfig(
                    learning_rate=1e-2, kl_coef=0.1, minibatches=2, epochs=2, token_budget=24
                ),
                {},
            ),
            pytest.param(
                (
                    LORA,
                    AlgorithmConfig(
                        learning_rate=1e-2,
                        warmup_steps=5,
                        importance="truncated",
                        aggregation="episode_mean",
                        kl_coef=0.1,
                    ),
                    {"workers_per_node": 2},
                ),
                marks=pytest.mark.nightly,
            ),
        ],
        ids=["four optimiser steps", "two workers with adapters"],
    )
    def kind(
        self, request: pytest.FixtureRequest, models: Callable[..., str], started: Started
    ) -> None:
        self.lora, algorithm, self.settings = request.param
        # What a server makes of "auto" in mode sync.
        importance = "ratio" if algorithm.importance == "auto" else algorithm.importance
        self.algorithm = algorithm.model_copy(update={"importance": importance})
        self.path = models("qwen2")
        self.started = started
        self.made = {"ratio": 0, "truncated": 0}

    def trainer(self, run_dir: Path, importance: str) -> Trainer:
        algorithm = self.algorithm.model_copy(update={"importance": importance})
        place = self.made[importance]
        self.made[importance] += 1
        return self.started.get(place, run_dir, self.path, algorithm, self.lora, **self.settings)

    def make_trainer(self, run_dir: Path) -> Trainer:
        return self.trainer(run_dir, self.algorithm.importance)

    def make_truncating_trainer(self, run_dir: Path) -> Trainer:
        if self.algorithm.importance == "ratio":
            pytest.skip("the other parameters have them, and a trainer takes long to start")
        return self.trainer(run_dir, "truncated")
