"""The trainer ``trl`` has the losses that it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from batches import make
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer
from ajet_core.protocol import AlgorithmConfig
from ajet_testing.suites.loss_suite import LossSuite


class TestTrlLoss(LossSuite):
    vocab_size = VOCAB

    @pytest.fixture(autouse=True)
    def model(self, models: Callable[..., str]) -> None:
        self.path = models("qwen2")

    def make_trainer(self, run_dir: Path, algorithm: AlgorithmConfig) -> tuple[Trainer, Path]:
        return make(self.path, run_dir, algorithm), Path(self.path)
