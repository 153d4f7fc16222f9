"""Each layout of a batch trains the same as plain passes over every call alone."""

from __future__ import annotations

import gc
import math
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from ajet_backend_torch import forest as forest_module
from ajet_backend_torch import past
from ajet_backend_torch.costs import _fitted, assumed_costs
from ajet_backend_torch.trainer import TorchTrainer
from ajet_backend_torch.update import BatchUpdate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_trainer import LORA, make, module_of, same, weights
from tiny_models import VOCAB, pairwise

from ajet_core.errors import TrainerError
from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, LoraConfig
from ajet_core.timeline import (
    LAYOUTS,
    Call,
    CostModel,
    Layout,
    PassShape,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
    lay_out,
)
from ajet_server.embedded.trie import TokenTrie

FAMILIES = ["qwen2", "llama", "gpt_neox", "gemma", "gemma2"]


def episodes_of(dice: random.Random, episodes: int, calls: int, step: int) -> list[list[Call]]:
    """Calls that continue or fork earlier calls; with few token ids, so that contexts coincide."""

    def text(most: int) -> list[int]:
        return [dice.choice([1, 2, 3]) for _ in range(dice.randint(1, most))]

    shared = text(3 * step)
    found = []
    for episode in range(episodes):
        made: list[Call] = []
        for index in range(calls):
            context = shared
            if made and dice.random() < 0.8:
                base = dice.choice(made)
                whole = base.prompt_ids + base.sampled_ids
                context = whole[: dice.randint(1, len(whole))]
            answer = text(step)
            name = f"{episode}-{index}"
            behaviour = [-1.0 - dice.random() for _ in answer]
            versions = [0] * len(answer)
            temperature = dice.choice([0.7, 1.0])
            made.append(
                Call(
                    name,
                    str(episode),
                    index,
                    context + text(step),
                    answer,
                    behaviour,
                    versions,
                    temperature,
                    "stop",
                )
            )
        found.append(made)
    return found


def batches(
    dice: random.Random, episodes: int = 2, calls: int = 4, step: int = 6, groups: int = 1
) -> dict[Layout, TrainBatch]:
    """The same random calls in every layout; one call in five has no advantage."""
    trees, first_calls = [], []
    train_calls: list[TrainCall] = []
    for number, made in enumerate(episodes_of(dice, episodes, calls, step)):
        trie = TokenTrie(str(number))
        for call in made:
            trie.add(call)
        trees.append(trie.tree())
        first_calls.append(len(train_calls))
        train_calls += [
            TrainCall.of(call, number, 0.0 if dice.random() < 0.2 else dice.uniform(-2, 2))
            for call in trees[-1].calls
        ]
    members: dict[str, list[int]] = {}
    for number in range(episodes):
        members.setdefault(f"g{number % groups}", []).append(number)
    rows = [TrainEpisode(str(i), f"g{i % groups}", 0.0) for i in range(episodes)]
    raw = sum(tree.tokens_raw for tree in trees)
    return {
        layout: TrainBatch(
            "b", 1, rows, train_calls, [unit for found in laid_out for unit in found], raw
        )
        for layout in LAYOUTS
        for laid_out in [
            [
                lay_out(layout, [trees[i] for i in m], [first_calls[i] for i in m])
                for m in members.values()
            ]
        ]
    }


def gradients(trainer: TorchTrainer) -> torch.Tensor:
    found = torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in module_of(trainer).parameters()
            if p.requires_grad
        ]
    )
    trainer.policy.optimiser.zero_grad()
    return found


def accumulated(
    trainer: TorchTrainer, algorithm: AlgorithmConfig, batch: TrainBatch
) -> tuple[float, torch.Tensor, list[list[float]]]:
    """Loss, gradient and logprobs of a batch as one minibatch."""
    update = BatchUpdate(trainer.policy, algorithm, batch)
    loss = torch.zeros(())
    with trainer.policy.training(0):
        for minibatch in update.minibatches(random.Random(0)):
            loss = update.accumulate(minibatch, gap_version=None, report=True).loss
        return float(loss), gradients(trainer), update.logprobs()


def plain(
    trainer: TorchTrainer,
    batch: TrainBatch,
    kl: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[float, torch.Tensor, list[list[float]]]:
    """The same, call by call: a plain forward pass, token mean, clip range 0.2."""
    total = sum(len(call.logprobs) for call in batch.calls)
    losses = []
    logprobs: list[list[float]] = [[] for _ in batch.calls]
    for tree in batch.trees:
        (segment,) = tree.segments
        (span,) = segment.spans
        call = batch.calls[span.call]
        if call.advantage == 0:
            continue
        ids = torch.tensor([segment.token_ids])
        logits = module_of(trainer)(ids, use_cache=False).logits[0, :-1].float()
        rows = torch.log_softmax(logits / call.temperature, -1)
        places = torch.arange(span.offset, span.offset + span.length)
        found = rows[places - 1, ids[0, places]]
        logprobs[span.call] = found.tolist()
        behaviour = torch.tensor(call.logprobs[span.start : span.start + span.length])
        ratio = (found - behaviour).exp()
        clipped = ratio.clamp(0.8, 1.2)
        losses.append(-torch.min(ratio * call.advantage, clipped * call.advantage))
    if not losses:
        return 0.0, torch.zeros_like(gradients(trainer)), logprobs
    loss = torch.cat(losses).sum() / total
    loss.backward()
    return float(loss.detach()), gradients(trainer), logprobs


def assert_same(
    found: tuple[float, torch.Tensor, list[list[float]]],
    expected: tuple[float, torch.Tensor, list[list[float]]],
) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-6)
    assert (found[1] - expected[1]).norm() <= 2e-5 * expected[1].norm() + 1e-8
    for a, b in zip(found[2], expected[2], strict=True):
        assert a == pytest.approx(b, abs=2e-5)


@pytest.fixture(scope="module")
def trainers(models, tmp_path_factory) -> Callable[[str], TorchTrainer]:
    made: dict[str, TorchTrainer] = {}

    def get(kind: str) -> TorchTrainer:
        if kind not in made:
            context = WorkerContext(run_dir=tmp_path_factory.mktemp(kind), seed=3)
            made[kind] = make(models(kind), context)
        return made[kind]

    return get


@pytest.mark.parametrize(
    "kind",
    [
        # Two of the families; the others are nightly.
        kind if kind in {"llama", "gemma2"} else pytest.param(kind, marks=pytest.mark.nightly)
        for kind in FAMILIES
    ],
)
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6), budget=st.sampled_from([5, 17, 10_000]))
def test_every_layout_trains_as_plain_passes_over_each_call(kind, trainers, seed, budget):
    trainer = trainers(kind)
    assert trainer.policy.trees
    trainer.policy.token_budget = budget
    found = batches(random.Random(seed), episodes=3)
    expected = plain(trainer, found["separate"])
    for layout in LAYOUTS:
        assert_same(accumulated(trainer, AlgorithmConfig(), found[layout]), expected)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("branches", [2, 13])
def test_branches_of_a_long_context_are_computed_in_few_rows(kind, branches, trainers, monkeypatch):
    trainer = trainers(kind)
    trainer.policy.token_budget = 10_000
    dice = random.Random(branches)
    context = dice.choices(range(1, VOCAB), k=150)
    calls = []
    for number in range(branches):
        answer = [number + 1, *dice.choices(range(1, VOCAB), k=dice.randint(2, 5))]
        behaviour, versions = [-4.0] * len(answer), [0] * len(answer)
        calls.append(
            Call(str(number), "0", number, context, answer, behaviour, versions, 0.8, "stop")
        )
    trie = TokenTrie("0")
    for call in calls:
        trie.add(call)
    train = [TrainCall.of(call, 0, dice.uniform(-2, 2)) for call in calls]
    rows, size = [TrainEpisode("0", "g", 0.0)], sum(call.length for call in calls)
    tree, separate = (
        TrainBatch("b", 1, rows, train, lay_out(layout, [trie.tree()], [0]), size)
        for layout in ("tree", "separate")
    )
    folded = []
    count_of = past.folding

    def folding(part: Any) -> int:
        folded.append((part.shape.rows, count_of(part)))
        return folded[-1][1]

    monkeypatch.setattr(forest_module, "folding", folding)
    assert_same(accumulated(trainer, AlgorithmConfig(), tree), plain(trainer, separate))
    assert (branches, {2: 2, 13: 7}[branches]) in folded


def test_calls_that_sampled_the_same_each_add_their_loss(trainers):
    trainer = trainers("qwen2")
    calls = [
        TrainCall(f"c{i}", 0, advantage, 1.0, [-3.0, -4.0], [0, 0])
        for i, advantage in enumerate((1.0, -0.5))
    ]
    ids = [5, 6, 7, 8]
    rows = [TrainEpisode("e", "g", 0.0)]
    together = TrainTree([TrainSegment(-1, ids, [TrainSpan(2, i, 0, 2) for i in range(2)])])
    apart = [TrainTree([TrainSegment(-1, ids, [TrainSpan(2, i, 0, 2)])]) for i in range(2)]
    found = accumulated(trainer, AlgorithmConfig(), TrainBatch("b", 1, rows, calls, [together], 8))
    assert_same(found, plain(trainer, TrainBatch("b", 1, rows, calls, apart, 8)))
    assert found[2][0] == found[2][1]


@pairwise(frugal=[False, True], lora=[None, LORA], budget=[12, 4096])
def test_kl_entropy_lora_and_checkpointing_do_not_depend_on_the_layout(
    budget, lora, frugal, model_dir, context
):
    algorithm = AlgorithmConfig(
        learning_rate=1e-2,
        kl_coef=0.3,
        entropy_coef=0.02,
        minibatches=2,
        aggregation="episode_mean",
        token_budget=budget,
    )
    first = batches(random.Random(5), episodes=4, groups=2)
    second = batches(random.Random(6), episodes=4, groups=2)
    reports = []
    for layout in ("separate", "group_tree"):
        trainer = make(model_dir, context, algorithm, lora, gradient_checkpointing=frugal)
        assert trainer.policy.trees
        trainer.step(first[layout])
        # Only now policy and reference differ, and so do the adapters from nothing.
        reports.append(trainer.step(replace(second[layout], step=2)))
    separate, tree = reports
    assert separate.metrics["kl"] > 1e-4
    for name in ("loss", "kl", "entropy", "grad_norm", "clip_fraction", "ratio_max"):
        assert tree.metrics[name] == pytest.approx(separate.metrics[name], rel=1e-3, abs=1e-5), name
    for a, b in zip(tree.logprobs, separate.logprobs, strict=True):
        assert a
        assert a == pytest.approx(b, abs=1e-3)
    assert tree.tokens_trained == separate.tokens_trained
    assert tree.tokens_processed < separate.tokens_processed


def test_bfloat16_trees_are_trained(model_dir, context):
    found = batches(random.Random(1), episodes=3)
    reports = [
        make(model_dir, context, dtype="bfloat16").step(found[layout])
        for layout in ("separate", "group_tree")
    ]
    assert reports[1].metrics["grad_norm"] == pytest.approx(
        reports[0].metrics["grad_norm"], rel=0.1
    )


def test_a_pass_that_is_computed_again_draws_the_same_dropout(model_dir, context, monkeypatch):
    # How far an update moved the policy is measured without dropout.
    algorithm = AlgorithmConfig(learning_rate=1e-2, token_budget=8, max_update_kl=0)
    trainer = make(model_dir, context, algorithm, LoraConfig(rank=4, dropout=0.4))
    trainer.step(batches(random.Random(2))["group_tree"])
    seen: dict[int, list[torch.Tensor]] = {}
    forward = forest_module.Forest._forward

    def watched(self, passes, part, *args, **kwargs):
        found = forward(self, passes, part, *args, **kwargs)
        if found[1] is not None and part.inner and not part.keeps:
            seen.setdefault(id(part), []).append(found[1].keys[-1].detach().clone())
        return found

    monkeypatch.setattr(forest_module.Forest, "_forward", watched)
    trainer.step(replace(batches(random.Random(3))["group_tree"], step=2))
    assert seen
    keys = [key for keys in seen.values() for key in keys]
    assert all(len(found) == 2 and torch.equal(*found) for found in seen.values())
    assert len({tuple(key.flatten().tolist()) for key in keys}) == len(seen)


@pytest.mark.parametrize(
    "importance", [pytest.param("ratio", marks=pytest.mark.nightly), "truncated"]
)
def test_trees_are_resumed_to_the_bit(importance, model_dir, context, tmp_path):
    algorithm = AlgorithmConfig(
        importance=importance, learning_rate=1e-2, minibatches=2, epochs=2, token_budget=30
    )
    lora = LoraConfig(rank=4, dropout=0.2)

    def steps(trainer: TorchTrainer, *numbers: int) -> None:
        for step in numbers:
            found = batches(random.Random(step), episodes=4, groups=2)["group_tree"]
            trainer.step(replace(found, step=step))

    straight, first, second = (make(model_dir, context, algorithm, lora) for _ in range(3))
    steps(straight, 1, 2, 3)
    steps(first, 1, 2)
    first.save(tmp_path / "c")
    second.load(tmp_path / "c")
    steps(second, 3)
    assert same(weights(straight), weights(second))


def peak_of_saved(trainer: TorchTrainer, batch: TrainBatch) -> int:
    """Most numbers that the graphs of a batch hold at once, weights left out."""
    own = {p.data_ptr() for p in module_of(trainer).parameters()}
    live = peak = 0

    class Held:
        def __init__(self, tensor: torch.Tensor) -> None:
            nonlocal live, peak
            # Not with its graph, which would hold itself.
            self.tensor = tensor.detach()
            self.size = 0 if tensor.data_ptr() in own else tensor.numel()
            live += self.size
            peak = max(peak, live)

        def __del__(self) -> None:
            nonlocal live
            live -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        accumulated(trainer, AlgorithmConfig(), batch)
    assert live == 0
    return peak


@pytest.mark.parametrize("lengths", [(400,), (100, 100, 100, 100)])
def test_memory_is_that_of_the_budget_and_not_of_the_context(lengths, trainers):
    """One long segment, and a path of segments with a short branch after each."""
    trainer = trainers("llama")
    dice = random.Random(0)
    segments: list[TrainSegment] = []
    calls: list[TrainCall] = []
    trunk = -1
    for length in lengths:
        for size in (length, 5)[: len(lengths)]:
            span = TrainSpan(size - 4, len(calls), 0, 4)
            calls.append(TrainCall(str(len(calls)), 0, 1.0, 1.0, [-4.0] * 4, [0] * 4))
            ids = [dice.randrange(VOCAB) for _ in range(size)]
            segments.append(TrainSegment(trunk, ids, [span]))
            if size == length:
                here = len(segments) - 1
                trunk = here
    rows = [TrainEpisode("e", "g", 0.0)]
    batch = TrainBatch("b", 1, rows, calls, [TrainTree(segments)], 0)
    trainer.policy.token_budget = 10_000
    whole, expected = peak_of_saved(trainer, batch), accumulated(trainer, AlgorithmConfig(), batch)
    trainer.policy.token_budget = 50
    assert peak_of_saved(trainer, batch) < whole / 3
    assert_same(accumulated(trainer, AlgorithmConfig(), batch), expected)


def test_graphs_do_not_hold_themselves(trainers, monkeypatch):
    made: list[weakref.ref[past.PassCache]] = []
    store = past.PassCache.store

    def noted(self: past.PassCache) -> past.StoredPass:
        made.append(weakref.ref(self))
        return store(self)

    monkeypatch.setattr(past.PassCache, "store", noted)
    gc.disable()
    try:
        trainer = trainers("qwen2")
        trainer.policy.token_budget = 20
        found = batches(random.Random(9), episodes=3)["group_tree"]
        accumulated(trainer, AlgorithmConfig(), found)
        assert len(made) > 3
        assert not any(ref() for ref in made)
    finally:
        gc.enable()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_has_no_advantage_is_not_computed(layout, trainers):
    trainer = trainers("qwen2")
    trainer.policy.token_budget = 10_000
    found = batches(random.Random(4), episodes=2)[layout]
    idle = [replace(c, advantage=0.0 if c.episode else 1.0) for c in found.calls]
    update = BatchUpdate(trainer.policy, AlgorithmConfig(), replace(found, calls=idle))
    (minibatch,) = update.minibatches(random.Random(0))
    only = [
        tree
        for tree in found.trees
        if any(idle[s.call].advantage for t in tree.segments for s in t.spans)
    ]
    assert update.trees == len(only)
    assert update.schedule(minibatch).tokens < sum(tree.tokens for tree in only)
    assert [
        bool(row) for row in accumulated(trainer, AlgorithmConfig(), replace(found, calls=idle))[2]
    ] == [call.advantage != 0 for call in idle]


@pytest.mark.parametrize("groups", [1, 2])
def test_minibatches_do_not_depend_on_the_layout(groups, model_dir, context):
    algorithm = AlgorithmConfig(learning_rate=1e-2, minibatches=2)
    found = batches(random.Random(7), episodes=4, groups=groups)
    results = []
    for layout in ("separate", "tree"):
        trainer = make(model_dir, context, algorithm)
        results.append(trainer.step(found[layout]).metrics)
    assert results[1]["loss"] == pytest.approx(results[0]["loss"], rel=1e-4, abs=1e-6)
    assert results[1]["grad_norm"] == pytest.approx(results[0]["grad_norm"], rel=1e-4)


def test_a_tree_of_episodes_that_may_be_separated_is_refused(model_dir, context):
    trainer = make(model_dir, context, AlgorithmConfig(minibatches=2))
    found = batches(random.Random(7), episodes=2, groups=1)["group_tree"]
    with pytest.raises(TrainerError, match=r"tree 0: .*minibatches one by one"):
        trainer.step(found)


def test_models_with_a_window_are_trained_on_sequences_alone(models, context):
    trainer = make(models("mistral"), context, AlgorithmConfig(token_budget=20))
    assert not trainer.policy.info().trees
    found = batches(random.Random(3), episodes=3)
    expected = plain(trainer, found["separate"])
    assert_same(accumulated(trainer, AlgorithmConfig(), found["linear"]), expected)
    with pytest.raises(TrainerError, match="linear sequences only"):
        trainer.step(found["group_tree"])


def test_a_context_whose_length_changes_its_positions_is_refused(models, context):
    trainer = make(models("phi3_long"), context, AlgorithmConfig())
    call = TrainCall("c", 0, 1.0, 1.0, [-3.0, -3.0], [0, 0])

    def of(size: int) -> TrainBatch:
        trunk, branch = TrainSegment(-1, [1] * (size - 3)), TrainSegment(0, [4, 5, 6])
        branch.spans.append(TrainSpan(1, 0, 0, 2))
        rows = [TrainEpisode("e", "g", 0.0)]
        return TrainBatch("b", 1, rows, [call], [TrainTree([trunk, branch])], size)

    assert trainer.policy.trees
    assert math.isfinite(trainer.step(of(128)).metrics["loss"])
    with pytest.raises(TrainerError, match=r"129 tokens.*only up to 128"):
        trainer.step(of(129))


def no_mask(*args: Any) -> torch.Tensor:
    return torch.zeros_like(past.past_mask(*args))


def no_gradient(ctx: Any, whole: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
    width = sum(block.width for block in ctx.blocks)
    return whole[:, :, width:], None, None, None


@pytest.mark.parametrize("broken", ["mask", "gradient", "error"])
def test_the_probe_notices_a_model_that_goes_on_wrongly(broken, model_dir, context, monkeypatch):
    if broken == "mask":
        monkeypatch.setattr(forest_module, "past_mask", no_mask)
    elif broken == "gradient":
        monkeypatch.setattr(past._Gather, "backward", staticmethod(no_gradient))
    else:
        monkeypatch.delattr(past.PassCache, "update")
    assert not make(model_dir, context).policy.trees


def two(changes: dict[str, Any]) -> TrainBatch:
    """Two episodes with a tree each; the second tree's second segment, span or call is changed."""
    calls = [TrainCall(f"c{i}", i, 1.0, 1.0, [-3.0, -3.0], [0, 0]) for i in range(2)]
    trees = []
    for i in range(2):
        change = changes if i else {}
        span = replace(TrainSpan(0, i, 0, 2), **change.get("span", {}))
        segment = replace(TrainSegment(0, [4, 5, 6], [span]), **change.get("segment", {}))
        root = replace(TrainSegment(-1, [1, 2, 3]), **change.get("root", {}))
        trees.append(TrainTree([root, segment][: change.get("count", 2)]))
    calls[1] = replace(calls[1], **changes.get("call", {}))
    rows = [TrainEpisode(f"e{i}", "g", 0.0) for i in range(2)]
    return TrainBatch("b", 1, rows, calls, trees, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "tree 1: it has no segments"),
        ({"segment": {"token_ids": []}}, "tree 1: segment 1 has no tokens"),
        ({"segment": {"token_ids": [1, 2, VOCAB]}}, "tree 1: segment 1: .*vocabulary of 96"),
        ({"segment": {"token_ids": [1, -1, 2]}}, "tree 1: segment 1: .*vocabulary"),
        ({"segment": {"parent": 1}}, "tree 1: segment 1 has parent 1"),
        ({"segment": {"parent": -1}}, "tree 1: segment 1 has parent -1"),
        ({"root": {"parent": 0}}, "tree 1: segment 0 has parent 0"),
        ({"root": {"spans": [TrainSpan(0, 1, 0, 1)]}}, "tree 1: segment 0: the first token"),
        ({"span": {"call": 2}}, "tree 1: segment 1: a span names call 2, but there are only 2"),
        ({"span": {"offset": 2}}, "tree 1: segment 1: a span of 2 tokens at 2"),
        ({"span": {"offset": -1}}, "tree 1: segment 1: a span of 2 tokens at -1"),
        ({"span": {"length": 0}}, "tree 1: segment 1: a span of 0 tokens"),
        ({"span": {"start": 1}}, "2 tokens that call c1 sampled"),
        ({"span": {"call": 0}}, r"sampled token 0 of call c0 is trained 2 times"),
        ({"call": {"episode": 9}}, r"call 1 \(c1\): it names episode 9, but there are only 2"),
        ({"call": {"temperature": 0.0}}, r"call 1 \(c1\): its temperature"),
        ({"call": {"policy_versions": [0]}}, r"call 1 \(c1\): 2 logprobs, but 1"),
    ],
)
def test_malformed_batches_are_named(changes, message, trainers):
    trainer = trainers("qwen2")
    with pytest.raises(TrainerError, match=message):
        trainer.step(two(changes))


def test_costs_are_measured_at_the_start(model_dir, context):
    trainer = make(model_dir, context, measure_costs=True)
    before = weights(trainer)
    info = trainer.policy.info()
    assert info.token_budget == trainer.policy.token_budget
    assert info.costs.seconds(PassShape(8, 64, 100)) > info.costs.seconds(PassShape(1, 4)) > 0
    assert all(p.grad is None for p in module_of(trainer).parameters())
    assert same(before, weights(make(model_dir, context)))


def test_the_fit_finds_the_costs_that_made_the_times(model_dir, trainers):
    module = module_of(trainers("qwen2"))
    assumed = assumed_costs(module, torch.device("cpu"))
    made = CostModel(per_pass=2e-3, per_token=1e-5, per_pair=3e-8, per_gathered=0.0)
    shapes = [PassShape(1, 16), PassShape(1, 128), PassShape(8, 16), PassShape(8, 16, 128)]
    shapes += [PassShape(1, 128, 128), PassShape(1, 256)]
    found = _fitted(shapes, [made.seconds(shape) for shape in shapes], assumed, pairs=True)
    for shape in (*shapes, PassShape(4, 500, 700)):
        assert found.seconds(shape) == pytest.approx(made.seconds(shape), rel=1e-6)
