"""The trainer ``verl`` has the losses that it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from batches import Started, aim
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer
from ajet_core.protocol import AlgorithmConfig
from ajet_testing.suites.loss_suite import LOSSES, LossSuite

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


class TestVerlLoss(LossSuite):
    vocab_size = VOCAB

    @pytest.fixture(autouse=True)
    def model(self, models: Callable[..., str], started: Started) -> None:
        self.path = models("qwen2")
        self.started = started

    def make_trainer(self, run_dir: Path, algorithm: AlgorithmConfig) -> tuple[Trainer, Path]:
        first = LOSSES["token_mean"]
        return aim(self.started.get(0, run_dir, self.path, first), algorithm), Path(self.path)
