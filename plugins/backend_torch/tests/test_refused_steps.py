"""Batches that would damage the weights: refused, and as if they had never been there."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ajet_backend_torch import attempts
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from test_engine import ask, assert_exact, prompts
from test_trainer import LORA, batch, make, module_of, same, weights
from tiny_models import load

from ajet_core.errors import StepRefusedError, TrainerError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import TrainBatch, TrainCall

RATE = AlgorithmConfig(learning_rate=1e-2)
# What an update moved is measured by passes too: without them, passes are those of the minibatches.
MANY_STEPS = AlgorithmConfig(
    learning_rate=1e-2, minibatches=2, epochs=2, warmup_steps=9, max_update_kl=0
)


def with_call(found: TrainBatch, number: int, **changes: Any) -> TrainBatch:
    calls = list(found.calls)
    calls[number] = replace(calls[number], **changes)
    return replace(found, calls=calls)


def state(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    """Model, masters and optimiser, as copies."""
    optimiser = trainer.policy.optimiser
    found = {**optimiser.weight_tensors(), **optimiser.state_tensors()}
    return {**weights(trainer), **{f"trained {k}": v.clone() for k, v in found.items()}}


def addresses(trainer: TorchTrainer) -> list[int]:
    optimiser = trainer.policy.optimiser
    tensors = [*optimiser.parameters.values(), *optimiser.state_tensors().values()]
    return [tensor.data_ptr() for tensor in tensors]


def spoil_pass(trainer: TorchTrainer, number: int) -> Callable[[], None]:
    """Let the model answer NaN in pass `number`, counted from 1; returns what ends that."""
    passes = 0

    def spoil(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return output * math.nan if passes == number else output

    head = module_of(trainer).get_output_embeddings()
    return head.register_forward_hook(spoil).remove


def spoil_update(trainer: TorchTrainer, value: float = math.nan) -> Callable[[], None]:
    """Let every optimiser step end with a weight of that value; returns what ends that."""

    @torch.no_grad()
    def spoil(optimiser: torch.optim.Optimizer, *_: object) -> None:
        optimiser.param_groups[0]["params"][-1][0, 0] = value

    return trainer.policy.optimiser._adamw.register_step_post_hook(spoil).remove


KINDS = [(None, "auto"), (None, "bfloat16"), (LoraConfig(rank=4, dropout=0.2), "auto")]


@pytest.mark.parametrize(
    ("spoiled", "lora", "dtype"),
    [
        # Each pass and each kind once; the other combinations are nightly.
        pytest.param(spoiled, *kind, marks=[] if place == number else [pytest.mark.nightly])
        for place, spoiled in enumerate([1, 2, 4])
        for number, kind in enumerate(KINDS)
    ],
)
def test_training_goes_on_bit_by_bit_as_if_the_batch_had_never_been(
    spoiled, lora, dtype, model_dir, context
):
    trainer, twin = (make(model_dir, context, MANY_STEPS, lora, dtype) for _ in range(2))
    for each in (trainer, twin):
        each.step(batch())
    before, places = state(trainer), addresses(trainer)
    random_before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    mend = spoil_pass(trainer, spoiled)
    with pytest.raises(
        StepRefusedError, match=rf"step 2.*minibatch {spoiled} of 4.*nan.*not finite"
    ) as refused:
        trainer.step(batch(step=2, seed=5))
    mend()
    assert ("learning rate" in refused.value.message) == (spoiled > 1)
    assert same(before, state(trainer))
    # An engine in this process holds the very same tensors.
    assert addresses(trainer) == places
    random_after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    assert random_after[:2] == random_before[:2]
    assert torch.equal(random_after[2], random_before[2])
    reports = [each.step(batch(step=2, seed=6)) for each in (trainer, twin)]
    assert reports[0].metrics == reports[1].metrics
    assert same(state(trainer), state(twin))


FIRST_CALL: dict[str, tuple[dict[str, Any], str]] = {
    "logprob": ({"logprobs": [-1.0, math.inf, -1.0, -1.0]}, "logprob 1 is inf"),
    "advantage": ({"advantage": math.nan}, "advantage is nan"),
    "too large for float32": ({"advantage": 1e39}, r"advantage is 1e\+39"),
    "huge advantage": ({"advantage": 1e30}, "gradient norm inf are not finite"),
    "scale of rewards": ({"advantage": 1e12}, "grad_norm_limit"),
    "far away": ({"advantage": -1.0, "logprobs": [-17.0] * 4}, "loss_limit"),
}


@pytest.mark.parametrize("case", FIRST_CALL)
def test_the_refusal_says_what_was_measured(case, model_dir, context):
    changes, message = FIRST_CALL[case]
    trainer = make(model_dir, context, RATE)
    before = state(trainer)
    with pytest.raises(StepRefusedError, match=message):
        trainer.step(with_call(batch(module_of(trainer)), 0, **changes))
    assert same(before, state(trainer))
    trainer.step(batch())


@pytest.mark.parametrize("aggregation", ["token_mean", "episode_sum"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_the_limit_of_the_loss_knows_no_scale(scale, aggregation, model_dir, context):
    """What is sound stays sound, whatever rewards and aggregation are; and so does what is not."""
    algorithm = AlgorithmConfig(aggregation=aggregation)

    def scaled(call: TrainCall, **changes: Any) -> TrainCall:
        return replace(call, advantage=call.advantage * scale, **changes)

    trainer = make(model_dir, context, algorithm)
    good = batch(module_of(trainer), noise=0.5)
    far = [scaled(call, logprobs=[-18.0] * len(call.logprobs)) for call in good.calls]
    with pytest.raises(StepRefusedError, match="loss_limit"):
        trainer.step(replace(good, calls=far))
    trainer.step(replace(good, calls=[scaled(call) for call in good.calls]))


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_an_update_damages_are_put_back(value, lora, model_dir, context):
    trainer = make(model_dir, context, RATE, lora)
    before = state(trainer)
    mend = spoil_update(trainer, value)
    with pytest.raises(StepRefusedError, match=r"weights are not finite.*learning rate"):
        trainer.step(batch())
    mend()
    assert same(before, state(trainer))
    trainer.step(batch())


def test_lost_weights_are_neither_trained_nor_saved_nor_served(
    model_dir, context, tmp_path, monkeypatch
):
    """Without a copy, a single optimiser step can only be undone by loading a checkpoint."""
    monkeypatch.setattr(attempts, "ALWAYS_COPIED", 0)
    trainer = make(model_dir, context, RATE)
    trainer.save(tmp_path / "checkpoint")
    before = state(trainer)
    mend = spoil_update(trainer)
    with pytest.raises(WeightsLostError, match="continue from the last checkpoint"):
        trainer.step(batch())
    mend()
    for use in (
        lambda: trainer.step(batch()),
        lambda: trainer.save(tmp_path / "lost"),
        lambda: trainer.export(tmp_path / "lost"),
        lambda: trainer.publish("in_process", 1),
    ):
        with pytest.raises(WeightsLostError, match="load a checkpoint"):
            use()
    assert not (tmp_path / "lost").exists()
    trainer.load(tmp_path / "checkpoint")
    assert same(before, state(trainer))
    trainer.step(batch())


def test_weights_are_lost_if_an_update_cannot_be_undone(model_dir, context, monkeypatch):
    """Whatever the reason, be it one that would be tried again otherwise."""
    trainer = make(model_dir, context, MANY_STEPS)

    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    spoil_pass(trainer, 2)
    monkeypatch.setattr(trainer.policy.optimiser, "write_parameters", fail)
    monkeypatch.setattr(trainer.policy.optimiser, "step", lambda _: None)
    with pytest.raises(WeightsLostError, match="continue from the last checkpoint"):
        trainer.step(batch())
    with pytest.raises(WeightsLostError, match="load a checkpoint"):
        trainer.publish("in_process", 1)


def test_a_single_optimiser_step_is_refused_before_it_without_a_copy(
    model_dir, context, monkeypatch
):
    monkeypatch.setattr(attempts, "ALWAYS_COPIED", 0)
    trainer = make(model_dir, context, RATE)
    trainer.step(batch())
    before = state(trainer)
    mend = spoil_pass(trainer, 1)
    with pytest.raises(StepRefusedError):
        trainer.step(batch(step=2))
    mend()
    assert same(before, state(trainer))
    trainer.step(batch(step=2))


def test_weights_that_were_damaged_before_are_not_the_fault_of_the_batch(model_dir, context):
    trainer = make(model_dir, context, RATE)
    with torch.no_grad():
        next(module_of(trainer).parameters())[3, 5] = math.nan
    with pytest.raises(TrainerError, match="not finite before step 1") as found:
        trainer.step(batch())
    assert not isinstance(found.value, StepRefusedError)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("spoiled", [1, 3])
def test_cuda(spoiled, model_dir, context):
    trainer = TorchTrainer(TorchTrainerSettings(device="cuda"), context)
    trainer.start(ModelConfig(path=model_dir), MANY_STEPS)
    trainer.step(batch())
    before, places = state(trainer), addresses(trainer)
    mend = spoil_pass(trainer, spoiled)
    with pytest.raises(StepRefusedError, match=f"minibatch {spoiled} of 4"):
        trainer.step(batch(step=2))
    mend()
    assert same(before, state(trainer))
    assert addresses(trainer) == places
    trainer.step(batch(step=2))


async def test_an_engine_of_the_same_process_serves_the_old_weights(model_dir, context):
    trainer = make(model_dir, context, MANY_STEPS)
    trainer.publish("in_process", 1)
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=model_dir))
    prompt = prompts(1)[0]
    before = await ask(engine, prompt, seed=7)
    await engine.pause()
    mend = spoil_pass(trainer, 3)
    with pytest.raises(StepRefusedError):
        trainer.step(batch())
    mend()
    await engine.resume()
    after = await ask(engine, prompt, seed=7)
    assert (after.ids, after.versions) == (before.ids, before.versions)
    assert_exact(load(model_dir), prompt, after)
    await engine.close()
