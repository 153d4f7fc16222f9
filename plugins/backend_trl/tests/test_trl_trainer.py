"""Steps that are refused or fail, what is written, and settings."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ajet_backend_trl import attempts
from ajet_backend_trl.settings import ELSEWHERE, PASSED_ON, TrlTrainerSettings
from ajet_backend_trl.trainer import TrlTrainer
from batches import LORA, batch, full_logprobs, load, make, module_of, weights
from safetensors.torch import load_file
from trl import GRPOConfig

from ajet_core.errors import ConfigError, StepRefusedError, TrainerError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_testing.served_models import too_large

MANY_STEPS = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2, token_budget=60)


def spoil_pass(
    trainer: TrlTrainer, number: int, error: Exception | None = None
) -> Callable[[], None]:
    """Let the model answer NaN, or raise, in one pass.

    :param number: the number of the pass, from 1. For NaN, only training passes count: NaN after an
        update only shortens it.
    :return: removes the fault.
    """
    passes = 0

    def spoil(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        if error is None and not torch.is_grad_enabled():
            return output
        passes += 1
        if passes != number:
            return output
        if error is not None:
            raise error
        return output * math.nan

    first = module_of(trainer).get_input_embeddings()
    return first.register_forward_hook(spoil).remove


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def state(trainer: TrlTrainer) -> dict[str, torch.Tensor]:
    """Weights and optimiser, as copies."""
    found = trainer.policy.optimiser.state_tensors()
    return {**weights(trainer), **{name: tensor.clone() for name, tensor in found.items()}}


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, dropout=0.2)])
@pytest.mark.parametrize(
    ("spoiled", "error", "raised"),
    [
        (1, None, StepRefusedError),
        (5, None, StepRefusedError),
        (2, RuntimeError("a kernel failed"), TrainerError),
        (5, RuntimeError("a kernel failed"), TrainerError),
    ],
)
def test_training_goes_on_bit_by_bit_as_if_the_batch_had_never_been(
    spoiled, error, raised, lora, models, tmp_path
):
    trainer, twin = (make(models(), tmp_path / str(i), MANY_STEPS, lora) for i in range(2))
    for each in (trainer, twin):
        each.step(batch(groups="aabb"))
    before = state(trainer)
    places = [tensor.data_ptr() for tensor in trainer.policy.optimiser.parameters.values()]
    random_before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    mend = spoil_pass(trainer, spoiled, error)
    with pytest.raises(raised, match="step 2"):
        trainer.step(batch(step=2, seed=5, groups="aabb"))
    mend()
    assert same(before, state(trainer))
    after = [tensor.data_ptr() for tensor in trainer.policy.optimiser.parameters.values()]
    assert after == places
    random_after = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    assert random_after[:2] == random_before[:2]
    assert torch.equal(random_after[2], random_before[2])
    reports = [each.step(batch(step=2, seed=6, groups="aabb")) for each in (trainer, twin)]
    assert reports[0].metrics == reports[1].metrics
    assert same(state(trainer), state(twin))


def test_a_gradient_that_exploded_is_refused(models, tmp_path):
    trainer = make(models(), tmp_path, AlgorithmConfig(learning_rate=1e-2), grad_norm_limit=1e-3)
    before = state(trainer)
    with pytest.raises(StepRefusedError, match="grad_norm_limit"):
        trainer.step(batch(load(models())))
    assert same(before, state(trainer))


@pytest.mark.parametrize("kept", [True, False])
def test_a_large_model_is_not_copied_and_a_refused_update_not_applied(
    kept, models, tmp_path, monkeypatch
):
    """Without a copy, damaged weights are lost until a checkpoint is loaded."""
    if not kept:
        monkeypatch.setattr(attempts, "ALWAYS_COPIED", 0)
    trainer = make(models(), tmp_path / "run", AlgorithmConfig(learning_rate=1e-2))
    trainer.step(batch())
    trainer.save(tmp_path / "checkpoint")
    before = state(trainer)
    mend = spoil_pass(trainer, 1)
    with pytest.raises(StepRefusedError, match="nan"):
        trainer.step(batch(step=2))
    mend()
    assert same(before, state(trainer))

    @torch.no_grad()
    def spoil(optimiser: torch.optim.Optimizer, *_: object) -> None:
        optimiser.param_groups[0]["params"][-1][0, 0] = math.nan

    handle = trainer.policy.optimiser.adamw.register_step_post_hook(spoil)
    with pytest.raises(StepRefusedError if kept else WeightsLostError):
        trainer.step(batch(step=2))
    handle.remove()
    if not kept:
        with pytest.raises(WeightsLostError):
            trainer.publish("safetensors_dir", 1)
        trainer.load(tmp_path / "checkpoint")
    assert same(before, state(trainer))
    trainer.step(batch(step=2))


def test_a_step_that_runs_out_of_memory_is_computed_in_smaller_passes(models, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2)
    b = batch(load(models()), noise=0.3, groups="aabb")
    trainer = make(models(), tmp_path / "a", algorithm)
    mend = spoil_pass(trainer, 2, torch.OutOfMemoryError("out of memory"))
    report = trainer.step(b)
    mend()
    assert report.metrics["oom_retries"] == 1
    budget = int(report.metrics["token_budget"])
    assert budget < 4096
    other = make(models(), tmp_path / "b", algorithm.model_copy(update={"token_budget": budget}))
    assert other.step(b).metrics["loss"] == report.metrics["loss"]
    assert same(state(trainer), state(other))


def test_too_little_memory_for_anything_is_an_error_that_says_what_to_set(models, tmp_path):
    trainer = make(models(), tmp_path)
    before = state(trainer)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    handle = module_of(trainer).get_input_embeddings().register_forward_hook(fail)
    with pytest.raises(TrainerError, match="gradient_checkpointing") as found:
        trainer.step(batch())
    handle.remove()
    assert found.value.param == "algorithm.token_budget"
    assert same(before, state(trainer))
    assert trainer.step(batch()).metrics["token_budget"] == 4096


@pytest.mark.parametrize("lora", [None, LORA])
def test_what_is_published_is_the_model_and_keeps_its_configuration(lora, models, tmp_path):
    trainer = make(models(), tmp_path / "run", AlgorithmConfig(learning_rate=1e-2), lora)
    trainer.step(batch())
    for version in (1, 2, 3):
        location = Path(trainer.publish("safetensors_dir", version).location)
    assert sorted(path.name for path in location.parent.iterdir()) == ["v000000002", "v000000003"]
    ids = list(range(3, 20))
    mine = full_logprobs(module_of(trainer), ids, 1.0)
    assert torch.allclose(full_logprobs(load(str(location)), ids, 1.0), mine, atol=1e-5)
    assert not torch.allclose(full_logprobs(load(models()), ids, 1.0), mine, atol=1e-3)
    before, after = (
        json.loads((Path(path) / "config.json").read_text()) for path in (models(), location)
    )
    assert {**after, "dtype": None} == {**before, "dtype": None}
    # The configuration in use is TRL's again.
    trainer.step(batch(step=2))


@pytest.mark.parametrize("lora", [None, LORA])
def test_half_precision_is_trained_in_float32_and_written_as_it_was(lora, models, tmp_path):
    path = models("llama", "bfloat16")
    # The loop begins anew when batches are cut up in another way.
    algorithm = AlgorithmConfig(learning_rate=1e-4, token_budget=80)
    trainer = make(path, tmp_path / "run", algorithm, lora, dtype="bfloat16")
    report = trainer.step(batch(load(path)))
    assert report.metrics["logprob_gap"] < 0.2
    assert {t.dtype for t in trainer.policy.optimiser.weight_tensors().values()} == {torch.float32}
    trainer.step(batch(step=2, rewards=(1, 0, 1, 0, 1, 0, 1, 0)))
    trainer.export(tmp_path / "export")
    written = load_file(tmp_path / "export" / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}
    assert written.keys() == load_file(Path(path) / "model.safetensors").keys()


def test_gradient_checkpointing_changes_no_result(models, tmp_path):
    found = []
    for on in (False, True):
        trainer = make(
            models(),
            tmp_path / str(on),
            AlgorithmConfig(learning_rate=1e-2),
            gradient_checkpointing=on,
        )
        trainer.step(batch())
        found.append(weights(trainer))
    for name, tensor in found[0].items():
        assert torch.allclose(tensor, found[1][name], atol=1e-6), name


def test_fields_are_known_to_trl_and_are_set_in_one_place() -> None:
    known = set(GRPOConfig.__dataclass_fields__)
    assert known >= PASSED_ON
    assert ELSEWHERE.keys() <= known
    assert not PASSED_ON & ELSEWHERE.keys()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beta", "algorithm.kl_coef"),
        ("output_dir", "cannot be set"),
        ("push_to_hub", "cannot be set"),
        ("report_to", "cannot be set"),
        ("trust_remote_code", "cannot be set"),
        ("no_such_field", "cannot be set"),
    ],
)
def test_other_fields_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        TrlTrainerSettings(grpo={name: 1})


def test_a_value_that_trl_does_not_take_is_refused(models, tmp_path):
    """Here because the machine lacks what it needs."""
    with pytest.raises(ConfigError, match=r"TRL refuses.*tf32") as refused:
        make(models(), tmp_path, grpo={"tf32": True})
    assert refused.value.param == "trainer.settings.grpo"


def test_adapters_on_layers_that_are_not_there_are_refused(models, tmp_path):
    with pytest.raises(ConfigError, match="no_such_layer"):
        make(models(), tmp_path, lora=LoraConfig(target_modules=("no_such_layer",)))


def test_a_model_that_does_not_fit_into_memory_is_named(models, tmp_path):
    path = too_large(models(), tmp_path / "large")
    with pytest.raises(TrainerError, match=r"large and its optimiser do not fit.*model\.lora"):
        make(path, tmp_path / "run")


def test_a_malformed_batch_is_an_error_that_names_the_place(models, tmp_path):
    trainer = make(models(), tmp_path)
    good = batch()
    calls = [replace(good.calls[0], temperature=0.0), *good.calls[1:]]
    with pytest.raises(TrainerError, match="temperature"):
        trainer.step(replace(good, calls=calls))


def test_a_closed_trainer_says_so(models, tmp_path):
    trainer = make(models(), tmp_path)
    trainer.step(batch())
    trainer.close()
    with pytest.raises(TrainerError, match="closed"):
        trainer.step(batch())
