"""The trainer on tiny models: gradients against a plain reference, steps, checkpoints, channels."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ajet_backend_torch.losses import clipped_surrogate, k3
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from safetensors.torch import load_file
from tiny_models import VOCAB, full_logprobs, load
from transformers import PreTrainedModel

from ajet_core.errors import ConfigError, TrainerError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig, ModelConfig
from ajet_core.timeline import (
    AdvantageMethod,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
    group_advantages,
)

LORA = LoraConfig(rank=4, alpha=8)
AGGREGATIONS = ["token_mean", "call_mean", "episode_mean", "episode_sum"]


def make(
    path: str,
    context: WorkerContext,
    algorithm: AlgorithmConfig | None = None,
    lora: LoraConfig | None = None,
    dtype: str = "auto",
    **settings: object,
) -> TorchTrainer:
    settings.setdefault("measure_costs", False)
    trainer = TorchTrainer(TorchTrainerSettings(device="cpu", **settings), context)
    trainer.start(
        ModelConfig(path=path, lora=lora, dtype=dtype),
        algorithm or AlgorithmConfig(learning_rate=1e-3),
    )
    return trainer


def batch(
    module: torch.nn.Module | None = None,
    rewards: tuple[float, ...] = (1.0, 0.0, 0.5, 0.0),
    step: int = 1,
    seed: int = 0,
    noise: float = 0.0,
    temperature: float = 1.0,
    groups: str = "",
    method: AdvantageMethod = "group_std",
) -> TrainBatch:
    """Linear trees of two calls; behaviour logprobs are `module`'s own plus noise.

    :param groups: a letter for each episode; one group by default.
    """
    rng = np.random.default_rng(seed)
    names = list(groups) if groups else ["task"] * len(rewards)
    advantages = group_advantages(rewards, names, method)
    trees: list[TrainTree] = []
    calls: list[TrainCall] = []
    for episode, advantage in enumerate(advantages):
        size = int(rng.integers(12, 40))
        ids = rng.integers(VOCAB, size=size).tolist()
        logprobs = [-3.0] * size
        if module is not None:
            rows = full_logprobs(module, ids, temperature)
            logprobs = [0.0] + [float(rows[i - 1, ids[i]]) for i in range(1, size)]
        spans = []
        for start, end in ((4, 8), (size - 3, size)):
            spans.append(TrainSpan(start, len(calls), 0, end - start))
            behaviour = [lp + noise * float(rng.standard_normal()) for lp in logprobs[start:end]]
            calls.append(
                TrainCall(
                    f"c{len(calls)}",
                    episode,
                    advantage,
                    temperature,
                    behaviour,
                    [0] * (end - start),
                )
            )
        trees.append(TrainTree([TrainSegment(-1, ids, spans)]))
    episodes = [TrainEpisode(f"e{i}", names[i], r) for i, r in enumerate(rewards)]
    return TrainBatch(f"b{step}", step, episodes, calls, trees, sum(t.tokens for t in trees))


def weights(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in module_of(trainer).state_dict().items()}


def module_of(trainer: TorchTrainer) -> PreTrainedModel:
    policy, _ = trainer._started()
    return policy.module


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def reference_step(
    module: torch.nn.Module, b: TrainBatch, a: AlgorithmConfig, start: torch.nn.Module
) -> tuple[float, float]:
    """A plain step: every sequence alone, full logits, loops; returns loss and gradient norm."""
    losses: dict[int, list[torch.Tensor]] = {}
    for tree in b.trees:
        (segment,) = tree.segments
        ids = torch.tensor([segment.token_ids])
        logits, ref = module(ids).logits[0], start(ids).logits[0].detach()
        for span in segment.spans:
            call = b.calls[span.call]
            for i in range(span.length):
                t = span.offset + i
                row = torch.log_softmax(logits[t - 1] / call.temperature, -1)
                ref_row = torch.log_softmax(ref[t - 1] / call.temperature, -1)
                lp, rlp = row[segment.token_ids[t]], ref_row[segment.token_ids[t]]
                ratio = (lp - call.logprobs[span.start + i]).exp()
                clipped = ratio.clamp(1 - a.clip_low, 1 + a.clip_high)
                loss = -torch.min(ratio * call.advantage, clipped * call.advantage)
                loss = loss + a.kl_coef * ((rlp - lp).exp() - (rlp - lp) - 1)
                loss = loss + a.entropy_coef * (row.exp() * row).sum()
                losses.setdefault(span.call, []).append(loss)
    rows = {number: torch.stack(found) for number, found in losses.items()}
    by_episode: dict[int, list[torch.Tensor]] = {}
    for number, row in rows.items():
        by_episode.setdefault(b.calls[number].episode, []).append(row)
    whole = [torch.cat(found) for found in by_episode.values()]
    loss = {
        "token_mean": lambda: torch.cat(whole).mean(),
        "call_mean": lambda: torch.stack([row.mean() for row in rows.values()]).mean(),
        "episode_mean": lambda: torch.stack([row.mean() for row in whole]).mean(),
        "episode_sum": lambda: torch.stack([row.sum() for row in whole]).mean(),
    }[a.aggregation]()
    parameters: list[dict[str, Any]] = [
        {"params": [p for p in module.parameters() if p.dim() > 1]},
        {"params": [p for p in module.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(
        parameters,
        lr=a.learning_rate,
        betas=a.adam_betas,
        weight_decay=a.weight_decay,
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), a.max_grad_norm)
    optimiser.step()
    return float(loss.detach()), float(norm)


@pytest.mark.parametrize("advantage", ["group_std", "group_mean", "leave_one_out"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_step_is_that_of_a_plain_reference(aggregation, advantage, model_dir, context):
    algorithm = AlgorithmConfig(
        advantage=advantage,
        aggregation=aggregation,
        clip_low=0.1,
        clip_high=0.3,
        kl_coef=0.3,
        entropy_coef=0.05,
        learning_rate=1e-2,
        weight_decay=0.1,
        adam_betas=(0.8, 0.95),
        max_grad_norm=0.5,
        max_update_rms=0,
        max_update_kl=0,
        token_budget=50,
    )
    plain, start = load(model_dir), load(model_dir)
    trainer = make(model_dir, context, algorithm)
    # So far from the reference that the KL term has a gradient.
    with torch.no_grad():
        for module in (plain, module_of(trainer)):
            for parameter in module.parameters():
                parameter.mul_(1.01)
    b = batch(plain, noise=0.3, temperature=0.8, method=advantage)
    report = trainer.step(b)
    loss, norm = reference_step(plain, b, algorithm, start)
    assert report.metrics["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert report.metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert report.metrics["kl"] > 0
    expected = dict(plain.named_parameters(remove_duplicate=False))
    for name, tensor in weights(trainer).items():
        wanted, gradient = expected[name].detach(), expected[name].grad
        # The first update of Adam has the size of the learning rate whatever the size of a
        # gradient, so that one which is rounding alone decides its direction.
        certain = gradient.abs() > 1e-6 * gradient.abs().max()
        assert certain.float().mean() > 0.5, name
        assert torch.allclose(tensor[certain], wanted[certain], atol=2e-4), name
        assert torch.allclose(tensor, wanted, atol=2.1 * algorithm.learning_rate), name


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gemma", "gemma2"])
def test_every_architecture_keeps_its_logit_scaling(kind, models, context):
    module = load(models(kind))
    trainer = make(models(kind), context)
    report = trainer.step(batch(module))
    assert trainer._started()[0]._logits.narrows
    assert report.metrics["logprob_gap"] < 1e-4
    assert report.metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_add_up(aggregation, model_dir, context):
    results = []
    for budget in (10, 60, 100_000):
        algorithm = AlgorithmConfig(
            aggregation=aggregation, learning_rate=1e-3, token_budget=budget, max_grad_norm=0
        )
        trainer = make(model_dir, context, algorithm)
        report = trainer.step(batch(noise=0.2, rewards=(1, 0, 0, 1, 1, 0, 0.5, 0)))
        state = trainer._started()[0].optimiser.state_tensors()
        # After one step this is the gradient, times 1 - beta.
        gradients = {k: v for k, v in state.items() if k.endswith("exp_avg")}
        results.append((report, gradients))
    for report, gradients in results[1:]:
        assert report.metrics["loss"] == pytest.approx(results[0][0].metrics["loss"], rel=1e-5)
        assert report.tokens_processed == results[0][0].tokens_processed
        for name, gradient in gradients.items():
            reference = results[0][1][name]
            assert (gradient - reference).norm() <= 1e-5 * reference.norm() + 1e-9, name


def test_clipping_by_hand():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 1.0])
    logprobs = ratio.log().requires_grad_()
    found = clipped_surrogate(logprobs, torch.zeros(5), advantage, 0.2, 0.3)
    assert found.loss.tolist() == pytest.approx([-2.6, 3.0, -1.0, 1.6, -1.1])
    assert found.clipped.tolist() == [True, False, False, True, False]
    found.loss.sum().backward()
    # d(-r A) / d logprob = -r A, and nothing where it is clipped.
    assert logprobs.grad.tolist() == pytest.approx([0.0, 3.0, -1.0, 0.0, -1.1])


def test_k3_by_hand():
    policy, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.5])
    assert k3(policy, reference).tolist() == pytest.approx([0.0, math.exp(0.5) - 1.5])


def test_extreme_ratios_stay_finite(model_dir, context):
    b = batch()
    far = [replace(call, logprobs=[-500.0] * len(call.logprobs)) for call in b.calls]
    report = make(model_dir, context, loss_limit=None).step(replace(b, calls=far))
    assert all(math.isfinite(value) for value in report.metrics.values())


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_kl_is_zero_at_the_start_and_grows(lora, model_dir, context):
    trainer = make(model_dir, context, AlgorithmConfig(learning_rate=1e-2, kl_coef=0.1), lora)
    first = trainer.step(batch())
    second = trainer.step(batch(step=2))
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-8)
    assert second.metrics["kl"] > 1e-6


def test_favoured_tokens_become_more_likely(model_dir, context):
    trainer = make(model_dir, context, AlgorithmConfig(learning_rate=3e-3, minibatches=2))
    good, bad = [], []
    for step in range(1, 9):
        b = batch(module_of(trainer), step=step, rewards=(1, 0, 1, 0))
        sums = [0.0] * 4
        for call in b.calls:
            sums[call.episode] += sum(call.logprobs)
        good.append(sums[0] + sums[2])
        bad.append(sums[1] + sums[3])
        trainer.step(b)
    assert good[-1] > good[0] + 1
    assert bad[-1] < bad[0] - 1


def test_the_report(model_dir, context):
    trainer = make(
        model_dir, context, AlgorithmConfig(learning_rate=1e-3, epochs=2, warmup_steps=4)
    )
    b = batch(load(model_dir))
    report = trainer.step(b)
    # The last token of a sequence predicts nothing.
    tokens = sum(tree.tokens - 1 for tree in b.trees)
    assert report.step == 1
    assert report.sequences == 4
    assert report.tokens_trained == 28
    assert report.tokens_processed == 2 * tokens
    assert report.seconds > 0
    m = report.metrics
    assert m["learning_rate"] == pytest.approx(2.5e-4)
    assert 0 < m["entropy"] <= math.log(VOCAB)
    assert m["advantage_mean"] == pytest.approx(0, abs=1e-9)
    assert m["advantage_std"] == pytest.approx(math.sqrt(3 / 4), rel=1e-2)
    assert m["logprob_gap_mean"] <= m["logprob_gap"] < 1e-4
    assert m["no_signal"] == 0.0
    assert "kl" not in m
    assert {"loss", "clip_fraction", "grad_norm", "ratio_mean", "ratio_max"} <= m.keys()
    assert trainer.step(replace(b, step=2)).metrics["learning_rate"] == pytest.approx(5e-4)


def test_the_logprob_gap_is_of_the_current_version(model_dir, context):
    trainer = make(model_dir, context)
    stale = batch(load(model_dir), noise=1.0)
    metrics = trainer.step(stale).metrics
    assert metrics["logprob_gap"] > metrics["logprob_gap_mean"] > 0.1
    trainer.publish("in_process", 5)
    assert "logprob_gap" not in trainer.step(stale).metrics


def test_the_policy_term_does_not_depend_on_whether_idle_episodes_are_computed(model_dir, context):
    """A tiny KL term adds every sequence to the forward pass, and must change nothing else."""
    mixed = batch(rewards=(1.0, 0.0, 1.0, 1.0), groups="aabb")
    skipped = make(model_dir, context).step(mixed)
    computed = make(model_dir, context, AlgorithmConfig(kl_coef=1e-12)).step(mixed)
    assert (skipped.sequences, computed.sequences) == (2, 4)
    assert skipped.metrics["grad_norm"] == pytest.approx(computed.metrics["grad_norm"], rel=1e-5)
    assert skipped.metrics["loss"] == pytest.approx(computed.metrics["loss"], rel=1e-5)


def test_the_loss_is_a_mean_over_all_trained_tokens(model_dir, context):
    b = batch(rewards=(1.0, 0.0, 1.0, 1.0), groups="aabb")
    mixed = make(model_dir, context).step(b)
    half = replace(b, episodes=b.episodes[:2], calls=b.calls[:4], trees=b.trees[:2])
    alone = make(model_dir, context).step(half)
    share = alone.tokens_trained / sum(len(call.logprobs) for call in b.calls)
    assert mixed.metrics["grad_norm"] == pytest.approx(alone.metrics["grad_norm"] * share, rel=1e-4)


def test_the_report_holds_the_logprobs_of_all_computed_calls(model_dir, context):
    module = load(model_dir)
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2)
    b = batch(module, rewards=(1.0, 0.0, 1.0, 1.0), groups="aabb", temperature=0.7)
    found = make(model_dir, context, algorithm).step(b).logprobs
    # The first minibatch alone has a signal, and only its first pass sees the weights as they were.
    for call, logprobs in zip(b.calls, found, strict=True):
        assert logprobs == pytest.approx(call.logprobs if call.episode < 2 else [], abs=1e-4)


@pytest.mark.parametrize("rewards", [(1.0, 1.0), ()])
def test_a_batch_without_signal_changes_nothing(rewards, model_dir, context):
    trainer = make(model_dir, context)
    before = weights(trainer)
    report = trainer.step(batch(rewards=rewards))
    assert report.metrics["no_signal"] == 1.0
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert report.tokens_trained == report.tokens_processed == 0
    assert same(before, weights(trainer))


def test_a_tree_that_trains_nothing_is_left_out(model_dir, context):
    b = batch()
    blank = TrainTree([replace(b.trees[0].segments[0], spans=[])])
    report = make(model_dir, context).step(replace(b, trees=[blank, *b.trees]))
    assert report.sequences == 4
    assert math.isfinite(report.metrics["loss"])


def test_a_call_that_is_trained_nowhere_is_refused(model_dir, context):
    b = batch()
    with pytest.raises(TrainerError, match="is not trained"):
        make(model_dir, context).step(replace(b, trees=b.trees[1:]))


def test_any_other_failure_is_undone_as_well(model_dir, context, monkeypatch):
    trainer = make(model_dir, context, AlgorithmConfig(learning_rate=1e-2, minibatches=2))
    before = weights(trainer)
    module = module_of(trainer)
    forward = module.forward
    calls = 0

    def fail(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("it broke")
        return forward(*args, **kwargs)

    monkeypatch.setattr(module, "forward", fail)
    with pytest.raises(TrainerError, match=r"step 1 failed.*it broke"):
        trainer.step(batch())
    assert same(before, weights(trainer))
    assert not module.training


def test_lora_trains_the_adapters_alone(model_dir, context):
    trainer = make(model_dir, context, AlgorithmConfig(learning_rate=1e-2), LORA)
    before = weights(trainer)
    info = trainer._started()[0].info()
    trainer.step(batch())
    after = weights(trainer)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert info.trainable_parameters < info.parameters


def test_unknown_lora_targets_are_refused(model_dir, context):
    with pytest.raises(ConfigError, match="adapters"):
        make(model_dir, context, lora=LoraConfig(target_modules=("nowhere",)))


@pytest.mark.parametrize("lora", [None, LORA])
def test_export_is_a_plain_model_directory(lora, model_dir, context, tmp_path):
    source = tmp_path / "source"
    load(model_dir).save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    trainer = make(str(source), context, AlgorithmConfig(learning_rate=1e-2), lora)
    trainer.step(batch())
    before = weights(trainer)
    trainer.export(tmp_path / "out")
    ids = list(range(30))
    expected = full_logprobs(module_of(trainer), ids)
    assert (full_logprobs(load(str(tmp_path / "out")), ids) - expected).abs().max() < 1e-4
    assert (full_logprobs(load(model_dir), ids) - expected).abs().max() > 1e-3
    assert same(before, weights(trainer))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not any("lora" in name for name in load_file(tmp_path / "out" / "model.safetensors"))


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, dropout=0.2)])
def test_resuming_is_exact_to_the_bit(lora, model_dir, context, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2, epochs=2, warmup_steps=5)
    straight = make(model_dir, context, algorithm, lora)
    for step in (1, 2, 3):
        straight.step(batch(step=step, seed=step))
    first = make(model_dir, context, algorithm, lora)
    for step in (1, 2):
        first.step(batch(step=step, seed=step))
    first.save(tmp_path / "checkpoint")
    torch.manual_seed(123)
    second = make(model_dir, replace(context, seed=99), algorithm, lora)
    second.load(tmp_path / "checkpoint")
    report = second.step(batch(step=3, seed=3))
    assert same(weights(straight), weights(second))
    assert report.metrics["learning_rate"] == pytest.approx(6e-3)


def test_a_checkpoint_of_an_untouched_trainer_can_be_loaded(model_dir, context, tmp_path):
    checkpoint = tmp_path / "saved" / "c"
    make(model_dir, context).save(checkpoint)
    trainer = make(model_dir, context)
    trainer.load(checkpoint)
    trainer.save(checkpoint)
    assert [path.name for path in checkpoint.parent.iterdir()] == ["c"]


def test_damaged_checkpoints_are_refused_and_change_nothing(model_dir, models, context, tmp_path):
    trainer = make(model_dir, context)
    trainer.step(batch())
    before = weights(trainer)

    def damaged(name: str) -> Path:
        trainer.save(tmp_path / name)
        return tmp_path / name

    cut = damaged("cut") / "optimiser.safetensors"
    cut.write_bytes(cut.read_bytes()[:-10])
    (damaged("gone") / "weights.safetensors").unlink()
    (damaged("garbled") / "trainer.json").write_text("{")
    flipped = damaged("flipped") / "weights.safetensors"
    content = bytearray(flipped.read_bytes())
    content[-5] ^= 1
    flipped.write_bytes(content)
    garbage = damaged("garbage") / "optimiser.safetensors"
    garbage.write_bytes(b"x" * garbage.stat().st_size)
    renumbered = damaged("renumbered") / "trainer.json"
    renumbered.write_text(renumbered.read_text().replace('"steps": 1', '"steps": 7'))
    other_format = damaged("format") / "trainer.json"
    other_format.write_text(json.dumps({"format": 99}))
    make(models("llama"), context).save(tmp_path / "llama")
    make(model_dir, context, lora=LORA).save(tmp_path / "lora")
    make(models("wide"), context).save(tmp_path / "wider")
    for name, message in (
        ("cut", r"optimiser.safetensors.*checksum"),
        ("flipped", r"weights.safetensors.*checksum"),
        ("garbage", r"optimiser.safetensors.*checksum"),
        ("renumbered", r"trainer.json.*checksum"),
        ("gone", "weights.safetensors"),
        ("garbled", "trainer.json"),
        ("format", "format 1"),
        ("llama", "another model"),
        ("lora", "LoRA"),
        ("wider", r"weights.safetensors: .* but the trained model needs"),
        ("nowhere", "not a checkpoint"),
    ):
        with pytest.raises(TrainerError, match=message):
            trainer.load(tmp_path / name)
    assert same(before, weights(trainer))


def test_bfloat16_models_are_trained_by_float32_masters(model_dir, context, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-6)
    trainer = make(model_dir, context, algorithm, dtype="bfloat16")
    for step in range(3):
        trainer.step(batch(step=step + 1))
    masters = trainer._started()[0].optimiser.masters
    start = load(model_dir).to(torch.bfloat16).float().state_dict()
    moved = sum(int((masters[n] != start[n]).sum()) for n in masters)
    assert moved > 0.9 * sum(m.numel() for m in masters.values())
    assert next(module_of(trainer).parameters()).dtype == torch.bfloat16
    trainer.save(tmp_path / "c")
    other = make(model_dir, context, algorithm, dtype="bfloat16")
    other.load(tmp_path / "c")
    assert same(weights(trainer), weights(other))


def test_float16_is_refused(model_dir, context):
    with pytest.raises(ConfigError, match="bfloat16"):
        make(model_dir, context, dtype="float16")


def test_gradient_checkpointing_changes_nothing_but_memory(model_dir, context):
    algorithm = AlgorithmConfig(learning_rate=1e-3)
    plain = make(model_dir, context, algorithm)
    frugal = make(model_dir, context, algorithm, gradient_checkpointing=True)
    first, second = plain.step(batch()), frugal.step(batch())
    assert first.metrics["grad_norm"] == pytest.approx(second.metrics["grad_norm"], rel=1e-5)
    assert not module_of(frugal).training


def test_minibatches_differ_from_step_to_step_but_not_from_run_to_run(model_dir, context):
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2)
    runs = []
    for _ in range(2):
        trainer = make(model_dir, context, algorithm)
        for step in (1, 2):
            trainer.step(batch(step=step, rewards=(1, 0, 0.5, 0.25, 0.75, 0)))
        runs.append(weights(trainer))
    assert same(*runs)


def test_the_last_two_published_directories_are_kept(model_dir, context):
    trainer = make(model_dir, context)

    def kept() -> list[str]:
        return sorted(path.name[-1] for path in (context.run_dir / "weights").iterdir())

    for version in (1, 2, 3):
        trainer.publish("safetensors_dir", version)
    assert kept() == ["2", "3"]
    # A run that was set back publishes an old version again.
    trainer.publish("safetensors_dir", 2)
    assert kept() == ["2"]


def test_an_unknown_channel_is_refused(model_dir, context):
    with pytest.raises(TrainerError, match="nccl"):
        make(model_dir, context).publish("nccl", 1)


def test_a_trainer_must_be_started(context):
    trainer = TorchTrainer(TorchTrainerSettings(), context)
    with pytest.raises(TrainerError, match="not started"):
        trainer.step(batch())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda(model_dir, context, tmp_path):
    trainer = TorchTrainer(TorchTrainerSettings(device="cuda"), context)
    trainer.start(ModelConfig(path=model_dir), AlgorithmConfig(learning_rate=1e-3, minibatches=2))
    trainer.step(batch())
    trainer.save(tmp_path / "c")
    trainer.load(tmp_path / "c")
    assert math.isfinite(trainer.step(batch(step=2)).metrics["loss"])
