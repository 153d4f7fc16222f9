"""Too little memory: the step is computed in smaller passes, or says what to set."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import little_memory
import pytest
import torch
from ajet_backend_torch import engine as engine_module
from ajet_backend_torch import policy as policy_module
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings
from ajet_backend_torch.trainer import TorchTrainer
from test_engine import ask
from test_trainer import batch, make, module_of, same, weights

from ajet_core.errors import EngineError, StepRefusedError, TrainerError
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_testing.served_models import too_large
from ajet_torch.memory import is_out_of_memory

CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation for Memory Management"
SHORTAGES: list[Callable[[], Exception]] = [
    lambda: torch.cuda.OutOfMemoryError(CUDA),
    lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to"),
    lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
    MemoryError,
]


@contextmanager
def room_for(
    trainer: TorchTrainer, tokens: int, shortage: Callable[[], Exception] = SHORTAGES[0]
) -> Iterator[None]:
    """Passes of more tokens, padding included, fail."""

    def check(_module: object, _args: object, inputs: dict[str, torch.Tensor]) -> None:
        if inputs["input_ids"].numel() > tokens:
            raise shortage()

    hook = module_of(trainer).register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_every_kind_of_shortage_is_known(shortage):
    assert is_out_of_memory(shortage())
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))


def test_a_real_shortage_is_known():
    with pytest.raises(RuntimeError) as found:
        torch.empty(10**14)
    assert is_out_of_memory(found.value)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="limits the process's memory by Linux's means")
def test_a_process_of_little_memory_gets_through(tmp_path):
    def step(name: str, *room: str) -> dict[str, float]:
        command = [sys.executable, str(Path(little_memory.__file__)), str(tmp_path / name), *room]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    # The logits alone take 64 MiB, and their gradients as much again.
    plenty, little = step("plenty"), step("little", "80")
    assert plenty["oom_retries"] == 0
    assert little["oom_retries"] >= 1
    assert little["token_budget"] < plenty["token_budget"] == little_memory.BUDGET
    for name in ("loss", "grad_norm", "entropy"):
        assert little[name] == pytest.approx(plenty[name], rel=1e-4)


# Each kind of shortage once: nothing but `is_out_of_memory` tells them apart.
@pytest.mark.parametrize(
    ("algorithm", "lora", "shortage"),
    [
        (AlgorithmConfig(learning_rate=1e-2), None, SHORTAGES[0]),
        (
            AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2, kl_coef=0.1),
            None,
            SHORTAGES[1],
        ),
        (
            AlgorithmConfig(learning_rate=1e-2, minibatches=2),
            LoraConfig(rank=4, dropout=0.2),
            SHORTAGES[2],
        ),
        (
            AlgorithmConfig(learning_rate=1e-2, minibatches=2, importance="truncated"),
            None,
            SHORTAGES[3],
        ),
    ],
    ids=["one optimiser step", "four", "dropout", "truncated"],
)
def test_a_step_that_ran_out_of_memory_is_the_step_of_the_smaller_budget(
    algorithm, lora, shortage, model_dir, context
):
    trainer = make(model_dir, context, algorithm, lora)
    with room_for(trainer, 30, shortage):
        report = trainer.step(batch())
        again = trainer.step(batch(step=2, seed=2))
    metrics = report.metrics
    budget = int(metrics["token_budget"])
    assert 15 <= budget <= 30
    assert metrics["oom_retries"] >= 1
    # The smaller budget stays.
    assert (again.metrics["token_budget"], again.metrics["oom_retries"]) == (budget, 0)
    smaller = algorithm.model_copy(update={"token_budget": budget})
    other = make(model_dir, context, smaller, lora)
    expected = other.step(batch())
    other.step(batch(step=2, seed=2))
    assert {**metrics, "oom_retries": 0.0} == expected.metrics
    assert report.logprobs == expected.logprobs
    assert same(weights(trainer), weights(other))


def test_the_same_gradient_comes_of_any_budget(model_dir, context):
    algorithm = AlgorithmConfig(learning_rate=1e-2, max_grad_norm=0)
    plenty, little = (make(model_dir, context, algorithm) for _ in range(2))
    expected = plenty.step(batch()).metrics
    with room_for(little, 20):
        found = little.step(batch()).metrics
    assert expected["oom_retries"] == 0
    for name in ("loss", "grad_norm", "entropy"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)


def test_memory_may_run_out_after_optimiser_steps(model_dir, context):
    """The step begins again from the weights it began with."""
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2)
    trainer = make(model_dir, context, algorithm)
    before = trainer.policy.token_budget
    steps = 0

    def fail_once(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise SHORTAGES[0]()

    hook = module_of(trainer).register_forward_pre_hook(fail_once)
    metrics = trainer.step(batch()).metrics
    hook.remove()
    assert metrics["oom_retries"] == 1
    assert metrics["token_budget"] < before
    smaller = algorithm.model_copy(update={"token_budget": int(metrics["token_budget"])})
    other = make(model_dir, context, smaller)
    other.step(batch())
    assert same(weights(trainer), weights(other))


def test_nothing_of_the_failed_passes_is_held_during_the_next(model_dir, context):
    trainer = make(model_dir, context, AlgorithmConfig(token_budget=60))
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    fails = [False, True]

    def watch(*_: object) -> None:
        if made and not fails:
            alive.append(any(ref() is not None for ref in made))
            made.clear()
        if fails and fails.pop(0):
            raise SHORTAGES[0]()

    def keep(_module: object, _inputs: object, output: torch.Tensor) -> None:
        if fails:
            made.append(weakref.ref(output))

    layer = module_of(trainer).model.layers[0].mlp
    hooks = [module_of(trainer).register_forward_pre_hook(watch), layer.register_forward_hook(keep)]
    trainer.step(batch())
    for hook in hooks:
        hook.remove()
    assert alive == [False]


def test_with_too_little_memory_for_any_budget_the_error_says_what_to_set(model_dir, context):
    trainer = make(model_dir, context)
    before, budget = weights(trainer), trainer.policy.token_budget
    with (
        room_for(trainer, 3),
        pytest.raises(TrainerError, match=r"does not fit.*CUDA out of memory") as found,
    ):
        trainer.step(batch())
    assert not isinstance(found.value, StepRefusedError)
    for name in ("gradient_checkpointing", "model.lora", "model.dtype", "timelines.max_tokens"):
        assert name in found.value.message
    assert found.value.param == "algorithm.token_budget"
    # The allocator's page of advice is not part of it.
    assert "Memory Management" not in found.value.message
    assert same(before, weights(trainer))
    assert trainer.policy.token_budget == budget
    trainer.step(batch())


def test_sequences_that_cannot_be_divided_are_computed_one_by_one(models, context):
    """A sliding window is shorter than the context: a pass takes whole sequences, at least one."""
    trainer = make(models("mistral"), context)
    longest = max(tree.tokens for tree in batch().trees)
    with room_for(trainer, longest):
        assert trainer.step(batch()).metrics["oom_retries"] >= 1
    with room_for(trainer, longest - 3), pytest.raises(TrainerError, match="does not fit"):
        trainer.step(batch())


def test_a_trainer_without_the_memory_to_measure_costs_assumes_them(
    model_dir, context, monkeypatch
):
    def measure(*_: object, **__: object) -> None:
        raise SHORTAGES[0]()

    assumed = make(model_dir, context).policy.info()
    monkeypatch.setattr(policy_module, "measured_costs", measure)
    assert make(model_dir, context, measure_costs=True).policy.info() == assumed


@pytest.mark.parametrize("component", ["trainer", "engine"])
async def test_a_model_that_does_not_fit_is_named(component, model_dir, context, monkeypatch):
    def load(*_: object, **__: object) -> None:
        raise SHORTAGES[0]()

    for module in (policy_module, engine_module):
        monkeypatch.setattr(module, "load_model", load)
    if component == "trainer":
        with pytest.raises(TrainerError, match=r"do not fit.*model\.lora"):
            make(model_dir, context)
        return
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    with pytest.raises(EngineError, match=r"does not fit.*model\.dtype"):
        await engine.start(ModelConfig(path=model_dir))


@pytest.mark.parametrize("component", ["trainer", "engine"])
async def test_a_model_that_fits_nowhere_is_named(component, model_dir, context, tmp_path):
    path = too_large(model_dir, tmp_path / "large")
    if component == "trainer":
        with pytest.raises(TrainerError, match=r"large and its optimiser do not fit.*model\.lora"):
            make(path, context)
        return
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    with pytest.raises(EngineError, match=r"large does not fit.*model\.dtype"):
        await engine.start(ModelConfig(path=path))


async def test_an_engine_without_memory_says_what_to_set(model_dir, context):
    trainer = make(model_dir, context)
    trainer.publish("in_process", 0)
    engine = TorchEngine(TorchEngineSettings(device="cpu"), context)
    await engine.start(ModelConfig(path=model_dir))
    with (
        room_for(trainer, 0),
        pytest.raises(EngineError, match=r"OutOfMemoryError.*kv_tokens"),
    ):
        await ask(engine, [1, 2])
    await engine.close()
