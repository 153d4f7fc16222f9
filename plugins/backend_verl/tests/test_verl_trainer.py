"""Steps that are refused or fail, what is written, and what verl is told."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch
from ajet_backend_verl import attempts
from ajet_backend_verl.verl_keys import ACTOR, ELSEWHERE, FSDP, MODEL, PASSED_ON
from batches import LORA, aim, batch, full_logprobs, load, make, module_of, same, state, weights
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from verl.trainer.config import AlgoConfig, RolloutCorrectionConfig
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, HFModelConfig, PolicyLossConfig

from ajet_core.errors import ConfigError, StepRefusedError, TrainerError, WeightsLostError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_testing.served_models import too_large
from ajet_torch import memory

# What workers are told to do here they could not import.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
MANY_STEPS = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2, token_budget=60)


@pytest.fixture
def trainer(started, models, tmp_path):
    return started.get(0, tmp_path / "run", models(), MANY_STEPS)


def spoil(worker: object, number: int, what: str) -> None:
    """In a worker: let the model answer NaN, or raise, in one pass.

    :param number: the number of the pass, from 1. For NaN, only training passes count: NaN after an
        update only shortens it.
    """
    passes = 0

    def hook(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        if what == "nan" and not torch.is_grad_enabled():
            return output
        passes += 1
        if passes != number:
            return output
        handle.remove()
        if what == "memory":
            raise torch.OutOfMemoryError("out of memory")
        if what == "kernel":
            raise RuntimeError("a kernel failed")
        return output * math.nan

    handle = worker.engine.module.get_input_embeddings().register_forward_hook(hook)


def in_worker(trainer, work, *arguments: object) -> object:
    """Do something in the first worker."""
    (worker, *_) = trainer.policy.workers._group.workers
    return ray.get(worker.__ray_call__.remote(work, *arguments))


@pytest.mark.parametrize(
    ("number", "what", "raised"),
    [
        (4, "nan", StepRefusedError),
        (2, "kernel", TrainerError),
        # At the first optimiser step of four, and at the last.
        pytest.param(1, "nan", StepRefusedError, marks=pytest.mark.nightly),
        pytest.param(4, "kernel", TrainerError, marks=pytest.mark.nightly),
    ],
)
def test_training_goes_on_bit_by_bit_as_if_the_batch_had_never_been(
    number, what, raised, trainer, started, models, tmp_path
):
    twin = started.get(1, tmp_path / "twin", models(), MANY_STEPS)
    for each in (trainer, twin):
        each.step(batch(groups="aabb"))
    before = state(trainer)
    in_worker(trainer, spoil, number, what)
    with pytest.raises(raised, match="step 2"):
        trainer.step(batch(step=2, seed=5, groups="aabb"))
    assert same(before, state(trainer))
    reports = [each.step(batch(step=2, seed=6, groups="aabb")) for each in (trainer, twin)]
    assert reports[0].metrics == reports[1].metrics
    assert same(state(trainer), state(twin))


def test_a_gradient_that_exploded_is_refused(trainer, models):
    aim(trainer, MANY_STEPS, grad_norm_limit=1e-3)
    before = state(trainer)
    with pytest.raises(StepRefusedError, match="grad_norm_limit"):
        trainer.step(batch(load(models())))
    assert same(before, state(trainer))


def test_weights_that_are_damaged_without_a_copy_are_lost_until_a_checkpoint_is_loaded(
    trainer, models, tmp_path, monkeypatch
):
    monkeypatch.setattr(attempts, "ALWAYS_COPIED", 0)
    assert memory.ALWAYS_COPIED > 0
    aim(trainer, AlgorithmConfig(learning_rate=1e-2))
    trainer.step(batch())
    trainer.save(tmp_path / "checkpoint")
    before = state(trainer)

    def damage(worker: object) -> None:
        @torch.no_grad()
        def hook(optimiser: torch.optim.Optimizer, *_: object) -> None:
            optimiser.param_groups[0]["params"][-1].to_local()[0] = math.nan
            handle.remove()

        handle = worker.engine.optimizer.register_step_post_hook(hook)

    in_worker(trainer, damage)
    with pytest.raises(WeightsLostError):
        trainer.step(batch(step=2))
    with pytest.raises(WeightsLostError):
        trainer.publish("safetensors_dir", 1)
    trainer.load(tmp_path / "checkpoint")
    assert same(before, state(trainer))
    trainer.step(batch(step=2))


def test_a_step_that_runs_out_of_memory_is_computed_in_smaller_passes(trainer, models, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2)
    b = batch(load(models()), noise=0.3, groups="aabb")
    trainer.save(tmp_path / "begun")
    aim(trainer, algorithm.model_copy(update={"token_budget": 4096}))
    in_worker(trainer, spoil, 2, "memory")
    report = trainer.step(b)
    found = state(trainer)
    assert report.metrics["oom_retries"] == 1
    budget = int(report.metrics["token_budget"])
    assert budget < 4096
    trainer.load(tmp_path / "begun")
    aim(trainer, algorithm.model_copy(update={"token_budget": budget}))
    assert trainer.step(b).metrics["loss"] == report.metrics["loss"]
    assert same(state(trainer), found)


def test_too_little_memory_for_anything_is_an_error_that_says_what_to_set(trainer):
    before = state(trainer)

    def fill(worker: object) -> None:
        def hook(*_: object) -> None:
            raise torch.OutOfMemoryError("out of memory")

        worker.filled = worker.engine.module.get_input_embeddings().register_forward_hook(hook)

    in_worker(trainer, fill)
    with pytest.raises(TrainerError, match="gradient_checkpointing") as found:
        trainer.step(batch())
    in_worker(trainer, lambda worker: worker.filled.remove())
    assert found.value.param == "algorithm.token_budget"
    assert same(before, state(trainer))
    assert trainer.step(batch()).metrics["token_budget"] == 60


@pytest.mark.parametrize(
    "lora",
    [
        # The suite of trainers, too, publishes all weights.
        pytest.param(None, id="full", marks=pytest.mark.nightly),
        pytest.param(LORA, id="adapters"),
    ],
)
def test_what_is_published_is_the_model_and_keeps_its_configuration(
    lora, started, models, tmp_path
):
    algorithm = AlgorithmConfig(learning_rate=1e-2)
    trainer = started.get(0, tmp_path / "run", models("llama"), algorithm, lora)
    trainer.step(batch())
    for version in (1, 2, 3):
        location = Path(trainer.publish("safetensors_dir", version).location)
    assert sorted(path.name for path in location.parent.iterdir()) == ["v000000002", "v000000003"]
    ids = list(range(3, 20))
    published = full_logprobs(AutoModelForCausalLM.from_pretrained(location), ids, 1.0)
    assert not torch.allclose(full_logprobs(load(models("llama")), ids, 1.0), published, atol=1e-3)
    if lora is None:
        mine = full_logprobs(module_of(trainer, models("llama")), ids, 1.0)
        assert torch.allclose(published, mine, atol=1e-5)
    # What the engine would sample is what the trainer computes.
    b = batch(load(str(location)), step=2)
    b = replace(b, calls=[replace(c, policy_versions=[3] * len(c.logprobs)) for c in b.calls])
    assert trainer.step(b).metrics["logprob_gap"] < 1e-4
    before, after = (
        json.loads((Path(path) / "config.json").read_text()) for path in (models("llama"), location)
    )
    assert {**after, "dtype": None} == {**before, "dtype": None}
    trainer.export(tmp_path / "export")
    assert load_file(tmp_path / "export" / "model.safetensors").keys() == (
        load_file(Path(models("llama")) / "model.safetensors").keys()
    )


def test_half_precision_is_trained_in_float32_and_written_as_it_was(cluster, models, tmp_path):
    path = models("llama", "bfloat16")
    trainer = make(path, tmp_path / "run", AlgorithmConfig(learning_rate=1e-4), dtype="bfloat16")
    report = trainer.step(batch(load(path)))
    assert report.metrics["logprob_gap"] < 0.2
    assert {t.dtype for t in weights(trainer).values()} == {torch.float32}
    trainer.export(tmp_path / "export")
    trainer.close()
    written = load_file(tmp_path / "export" / "model.safetensors")
    assert {tensor.dtype for tensor in written.values()} == {torch.bfloat16}


def test_keys_are_those_of_verl() -> None:
    classes = {
        ACTOR: FSDPActorConfig,
        ACTOR + "policy_loss.": PolicyLossConfig,
        FSDP: FSDPEngineConfig,
        MODEL: HFModelConfig,
        "algorithm.": AlgoConfig,
        "algorithm.rollout_correction.": RolloutCorrectionConfig,
    }
    free = ("optim.override_optimizer_config.", "override_config.")
    for key in PASSED_ON:
        prefix = max((p for p in classes if key.startswith(p)), key=len)
        name = key.removeprefix(prefix)
        if not name.startswith(free):
            assert name in {f.name for f in dataclasses.fields(classes[prefix])}, key
    ours = [key for key in ELSEWHERE if key.startswith(ACTOR) and key.count(".") == 2]
    assert ours
    for key in ours:
        assert key.removeprefix(ACTOR) in {f.name for f in dataclasses.fields(FSDPActorConfig)}


def test_keys_reach_what_they_are_for(models) -> None:
    from ajet_backend_verl.configs import actor_config, worker_config
    from ajet_backend_verl.settings import VerlTrainerSettings

    from ajet_core.protocol import ModelConfig

    options = VerlTrainerSettings(
        verl={
            ACTOR + "clip_ratio_c": 10,
            ACTOR + "policy_loss.ppo_kl_coef": 0.5,
            ACTOR + "optim.override_optimizer_config.eps": 1e-6,
            FSDP + "reshard_after_forward": False,
            MODEL + "override_config.attn_implementation": "eager",
        }
    )
    algorithm = AlgorithmConfig(adam_betas=(0.8, 0.9), max_grad_norm=0.0)
    worker = worker_config(ModelConfig(path=models()), algorithm, options, torch.float32)
    actor = actor_config(algorithm, options)
    assert actor.clip_ratio_c == 10
    assert actor.policy_loss.ppo_kl_coef == 0.5
    assert worker.optimizer_config.override_optimizer_config == {"eps": 1e-6}
    assert worker.optimizer_config.betas == (0.8, 0.9)
    assert worker.optimizer_config.clip_grad == math.inf
    assert not worker.engine_config.reshard_after_forward
    assert worker.model_config.hf_config._attn_implementation == "eager"


def test_dropout_of_adapters_is_refused(models, tmp_path):
    with pytest.raises(ConfigError, match="no dropout") as refused:
        make(models(), tmp_path, lora=LoraConfig(dropout=0.1))
    assert refused.value.param == "model.lora.dropout"


def test_offloading_from_a_cpu_is_refused(models, tmp_path):
    with pytest.raises(ConfigError, match="computes on the CPU"):
        make(models(), tmp_path, offload=True)


def test_several_nodes_need_a_cluster(models, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(TrainerError, match="RAY_ADDRESS=HOST:PORT") as refused:
        make(models(), tmp_path, nodes=2)
    assert refused.value.param == "trainer.settings.nodes"


def test_a_cluster_that_is_too_small_is_an_error_that_says_what_there_is(cluster, models, tmp_path):
    with pytest.raises(TrainerError, match=r"no free place for 60 workers on each of 1 nodes"):
        make(models(), tmp_path, workers_per_node=60, start_seconds=0.1)


def test_a_malformed_batch_is_an_error_that_names_the_place(trainer):
    good = batch()
    calls = [replace(good.calls[0], temperature=0.0), *good.calls[1:]]
    with pytest.raises(TrainerError, match="temperature"):
        trainer.step(replace(good, calls=calls))


def test_nothing_to_learn_changes_nothing(trainer):
    before = weights(trainer)
    report = trainer.step(batch(rewards=(0.5, 0.5)))
    assert report.metrics["no_signal"] == 1.0
    assert report.logprobs == [[]] * 4
    assert same(before, weights(trainer))


def test_a_trainer_that_is_not_running_says_so(tmp_path):
    from ajet_backend_verl.settings import VerlTrainerSettings
    from ajet_backend_verl.trainer import VerlTrainer

    trainer = VerlTrainer(VerlTrainerSettings(), WorkerContext(tmp_path))
    trainer.close()
    with pytest.raises(TrainerError, match="closed"):
        trainer.step(batch())


def test_a_model_whose_files_are_not_those_of_its_configuration_is_named(cluster, models, tmp_path):
    path = too_large(models(), tmp_path / "large")
    with pytest.raises(
        TrainerError, match=r"/large and its optimiser cannot be loaded by verl.*mis"
    ) as e:
        make(path, tmp_path / "run")
    assert e.value.param == "model.path"


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        (("out of memory", True), "set model.lora, or more workers"),
        (
            ("cannot import name 'Model' from 'trl.experimental.ppo' (/ppo.py)",),
            "pip uninstall trl",
        ),
    ],
)
def test_a_start_that_fails_says_what_to_do(monkeypatch, models, tmp_path, failure, remedy):
    from ajet_backend_verl import policy
    from ajet_backend_verl.part import WorkerFailure

    def fail(*_):
        raise WorkerFailure(*failure)

    monkeypatch.setattr(policy, "VerlPolicy", fail)
    with pytest.raises(TrainerError, match=remedy):
        make(models(), tmp_path)
