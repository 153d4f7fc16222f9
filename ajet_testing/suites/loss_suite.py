"""Conformance tests for losses described by `AlgorithmConfig`. Subclass `LossSuite`."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.interfaces import Trainer
from ajet_core.protocol.run import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.losses.batches import linear_batch, restricted
from ajet_testing.losses.reference_loss import AGGREGATED, reference_logprobs, reference_loss

__all__ = ["LOSSES", "LossSuite"]

# The step is so small that the loss is almost linear along it.
_STEP = {"learning_rate": 1e-4, "clip_low": 0.1, "clip_high": 0.3}
LOSSES = {
    **{name: AlgorithmConfig(aggregation=name, **_STEP) for name in AGGREGATED},
    "truncated": AlgorithmConfig(importance="truncated", importance_cap=1.1, **_STEP),
}
"""Algorithms by their distinguishing setting."""


class LossSuite(ConformanceSuite):
    """Losses and gradients of a `Trainer`, compared with those of transformers and autograd.

    .. code-block:: python

        class TestMyLoss(LossSuite):
            vocab_size = 96

            def make_trainer(
                self, run_dir: Path, algorithm: AlgorithmConfig
            ) -> tuple[Trainer, Path]:
                trainer = MyTrainer(MySettings(), WorkerContext(run_dir))
                trainer.start(ModelConfig(path=PATH), algorithm)
                return trainer, Path(PATH)

    :cvar vocab_size: token ids of batches are below it.
    :cvar tolerance: maximum relative difference of losses and gradient norms, and maximum absolute
        difference of logprobs.
    :cvar sampled_from: whether the trainer has this capability.
    """

    vocab_size = 32
    tolerance = 1e-3
    sampled_from = False

    def make_trainer(self, run_dir: Path, algorithm: AlgorithmConfig) -> tuple[Trainer, Path]:
        """Create a trainer started with the algorithm, and return it with its model's directory.

        All parameters must be float32. If the trainer does not support a field, skip algorithms
        with another value than its default.
        """
        raise NotImplementedError

    def test_the_learning_rate_follows_its_schedule(self, tmp_path: Path) -> None:
        """The metric ``learning_rate`` has the rate of the step, by number of training steps."""
        algorithm = AlgorithmConfig(
            learning_rate=1e-4, warmup_steps=2, schedule="linear", schedule_steps=4
        )
        trainer, model = self.make_trainer(tmp_path / "run", algorithm)
        batch = linear_batch(
            self.vocab_size, reference_logprobs(model), rewards=(1.0, 0.0), groups="aa"
        )
        rates = [trainer.step(batch).metrics["learning_rate"] for _ in range(5)]
        assert rates == pytest.approx([5e-5, 1e-4, 2e-4 / 3, 1e-4 / 3, 1e-4 / 3])

    @pytest.mark.parametrize("special", LOSSES)
    def test_the_loss_is_that_of_the_reference(self, tmp_path: Path, special: str) -> None:
        """Loss, gradient norm and logprobs match, and the step decreases the loss."""
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
        self._compare(tmp_path, trainer, model, batch, algorithm)

    @pytest.mark.parametrize("special", ["token_mean", "truncated"])
    def test_tokens_are_trained_as_they_were_sampled(self, tmp_path: Path, special: str) -> None:
        """`TrainCall.sampled_from` is what the loss is computed of."""
        if not self.sampled_from:
            pytest.skip("the trainer trains tokens as if they were sampled from the policy")
        algorithm = LOSSES[special]
        trainer, model = self.make_trainer(tmp_path / "run", algorithm)
        batch = restricted(
            linear_batch(
                self.vocab_size,
                rewards=(1.0, 0.0, 0.5, 0.2),
                groups="aabb",
                temperatures=(1.0, 0.7),
                rows=2,
            ),
            self.vocab_size,
        )
        # Close to what the policy gives them, so that not all of them are clipped.
        scored = reference_loss(model, batch, algorithm).logprobs
        noise = random.Random(1)  # noqa: S311
        for call, logprobs in zip(batch.calls, scored, strict=True):
            call.behaviour[:] = [value + noise.gauss(0, 0.1) for value in logprobs]
        self._compare(tmp_path, trainer, model, batch, algorithm)

    def test_tokens_of_no_policy_have_the_gradient_of_their_likelihood(
        self, tmp_path: Path
    ) -> None:
        """So `ajet sft` trains: with a low behaviour logprob, the cap 1, and equal advantages."""
        algorithm = AlgorithmConfig(importance="truncated", importance_cap=1.0, **_STEP)
        trainer, model = self.make_trainer(tmp_path / "run", algorithm)
        batch = linear_batch(self.vocab_size, rows=2)
        calls = [
            replace(call, advantage=1.0, logprobs=[-60.0] * len(call.logprobs))
            for call in batch.calls
        ]
        self._compare(tmp_path, trainer, model, replace(batch, calls=calls), algorithm)

    def _compare(
        self,
        tmp_path: Path,
        trainer: Trainer,
        model: Path,
        batch: TrainBatch,
        algorithm: AlgorithmConfig,
    ) -> None:
        expected = reference_loss(model, batch, algorithm)
        report = trainer.step(batch)
        figures = [report.metrics[name] for name in ("loss", "grad_norm")]
        assert figures == pytest.approx([expected.loss, expected.grad_norm], rel=self.tolerance)
        if report.logprobs:
            for row, logprobs in zip(report.logprobs, expected.logprobs, strict=True):
                assert row == pytest.approx(logprobs, abs=self.tolerance)
        trainer.export(tmp_path / "after")
        after = reference_loss(tmp_path / "after", batch, algorithm, old=expected)
        assert after.loss < expected.loss
