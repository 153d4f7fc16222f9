"""What TRL computes of a batch: against the trainer ``torch``, by hand, and by what it teaches."""

from __future__ import annotations

import math

import pytest
import torch
from ajet_backend_trl.plan import Share, rows_of
from ajet_backend_trl.tensors import micro_batch
from batches import LORA, batch, full_logprobs, load, make, make_torch, module_of, weights
from tiny_models import VOCAB

from ajet_core.errors import ConfigError, TrainerError
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)

FAVOURED = 10
LOSSES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> torch.Tensor:
    """All that changed, as one vector."""
    return torch.cat([(after[name] - before[name]).flatten() for name in sorted(before)])


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))


@pytest.mark.parametrize(
    ("aggregation", "minibatches", "rows", "budget", "terms"),
    [
        ("token_mean", 1, 1, None, {}),
        ("token_mean", 2, 2, 50, {"kl_coef": 0.3, "entropy_coef": 0.1}),
        ("call_mean", 1, 1, 50, {"kl_coef": 0.3}),
        ("episode_mean", 1, 2, None, {"entropy_coef": 0.1}),
        ("episode_mean", 2, 1, 90, {"kl_coef": 0.3, "entropy_coef": 0.1}),
        ("episode_sum", 1, 2, 50, {"kl_coef": 0.3, "entropy_coef": 0.1}),
    ],
)
def test_a_step_is_that_of_the_trainer_torch(
    aggregation, minibatches, rows, budget, terms, models, tmp_path
):
    """Loss, gradient norm, logprobs and new weights, for each division of the batch."""
    algorithm = AlgorithmConfig(
        aggregation=aggregation,
        clip_low=0.1,
        clip_high=0.3,
        minibatches=minibatches,
        learning_rate=1e-3,
        warmup_steps=4,
        weight_decay=0.1,
        adam_betas=(0.8, 0.95),
        max_grad_norm=0.5,
        token_budget=budget,
        epochs=2 if terms else 1,
        **terms,
    )
    path = models()
    b = batch(
        load(path),
        rewards=(1.0, 0.0, 0.5, 0.5, 0.2, 0.9),
        groups="aabbcc",
        noise=0.3,
        temperatures=(0.7, 1.3),
        rows=rows,
    )
    found = []
    for maker in (make, make_torch):
        trainer = maker(path, tmp_path / maker.__name__, algorithm)
        before = weights(trainer)
        reports = [trainer.step(b)]
        found.append((reports[0], moved(before, weights(trainer))))
    (ours, our_way), (theirs, their_way) = found
    measured = ["loss", "grad_norm", "ratio_mean", "learning_rate", "logprob_gap"]
    for name in [*measured, "kl"] if "kl_coef" in terms else measured:
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-4, abs=1e-7), name
    assert ours.tokens_trained == theirs.tokens_trained
    assert ours.sequences == theirs.sequences
    assert cosine(our_way, their_way) > 0.999
    assert float(our_way.norm()) == pytest.approx(float(their_way.norm()), rel=1e-3)
    for mine, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_kl_term_is_that_of_the_trainer_torch(lora, models, tmp_path):
    algorithm = AlgorithmConfig(learning_rate=1e-3, kl_coef=0.3)
    b = batch(load(models()), noise=0.3, temperatures=(0.8, 0.8))
    found = []
    for maker in (make, make_torch):
        trainer = maker(models(), tmp_path / maker.__name__, algorithm, lora)
        start = weights(trainer)
        if lora is not None:
            # Adapters start at random, from each trainer's own numbers.
            with torch.no_grad():
                for name, tensor in trainer.policy.optimiser.weight_tensors().items():
                    generator = torch.Generator().manual_seed(len(name))
                    tensor.copy_(0.05 * torch.randn(tensor.shape, generator=generator))
            start = weights(trainer)
        found.append((trainer.step(b), moved(start, weights(trainer)), trainer.step(b)))
    (first, way, second), (first_other, other_way, second_other) = found
    assert first.metrics["kl"] == pytest.approx(first_other.metrics["kl"], rel=1e-4, abs=1e-7)
    assert second.metrics["kl"] == pytest.approx(second_other.metrics["kl"], rel=1e-2)
    assert second.metrics["kl"] > 1e-6
    assert first.metrics["loss"] == pytest.approx(first_other.metrics["loss"], rel=1e-4)
    assert cosine(way, other_way) > 0.999


def test_truncated_importance_weights_are_those_of_the_trainer_torch(models, tmp_path):
    algorithm = AlgorithmConfig(
        learning_rate=1e-2, importance="truncated", importance_cap=1.2, minibatches=2, epochs=2
    )
    b = batch(load(models()), noise=0.5, groups="aabb")
    found = [
        maker(models(), tmp_path / maker.__name__, algorithm).step(b)
        for maker in (make, make_torch)
    ]
    for name in ("loss", "importance_mean", "importance_max", "importance_capped", "ratio_max"):
        mine, other = (report.metrics[name] for report in found)
        assert mine == pytest.approx(other, rel=2e-3), name
    assert found[0].metrics["importance_capped"] > 0


def test_reported_logprobs_are_those_tokens_were_sampled_with(models, tmp_path):
    module = load(models())
    b = batch(module, temperatures=(0.6, 1.0), rows=3)
    report = make(models(), tmp_path, AlgorithmConfig(token_budget=100)).step(b)
    for call, logprobs in zip(b.calls, report.logprobs, strict=True):
        if call.advantage:
            assert logprobs == pytest.approx(call.logprobs, abs=1e-4)
    assert report.metrics["logprob_gap"] < 1e-4
    assert report.metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert report.metrics["clip_fraction"] == 0


def favouring(module: torch.nn.Module, step: int) -> TrainBatch:
    """One-turn episodes, half of which sampled the favoured token, and were paid for it."""
    calls, trees = [], []
    generator = torch.Generator().manual_seed(step)
    for episode in range(8):
        ids = torch.randint(VOCAB, (6,), generator=generator).tolist()
        ids[-1] = FAVOURED if episode % 2 else ids[-1]
        found = full_logprobs(module, ids, 1.0)
        advantage = 1.0 if episode % 2 else -1.0
        logprobs = [float(found[4, ids[-1]])]
        calls.append(TrainCall(f"{step}-{episode}", episode, advantage, 1.0, logprobs, [0]))
        trees.append(TrainTree([TrainSegment(-1, ids, [TrainSpan(5, episode, 0, 1)])]))
    episodes = [TrainEpisode(f"e{i}", "g", float(i % 2)) for i in range(8)]
    return TrainBatch(f"b{step}", step, episodes, calls, trees, 48)


@pytest.mark.parametrize(
    ("loss_type", "level", "kl_coef"),
    [
        *((name, "token", 0.0) for name in LOSSES),
        ("grpo", "sequence", 0.0),
        ("dapo", "token", 0.01),
    ],
)
def test_every_loss_makes_a_favoured_token_more_likely(loss_type, level, kl_coef, models, tmp_path):
    # Large updates, all of which count.
    algorithm = AlgorithmConfig(
        learning_rate=3e-3, clip_high=0.28, kl_coef=kl_coef, epochs=2, max_update_kl=0
    )
    trainer = make(
        models(), tmp_path, algorithm, loss_type=loss_type, importance_sampling_level=level
    )
    probe = [8, 9, 11, FAVOURED]

    def favour() -> float:
        return float(full_logprobs(module_of(trainer), probe, 1.0)[-1, FAVOURED])

    before = favour()
    for step in range(1, 9):
        trainer.step(favouring(module_of(trainer), step))
    assert favour() > before + 1


def test_an_entropy_bonus_spreads_the_policy(models, tmp_path):
    entropies = []
    for coefficient in (0.0, 1.0):
        algorithm = AlgorithmConfig(learning_rate=3e-3, entropy_coef=coefficient)
        trainer = make(models(), tmp_path / str(coefficient), algorithm)
        for step in range(1, 5):
            report = trainer.step(batch(step=step))
        entropies.append(report.metrics["entropy"])
    assert entropies[1] > entropies[0]


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_a_loss_of_trl_weighs_rows_as_trl_does_however_they_are_cut_up(loss_type, models, tmp_path):
    """Rows without advantage are left out; uneven micro-batches give the loss of one."""
    b = batch(load(models()), rewards=(1.0, 0.0, 0.5, 0.5, 0.3), groups="aabba", noise=0.4)
    rows = [
        [call for call in b.calls if call.episode == episode] for episode in range(len(b.episodes))
    ]
    per_row = []
    for calls in rows:
        values = []
        for call in calls:
            found = make_ratio(b, call, load(models()))
            values += [-min(r * call.advantage, clip(r) * call.advantage) for r in found]
        per_row.append(values)
    tokens = sum(len(values) for values in per_row)
    wanted = {
        "grpo": math.fsum(math.fsum(v) / len(v) for v in per_row) / len(per_row),
        "dapo": math.fsum(map(math.fsum, per_row)) / tokens,
        "dr_grpo": math.fsum(map(math.fsum, per_row)) / (len(per_row) * 7),
    }[loss_type]
    for budget in (None, 60):
        trainer = make(
            models(),
            tmp_path / str(budget),
            AlgorithmConfig(token_budget=budget),
            loss_type=loss_type,
            grpo={"max_completion_length": 7},
        )
        assert trainer.step(b).metrics["loss"] == pytest.approx(wanted, rel=1e-4)


def clip(ratio: float) -> float:
    return min(max(ratio, 0.8), 1.2)


def make_ratio(b: TrainBatch, call: TrainCall, module: torch.nn.Module) -> list[float]:
    """Policy over behaviour probability of a call's tokens."""
    number = b.calls.index(call)
    (segment, span), *_ = [
        (tree.segments[0], span)
        for tree in b.trees
        for span in tree.segments[0].spans
        if span.call == number
    ]
    found = full_logprobs(module, segment.token_ids, call.temperature)
    places = range(span.offset, span.offset + span.length)
    return [
        math.exp(float(found[i - 1, segment.token_ids[i]]) - logprob)
        for i, logprob in zip(places, call.logprobs, strict=True)
    ]


def test_nothing_to_learn_changes_nothing(models, tmp_path):
    trainer = make(models(), tmp_path, AlgorithmConfig(learning_rate=1e-2))
    before = weights(trainer)
    report = trainer.step(batch(rewards=(0.5, 0.5)))
    assert report.metrics["no_signal"] == 1.0
    assert report.logprobs == [[]] * 4
    after = weights(trainer)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_calls_of_other_temperatures_need_a_head_without_a_cap(models, tmp_path):
    trainer = make(models("gemma2"), tmp_path, AlgorithmConfig())
    assert trainer.step(batch(load(models("gemma2")))).metrics["logprob_gap"] < 1e-4
    with pytest.raises(TrainerError, match="temperature 1"):
        trainer.step(batch(temperatures=(1.0, 0.5)))


def test_two_answers_to_one_question_are_refused(models, tmp_path):
    with pytest.raises(ConfigError, match="leave out one") as refused:
        make(models(), tmp_path, AlgorithmConfig(aggregation="episode_sum"), loss_type="grpo")
    assert refused.value.param == "algorithm.aggregation"


def test_padding_is_no_part_of_what_is_measured(models, tmp_path):
    """TRL takes a single column for one number per row; padding rows would count as rows."""
    b = favouring(load(models()), 1)
    rows = rows_of(b)
    assert {len(row.completion) for row in rows} == {1}
    share = Share(0, {0: 1.0}, {0: 1.0})
    part = micro_batch(rows, [share], 2, torch.device("cpu"))
    assert part.mask.tolist() == [[1, 0], [0, 0]]
    report = make(models(), tmp_path, AlgorithmConfig(kl_coef=0.1)).step(b)
    assert report.metrics["kl"] == pytest.approx(0, abs=1e-6)
