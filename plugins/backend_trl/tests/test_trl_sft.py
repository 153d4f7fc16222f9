"""Rejection sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from ajet_backend_trl.hooks import WEIGHT_CHANNELS
from batches import LORA, batch, full_logprobs, load, make_sft, module_of, weights
from tiny_models import VOCAB

from ajet_core.interfaces import Trainer
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import TrainBatch
from ajet_testing.suites.trainer_suite import TrainerSuite


class TestTrlSftTrainer(TrainerSuite):
    vocab_size = VOCAB
    weight_channels = WEIGHT_CHANNELS
    rehearses = True

    @pytest.fixture(autouse=True)
    def kind(self, models: Callable[..., str]) -> None:
        self.path = models("qwen2")

    def make_trainer(self, run_dir: Path) -> Trainer:
        algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2, token_budget=24)
        return make_sft(self.path, run_dir, algorithm)

    def test_a_step_is_reported(self, tmp_path: Path) -> None:
        """Half of the calls are better than the others."""
        b = self.make_batch(1)
        report = self.make_trainer(tmp_path).step(b)
        better = [call for call in b.calls if call.advantage > 0]
        assert report.step == 1
        assert report.tokens_trained == sum(len(call.logprobs) for call in better)
        assert all(math.isfinite(value) for value in report.metrics.values())
        found = [len(logprobs) for logprobs in report.logprobs]
        assert found == [len(c.logprobs) if c.advantage > 0 else 0 for c in b.calls]


def best_tokens(b: TrainBatch, module: torch.nn.Module, episodes: set[int]) -> list[float]:
    """Logprobs of the tokens of some episodes."""
    found = []
    for tree in b.trees:
        (segment,) = tree.segments
        for span in segment.spans:
            call = b.calls[span.call]
            if call.episode in episodes:
                rows = full_logprobs(module, segment.token_ids, call.temperature)
                places = range(span.offset, span.offset + span.length)
                found += [float(rows[i - 1, segment.token_ids[i]]) for i in places]
    return found


@pytest.mark.parametrize("budget", [None, 60])
@pytest.mark.parametrize(("min_reward", "episodes"), [(None, {0, 2}), (0.8, {0})])
def test_the_loss_is_the_mean_over_the_tokens_of_the_best(
    min_reward, episodes, budget, models, tmp_path
):
    b = batch(rewards=(1.0, 0.0, 0.7, 0.1), temperatures=(0.7, 1.2), noise=0.3)
    trainer = make_sft(
        models(), tmp_path, AlgorithmConfig(token_budget=budget), min_reward=min_reward
    )
    report = trainer.step(b)
    wanted = best_tokens(b, load(models()), episodes)
    assert report.metrics["loss"] == pytest.approx(-math.fsum(wanted) / len(wanted), rel=1e-4)
    assert report.tokens_trained == len(wanted)


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("loss_type", ["nll", "dft"])
def test_the_best_become_more_likely(loss_type, lora, models, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2)
    trainer = make_sft(models(), tmp_path, algorithm, lora, loss_type=loss_type)
    b = batch(rewards=(1.0, 0.0, 0.7, 0.1), groups="aabb")
    before = math.fsum(best_tokens(b, load(models()), {0, 2}))
    for _ in range(6):
        trainer.step(b)
    trainer.export(tmp_path / "export")
    assert math.fsum(best_tokens(b, load(str(tmp_path / "export")), {0, 2})) > before + 1


def test_a_batch_without_better_calls_changes_nothing(models, tmp_path):
    trainer = make_sft(models(), tmp_path, AlgorithmConfig(learning_rate=1e-2), min_reward=2.0)
    before = weights(trainer)
    assert trainer.step(batch()).metrics["no_signal"] == 1.0
    assert module_of(trainer) is trainer.policy.module
    after = weights(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)
