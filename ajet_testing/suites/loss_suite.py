"""What a trainer must compute whose loss `AlgorithmConfig` describes. Subclass `LossSuite` in a test module."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.interfaces import Trainer
from ajet_core.protocol.run import AlgorithmConfig
from ajet_testing.suites.batches import linear_batch
from ajet_testing.suites.reference_loss import AGGREGATED, reference_logprobs, reference_loss

# Small enough a step that the loss is as good as linear on the way.
_STEP = {"learning_rate": 1e-4, "clip_low": 0.1, "clip_high": 0.3}
LOSSES = {
    **{name: AlgorithmConfig(aggregation=name, **_STEP) for name in AGGREGATED},
    "truncated": AlgorithmConfig(importance="truncated", importance_cap=1.1, **_STEP),
}
"""Algorithms by what is special to them."""


class LossSuite:
    """Losses and gradients of a `Trainer`, compared with those of transformers and autograd.

    .. code-block:: python

        class TestMyLoss(LossSuite):
            vocab_size = 96

            def make_trainer(self, run_dir: Path, algorithm: AlgorithmConfig) -> tuple[Trainer, Path]:
                trainer = MyTrainer(MySettings(), WorkerContext(run_dir))
                trainer.start(ModelConfig(path=PATH), algorithm)
                return trainer, Path(PATH)

    :cvar vocab_size: token ids of batches are below it.
    :cvar tolerance: largest relative difference of losses and gradient norms, and absolute one of logprobs.
    """

    vocab_size = 32
    tolerance = 1e-3

    def make_trainer(self, run_dir: Path, algorithm: AlgorithmConfig) -> tuple[Trainer, Path]:
        """A trainer that was started with the algorithm, all parameters in float32; and the directory of its model.

        One that does not honour a field skips the algorithms that have another value than the default for it.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("special", LOSSES)
    def test_the_loss_is_that_of_the_reference(self, tmp_path: Path, special: str) -> None:
        """So are the norm of its gradient and the logprobs, and the step goes down it."""
        algorithm = LOSSES[special]
        trainer, model = self.make_trainer(tmp_path / "run", algorithm)
        batch = linear_batch(
            self.vocab_size,
            reference_logprobs(model),
            rewards=(1.0, 0.0, 0.5, 0.2, 0.9, 0.3),
            groups="aabbcc",
            noise=0.3,
            temperatures=(1.0, 0.7),
            rows=2,
        )
        expected = reference_loss(model, batch, algorithm)
        report = trainer.step(batch)
        found = [report.metrics[name] for name in ("loss", "grad_norm")]
        assert found == pytest.approx([expected.loss, expected.grad_norm], rel=self.tolerance)
        if report.logprobs:
            for row, logprobs in zip(report.logprobs, expected.logprobs, strict=True):
                assert row == pytest.approx(logprobs, abs=self.tolerance)
        trainer.export(tmp_path / "after")
        after = reference_loss(tmp_path / "after", batch, algorithm, old=expected)
        assert after.loss < expected.loss
