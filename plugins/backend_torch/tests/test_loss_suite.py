"""The trainer ``torch`` has the losses that it should, and one that has another is found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_trainer import make
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer, WorkerContext
from ajet_core.protocol import AlgorithmConfig
from ajet_testing.suites.loss_suite import LossSuite


class TestTorchLoss(LossSuite):
    vocab_size = VOCAB
    sampled_from = True
    mistake: dict[str, Any] = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def model(self, models: Callable[[str], str]) -> None:
        self.path = models("qwen2")

    def make_trainer(self, run_dir: Path, algorithm: AlgorithmConfig) -> tuple[Trainer, Path]:
        mistaken = algorithm.model_copy(update=self.mistake)
        return make(self.path, WorkerContext(run_dir), mistaken), Path(self.path)

    @pytest.mark.parametrize(
        ("special", "mistake"),
        [
            ("token_mean", {"aggregation": "call_mean"}),
            ("call_mean", {"aggregation": "episode_mean"}),
            ("episode_mean", {"aggregation": "episode_sum"}),
            ("token_mean", {"clip_low": 0.4}),
            ("token_mean", {"clip_high": 0.9}),
            ("token_mean", {"entropy_coef": 0.01}),
            ("token_mean", {"importance": "truncated"}),
            ("truncated", {"importance_cap": 2.0}),
            ("truncated", {"importance": "ratio"}),
        ],
    )
    def test_a_mistake_is_found_out(
        self, special: str, mistake: dict[str, Any], tmp_path: Path
    ) -> None:
        self.mistake = mistake
        with pytest.raises(AssertionError):
            self.test_the_loss_is_that_of_the_reference(tmp_path, special)
