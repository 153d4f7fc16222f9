"""Updates that move the policy no further than `AlgorithmConfig.max_update_kl`."""

from __future__ import annotations

import math

import pytest
import torch
from ajet_backend_trl.grpo import SteppedGRPOTrainer
from ajet_backend_trl.policy import _max_update_kl
from ajet_backend_trl.settings import TrlSftSettings, TrlTrainerSettings
from batches import batch, load, make, make_torch, weights

from ajet_core.errors import ConfigError
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_torch.update_limit import MAX_UPDATE_KL

FAR = AlgorithmConfig(learning_rate=0.05, max_update_rms=0, weight_decay=0.1, minibatches=2)
"""One update of it changes everything that a tiny model says."""


@pytest.mark.parametrize("importance", ["ratio", "truncated"])
@pytest.mark.parametrize("budget", [None, 60])
def test_updates_are_shortened_as_by_the_trainer_torch(importance, budget, models, tmp_path):
    algorithm = FAR.model_copy(update={"importance": importance})
    b = batch(load(models()), noise=0.1)
    cut = algorithm.model_copy(update={"token_budget": budget})
    trl = make(models(), tmp_path, cut)
    first = weights(trl)
    report = trl.step(b)
    assert report.metrics["updates_shortened"] == 2
    assert 0 < report.metrics["update_kl"] <= MAX_UPDATE_KL
    reference = make_torch(models(), tmp_path, algorithm)
    found = reference.step(b)
    assert found.metrics["update_kl"] == pytest.approx(report.metrics["update_kl"], rel=0.02)
    for name, tensor in weights(reference).items():
        moved = float((tensor - first[name]).abs().max())
        assert torch.allclose(weights(trl)[name], tensor, atol=0.02 * moved + 1e-6), name


def test_without_a_limit_updates_are_applied_whole(models, tmp_path):
    trainer = make(models(), tmp_path, FAR.model_copy(update={"max_update_kl": 0.0}))
    assert "update_kl" not in trainer.step(batch(load(models()))).metrics


def test_an_update_within_the_limit_is_the_same_as_without(models, tmp_path):
    b = batch(load(models()))
    found = []
    for limit in (0.0, 1.0):
        algorithm = AlgorithmConfig(learning_rate=1e-3, minibatches=2, max_update_kl=limit)
        trainer = make(models(), tmp_path / str(limit), algorithm)
        found.append((trainer.step(b), weights(trainer)))
    (plain, without), (limited, within) = found
    assert limited.metrics["updates_shortened"] == 0
    assert limited.tokens_processed == plain.tokens_processed
    assert all(torch.equal(without[name], tensor) for name, tensor in within.items())


def test_dropout_is_no_divergence(models, tmp_path):
    lora = LoraConfig(rank=4, dropout=0.5)
    trainer = make(models(), tmp_path, AlgorithmConfig(learning_rate=1e-9), lora)
    assert trainer.step(batch(load(models()))).metrics["update_kl"] < 1e-6


def test_a_divergence_that_is_no_number_takes_the_update_back(models, tmp_path, monkeypatch):
    trainer = make(models(), tmp_path, FAR)
    before = weights(trainer)
    monkeypatch.setattr(SteppedGRPOTrainer, "_divergence", lambda *_: math.nan)
    assert trainer.step(batch(load(models()))).metrics["updates_shortened"] == 2
    for name, tensor in weights(trainer).items():
        assert torch.allclose(tensor, before[name], atol=1e-6), name


def test_a_rehearsal_measures_no_update(models, tmp_path):
    trainer = make(models(), tmp_path, FAR)
    assert "update_kl" not in trainer.rehearse(batch(load(models()))).metrics


def test_deepspeed_takes_no_limit():
    settings = TrlTrainerSettings(distribution="deepspeed", processes=2)
    assert _max_update_kl(AlgorithmConfig(), settings) == 0
    assert _max_update_kl(AlgorithmConfig(), TrlSftSettings()) == 0
    with pytest.raises(ConfigError, match="cannot be shortened"):
        _max_update_kl(AlgorithmConfig(max_update_kl=0.1), settings)
