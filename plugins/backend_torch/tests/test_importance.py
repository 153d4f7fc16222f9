"""Truncated importance weights: against plain passes over every call alone, and what they cost."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from ajet_backend_torch.losses import clipped_surrogate, weighed
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from ajet_backend_torch.update import BatchUpdate
from test_refused_steps import spoil_pass, state
from test_trainer import LORA, batch, make, module_of, same, weights
from test_trees import batches, gradients
from tiny_models import load, pairwise

from ajet_core.errors import StepRefusedError
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import LAYOUTS, TrainBatch, TrainCall

TRUNCATED = AlgorithmConfig(importance="truncated", learning_rate=1e-2)
FOUR_STEPS = TRUNCATED.model_copy(
    update={"minibatches": 2, "epochs": 2, "max_update_rms": 0.0, "max_update_kl": 0.0}
)


def plain_logprobs(module: torch.nn.Module, b: TrainBatch) -> dict[int, torch.Tensor]:
    """Logprobs of each call's tokens, from a plain forward pass over its sequence alone."""
    found = {}
    for tree in b.trees:
        (segment,) = tree.segments
        ids = torch.tensor([segment.token_ids])
        logits = module(ids, use_cache=False).logits[0, :-1].float()
        for span in segment.spans:
            rows = torch.log_softmax(logits / b.calls[span.call].temperature, -1)
            places = torch.arange(span.offset, span.offset + span.length)
            found[span.call] = rows[places - 1, ids[0, places]]
    return found


def plain_losses(
    logprobs: dict[int, torch.Tensor],
    old: dict[int, torch.Tensor],
    calls: list[TrainCall],
    a: AlgorithmConfig,
) -> torch.Tensor:
    """[tokens] what is minimised of each, call after call."""
    losses = []
    for number, found in logprobs.items():
        call = calls[number]
        importance = (old[number] - torch.tensor(call.logprobs)).exp().clamp(max=a.importance_cap)
        ratio = (found - old[number]).exp()
        clipped = ratio.clamp(1 - a.clip_low, 1 + a.clip_high)
        least = torch.min(ratio * call.advantage, clipped * call.advantage)
        losses.append(-importance * least)
    return torch.cat(losses)


def around(calls: list[TrainCall], old: dict[int, torch.Tensor]) -> list[TrainCall]:
    """Calls that were sampled by something near the old weights."""
    dice = random.Random(0)
    return [
        replace(call, logprobs=[lp + dice.gauss(0, 0.7) for lp in old[number].tolist()])
        for number, call in enumerate(calls)
    ]


def detached(found: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    return {number: logprobs.detach() for number, logprobs in found.items()}


@torch.no_grad()
def move(trainer: TorchTrainer) -> None:
    """Change the weights, as an optimiser step would."""
    torch.manual_seed(0)
    for parameter in module_of(trainer).parameters():
        if parameter.requires_grad:
            parameter.add_(0.03 * torch.randn_like(parameter))


@pairwise(budget=[12, 4096], lora=[None, LORA], layout=list(LAYOUTS))
def test_the_gradient_is_that_of_plain_passes_over_each_call(
    layout, lora, budget, model_dir, context
):
    trainer = make(model_dir, context, TRUNCATED, lora)
    trainer.policy.token_budget = budget
    if lora is not None:
        move(trainer)
    found = batches(random.Random(11), episodes=3)
    old = detached(plain_logprobs(module_of(trainer), found["separate"]))
    calls = around(found["separate"].calls, old)
    update = BatchUpdate(trainer.policy, TRUNCATED, replace(found[layout], calls=calls))
    (minibatch,) = update.minibatches(random.Random(0))
    update.score([minibatch])
    move(trainer)
    with trainer.policy.training(0):
        loss = float(update.accumulate(minibatch, gap_version=None, report=False).loss)
        gradient = gradients(trainer)
    policy = plain_logprobs(module_of(trainer), found["separate"])
    expected = plain_losses(policy, old, calls, TRUNCATED).mean()
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-6)
    plain = gradients(trainer)
    assert (gradient - plain).norm() <= 2e-5 * plain.norm()
    update.totals.norms.append(0.0)
    metrics = update.totals.metrics()
    # All that makes a difference is there.
    assert 0.1 < metrics["importance_capped"] < 0.9
    assert 0.1 < metrics["clip_fraction"] < 0.9


@pytest.mark.parametrize("dropout", [False, True])
def test_several_optimiser_steps_are_those_of_a_plain_reference(dropout, model_dir, context):
    """Without adapters there is no dropout, so scoring all first changes only the cost."""
    plain = load(model_dir)
    trainer = make(model_dir, context, FOUR_STEPS)
    trainer.policy.has_dropout = dropout
    found = batch(plain, temperature=0.8)
    old = detached(plain_logprobs(plain, found))
    found = replace(found, calls=around(found.calls, old))
    report = trainer.step(found)
    update = BatchUpdate(trainer.policy, FOUR_STEPS, found)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=FOUR_STEPS.learning_rate, weight_decay=0.0)
    losses = []
    for epoch in range(2):
        for minibatch in update.minibatches(random.Random(f"{context.seed}-0-{epoch}")):
            everything = plain_logprobs(plain, found)
            chosen = {number: everything[number] for number in minibatch.calls}
            loss = plain_losses(chosen, old, found.calls, FOUR_STEPS).mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), FOUR_STEPS.max_grad_norm)
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
    assert report.metrics["loss"] == pytest.approx(sum(losses) / 4, rel=1e-3)
    expected = plain.state_dict()
    for name, tensor in weights(trainer).items():
        assert torch.allclose(tensor, expected[name], atol=1e-3), name
    importance = torch.cat(
        [(old[i] - torch.tensor(call.logprobs)).exp() for i, call in enumerate(found.calls)]
    )
    metrics = report.metrics
    assert metrics["importance_mean"] == pytest.approx(float(importance.mean()), rel=1e-4)
    assert metrics["importance_max"] == pytest.approx(float(importance.max()), rel=1e-4)
    assert metrics["importance_capped"] == pytest.approx(float((importance > 2).double().mean()))
    for number, logprobs in enumerate(report.logprobs):
        assert logprobs == pytest.approx(old[number].tolist(), abs=1e-4)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_what_the_old_weights_sampled_is_trained_as_without_importance(
    minibatches, model_dir, context
):
    found = batch(load(model_dir))
    changes = {"minibatches": minibatches, "epochs": minibatches, "learning_rate": 1e-3}
    trainers = [
        make(model_dir, context, algorithm.model_copy(update=changes))
        for algorithm in (AlgorithmConfig(), TRUNCATED)
    ]
    ratio, truncated = [trainer.step(found).metrics for trainer in trainers]
    for name, value in ratio.items():
        assert truncated[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert truncated["importance_mean"] == pytest.approx(1, abs=1e-4)
    assert truncated.keys() - ratio.keys() == {
        "importance_mean",
        "importance_max",
        "importance_capped",
    }


def test_the_weight_by_hand():
    old = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    behaviour = old.detach() - torch.tensor([0.5, 1.5, 3.0]).log()
    advantage = torch.tensor([2.0, 2.0, -2.0])
    logprobs = old.detach().clone().requires_grad_()
    surrogate = clipped_surrogate(logprobs, old.detach(), advantage, 0.2, 0.2)
    found = weighed(surrogate, old, behaviour, cap=1.8)
    assert found.loss.tolist() == pytest.approx([-1.0, -3.0, 3.6])
    assert found.importance.ratio.tolist() == pytest.approx([0.5, 1.5, 3.0])
    assert found.importance.capped.tolist() == [False, False, True]
    found.loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, -3.0, 3.6])
    assert old.grad is None


@pytest.mark.parametrize("algorithm", [TRUNCATED, FOUR_STEPS], ids=["one", "four"])
@pytest.mark.parametrize("cap", [2.0, 1e30])
def test_extreme_differences_stay_finite(cap, algorithm, model_dir, context):
    """With a cap the step is even within the limits that refuse others."""
    found = batch(load(model_dir))
    far = [-500.0, -1e30, 0.0, -40.0]
    calls = [replace(call, logprobs=far[: len(call.logprobs)]) for call in found.calls]
    limits: dict[str, Any] = {} if cap == 2.0 else {"loss_limit": None, "grad_norm_limit": None}
    algorithm = algorithm.model_copy(update={"importance_cap": cap})
    metrics = (
        make(model_dir, context, algorithm, **limits).step(replace(found, calls=calls)).metrics
    )
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["importance_max"] == pytest.approx(math.exp(20))
    assert (metrics["importance_capped"] > 0) == (cap == 2.0)


def test_without_a_cap_that_bounds_it_such_a_step_is_refused(model_dir, context):
    found = batch(load(model_dir))
    calls = [replace(call, logprobs=[-40.0] * len(call.logprobs)) for call in found.calls]
    algorithm = TRUNCATED.model_copy(update={"importance_cap": 1e30})
    with pytest.raises(StepRefusedError, match="logprobs that another model"):
        make(model_dir, context, algorithm).step(replace(found, calls=calls))


def test_an_advantage_of_zero_weighs_nothing_but_is_held_to_the_reference(model_dir, context):
    """Importance is of the surrogate alone: the divergence has no behaviour to be corrected for."""
    found = batch(load(model_dir), rewards=(1.0, 1.0))
    results = []
    for shift in (0.0, 5.0):
        calls = [replace(c, logprobs=[lp - shift for lp in c.logprobs]) for c in found.calls]
        algorithm = TRUNCATED.model_copy(update={"kl_coef": 0.1, "entropy_coef": 0.01})
        trainer = make(model_dir, context, algorithm)
        trainer.step(replace(found, calls=calls))
        results.append(weights(trainer))
    assert same(*results)
    assert not same(results[0], weights(make(model_dir, context)))


@pytest.mark.parametrize(
    ("changes", "lora", "scored"),
    [
        ({}, None, 0),
        ({"epochs": 2}, None, 0),
        ({"minibatches": 2}, None, 1),
        ({}, LoraConfig(rank=4, dropout=0.2), 0),
        ({"minibatches": 2}, LoraConfig(rank=4, dropout=0.2), 2),
    ],
    ids=["one step", "epochs", "minibatches", "dropout", "dropout and minibatches"],
)
def test_only_what_no_pass_before_the_first_update_computes_is_scored(
    changes, lora, scored, model_dir, context
):
    algorithm = TRUNCATED.model_copy(update=changes)
    trainer = make(model_dir, context, algorithm, lora)
    found = batch(load(model_dir))
    update = BatchUpdate(trainer.policy, algorithm, found)
    dealt = update.minibatches(random.Random(f"{context.seed}-0-0"))
    sizes = [update.schedule(minibatch).tokens for minibatch in dealt]
    expected = algorithm.epochs * sum(sizes) + sum(sizes[len(sizes) - scored :])
    assert trainer.step(found).tokens_processed == expected


def test_old_logprobs_are_without_dropout(model_dir, context):
    lora = LoraConfig(rank=4, dropout=0.5)
    trainer = make(model_dir, context, FOUR_STEPS, lora)
    move(trainer)
    found = batch(load(model_dir))
    old = plain_logprobs(module_of(trainer), found)
    for number, logprobs in enumerate(trainer.step(found).logprobs):
        assert logprobs == pytest.approx(old[number].tolist(), abs=1e-4)


def test_a_logprob_that_is_not_finite_is_found_before_the_first_update(model_dir, context):
    trainer = make(model_dir, context, FOUR_STEPS)
    before = state(trainer)
    mend = spoil_pass(trainer, 1)
    with pytest.raises(StepRefusedError, match="before its first update: a logprob"):
        trainer.step(batch())
    mend()
    assert same(before, state(trainer))
    trainer.step(batch())


@pytest.mark.parametrize("spoiled", [1, 2, 4])
def test_a_refused_step_leaves_no_trace(spoiled, model_dir, context):
    trainer, twin = (make(model_dir, context, FOUR_STEPS) for _ in range(2))
    for each in (trainer, twin):
        each.step(batch())
    # The first pass is the one that scores.
    mend = spoil_pass(trainer, 1 + spoiled)
    with pytest.raises(StepRefusedError, match=f"minibatch {spoiled} of 4"):
        trainer.step(batch(step=2, seed=5))
    mend()
    assert same(state(trainer), state(twin))
    reports = [each.step(batch(step=2, seed=6)) for each in (trainer, twin)]
    assert reports[0].metrics == reports[1].metrics
    assert same(state(trainer), state(twin))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda(model_dir, context):
    trainer = TorchTrainer(TorchTrainerSettings(device="cuda"), context)
    trainer.start(ModelConfig(path=model_dir), FOUR_STEPS)
    expected = make(model_dir, context, FOUR_STEPS).step(batch()).metrics
    found = trainer.step(batch()).metrics
    for name in ("loss", "importance_mean", "importance_max", "importance_capped"):
        assert found[name] == pytest.approx(expected[name], rel=1e-2), name
