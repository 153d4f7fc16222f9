"""Updates that move the policy no further than `AlgorithmConfig.max_update_kl`."""

from __future__ import annotations

import pytest
import torch
from ajet_backend_torch.trainer import TorchTrainer
from ajet_backend_torch.update import BatchUpdate
from test_trainer import batch, make, module_of, weights
from test_update_clipping import gradients, optimiser, parameters
from tiny_models import load

from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_core.timeline import TrainBatch
from ajet_torch.update_limit import MAX_UPDATE_KL

FAR = AlgorithmConfig(learning_rate=0.05, max_update_rms=0)
"""One update of it changes everything that a tiny model says."""


@pytest.mark.parametrize("clipped", [0.0, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_shortened_update_is_a_part_of_the_whole_one(clipped: float, decay: float) -> None:
    trained = parameters()
    found = optimiser(trained, clipped, decay)
    for given in gradients(6):
        before = {name: tensor.detach().clone() for name, tensor in trained.items()}
        for name, gradient in given.items():
            trained[name].grad = gradient.clone()
        found.step(0.01)
        after = {name: tensor.detach().clone() for name, tensor in trained.items()}
        found.shorten(0.25)
        found.shorten(0.5)
        for name, tensor in trained.items():
            part = torch.lerp(before[name], after[name], 0.75 * 0.5)
            assert torch.allclose(tensor, part, atol=1e-6), name
        found.shorten(1.0)
        for name, tensor in trained.items():
            assert torch.allclose(tensor, before[name], atol=1e-6), name
        found.zero_grad()


def moved(trainer: TorchTrainer, b: TrainBatch, before: torch.nn.Module) -> float:
    """The divergence from `before`, by plain passes over every call alone."""
    changes = []
    with torch.no_grad():
        for tree in b.trees:
            (segment,) = tree.segments
            ids = torch.tensor([segment.token_ids])
            rows = [
                torch.log_softmax(module(ids, use_cache=False).logits[0, :-1].float(), -1)
                for module in (module_of(trainer), before)
            ]
            for span in segment.spans:
                if not b.calls[span.call].advantage:
                    continue
                places = torch.arange(span.offset, span.offset + span.length)
                now, then = (found[places - 1, ids[0, places]] for found in rows)
                changes.append(now - then)
    return float(torch.cat(changes).square().mean()) / 2


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("importance", ["ratio", "truncated"])
def test_an_update_that_is_too_large_is_shortened(minibatches, importance, model_dir, context):
    algorithm = FAR.model_copy(update={"minibatches": minibatches, "importance": importance})
    trainer = make(model_dir, context, algorithm)
    b = batch(load(model_dir))
    report = trainer.step(b)
    assert report.metrics["updates"] == report.metrics["updates_shortened"] == minibatches
    assert 0 < report.metrics["update_kl"] <= MAX_UPDATE_KL
    if minibatches == 1:
        assert moved(trainer, b, load(model_dir)) == pytest.approx(
            report.metrics["update_kl"], rel=1e-3
        )


def test_without_a_limit_it_is_applied_as_it_is(model_dir, context):
    trainer = make(model_dir, context, FAR.model_copy(update={"max_update_kl": 0.0}))
    b = batch(load(model_dir))
    report = trainer.step(b)
    assert not {"update_kl", "updates", "updates_shortened"} & report.metrics.keys()
    assert moved(trainer, b, load(model_dir)) > 10 * MAX_UPDATE_KL


def test_an_update_within_the_limit_is_the_same_as_without(model_dir, context):
    b = batch(load(model_dir))
    found = []
    for limit in (0.0, 1.0):
        algorithm = AlgorithmConfig(learning_rate=1e-3, minibatches=2, max_update_kl=limit)
        trainer = make(model_dir, context, algorithm)
        found.append((trainer.step(b), weights(trainer)))
    (plain, without), (limited, within) = found
    assert limited.metrics["updates"] == 2
    assert limited.metrics["updates_shortened"] == 0
    assert limited.tokens_processed == plain.tokens_processed
    assert all(torch.equal(without[name], tensor) for name, tensor in within.items())


def test_dropout_is_no_divergence(model_dir, context):
    lora = LoraConfig(rank=4, dropout=0.5)
    algorithm = AlgorithmConfig(learning_rate=1e-9)
    trainer = make(model_dir, context, algorithm, lora=lora)
    assert trainer.step(batch(load(model_dir))).metrics["update_kl"] < 1e-6


def test_a_divergence_that_is_no_number_takes_the_update_back(model_dir, context, monkeypatch):
    trainer = make(model_dir, context, FAR)
    before = weights(trainer)
    monkeypatch.setattr(BatchUpdate, "divergence", lambda *_: float("nan"))
    report = trainer.step(batch(load(model_dir)))
    assert report.metrics["updates_shortened"] == 1
    for name, tensor in weights(trainer).items():
        assert torch.allclose(tensor, before[name], atol=1e-6), name
