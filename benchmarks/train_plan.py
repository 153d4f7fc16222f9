"""Benchmark training each distinct token once: the time of all layouts of three batches.

The time is that of forward and backward passes.

Cases: one linear conversation of 20 turns; four agents that share a system prompt and branch (32
calls); a group of eight rollouts of one prompt. "Unmerged" treats each call as a separate sample of
the same trainer. It is measured sorted by length and batched as the trainer batches (reported with
its padding), and again in small passes with less padding; `speedups_over_best_unmerged` are
relative to the faster of the two. Times are medians over repetitions that alternate between all
layouts, so that changes of the machine's load affect all alike. On the CPU they are CPU time of one
thread.

The JSON line comes last; `--output` also writes it to a file. With `--device cuda` the model is
larger, in bfloat16, contexts have up to 16k tokens, and each layout's peak memory is measured too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from ajet_backend_torch.policy import TrainedPolicy
from ajet_backend_torch.settings import TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from ajet_backend_torch.update import BatchUpdate
from options import at_least
from transformers import Qwen2Config, Qwen2ForCausalLM

from ajet_core.interfaces import WorkerContext
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import (
    LAYOUTS,
    Call,
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
    lay_out,
)
from ajet_server.embedded.trie import TokenTrie
from ajet_training.planner import LayoutPlan, choose_plan

VOCABULARY = 448
UNMERGED = "separate"
SMALL_UNMERGED = "separate in small passes"
SMALL_PASSES = 1024
PLAIN = "plain"

Episode = list[tuple[list[int], list[int]]]
"""Prompt and completion of each call."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of tokens in the parts of a case; the defaults are for the CPU."""

    prompt: int = 150
    system: int = 200
    task: int = 40
    group_prompt: int = 250
    answer: int = 16
    result: int = 20

    def times(self, factor: int) -> Sizes:
        return Sizes(**{name: size * factor for name, size in asdict(self).items()})


def linear(sizes: Sizes, text: Callable[[int], list[int]]) -> list[Episode]:
    """Return one conversation of 20 turns."""
    ids, calls = text(sizes.prompt), []
    for _ in range(20):
        answer = text(sizes.answer)
        calls.append((list(ids), answer))
        ids += answer + text(sizes.result)
    return [calls]


def branching(sizes: Sizes, text: Callable[[int], list[int]]) -> list[Episode]:
    """Return four agents with one system prompt, which branch after their third turn."""
    system, calls = text(sizes.system), []

    def turns(ids: list[int], count: int) -> list[int]:
        for _ in range(count):
            answer = text(sizes.answer)
            calls.append((list(ids), answer))
            ids = ids + answer + text(sizes.result)
        return ids

    for _ in range(4):
        ids = turns(system + text(sizes.task), 2)
        turns(ids, 3)
        turns(ids, 3)
    return [calls]


def group(sizes: Sizes, text: Callable[[int], list[int]]) -> list[Episode]:
    """Return eight rollouts of one prompt, with six turns each."""
    prompt, episodes = text(sizes.group_prompt), []
    for _ in range(8):
        ids, calls = list(prompt), []
        for _ in range(6):
            answer = text(sizes.answer)
            calls.append((list(ids), answer))
            ids += answer + text(sizes.result)
        episodes.append(calls)
    return episodes


CASES = {"linear": linear, "branching": branching, "group": group}


@dataclass(frozen=True)
class Case:
    """A batch in all its layouts.

    :param batches: by layout; `PLAIN` is one sequence with as many tokens as the batch has distinct
        ones.
    """

    plan: LayoutPlan
    batches: dict[str, TrainBatch]


def make_case(episodes: list[Episode], policy: TrainedPolicy) -> Case:
    """Return all layouts of the episodes, and the planner's choice."""
    trees, first_calls, calls = [], [], []
    for number, made in enumerate(episodes):
        trie = TokenTrie(str(number))
        for index, (prompt, answer) in enumerate(made):
            behaviour, versions = [-6.0] * len(answer), [0] * len(answer)
            name = f"{number}-{index}"
            trie.add(
                Call(name, str(number), index, prompt, answer, behaviour, versions, 1.0, "stop")
            )
        tree = trie.tree()
        trees.append(tree)
        first_calls.append(len(calls))
        calls += [TrainCall.of(call, number, 1.0 - number % 3) for call in tree.calls]
    # Avoid advantages of 0, so that every call is trained.
    calls = [
        TrainCall(c.call_id, c.episode, c.advantage or 0.5, 1.0, c.logprobs, c.policy_versions)
        for c in calls
    ]
    options = {str(layout): [lay_out(layout, trees, first_calls)] for layout in LAYOUTS}
    plan = choose_plan(options, policy.costs, policy.token_budget)
    rows = [TrainEpisode(str(i), "g", 0.0) for i in range(len(episodes))]
    raw = sum(tree.tokens_raw for tree in trees)

    def batch(laid_out: list[TrainTree], of: list[TrainCall]) -> TrainBatch:
        return TrainBatch("b", 1, rows, of, laid_out, raw)

    batches = {name: batch([t for g in options[name] for t in g], calls) for name in options}
    distinct = sum(tree.tokens for tree in batches["group_tree"].trees)
    sampled = sum(tree.tokens_trained for tree in batches["group_tree"].trees)
    ids = random.Random(1).choices(range(2, VOCABULARY), k=distinct)
    one = TrainCall("plain", 0, 1.0, 1.0, [-6.0] * sampled, [0] * sampled)
    places = [TrainSpan(1 + round(i * (distinct - 1) / sampled), 0, i, 1) for i in range(sampled)]
    batches[PLAIN] = batch([TrainTree([TrainSegment(-1, ids, places)])], [one])
    return Case(plan, batches)


def accumulate(policy: TrainedPolicy, batch: TrainBatch) -> BatchUpdate:
    """Run forward and backward passes of a whole batch, including scheduling and packing."""
    update = BatchUpdate(policy, AlgorithmConfig(), batch)
    (minibatch,) = update.minibatches(random.Random(0))
    update.accumulate(minibatch, gap_version=None, report=True)
    return update


def gradient(policy: TrainedPolicy) -> torch.Tensor:
    return torch.cat([m.grad.flatten().cpu() for m in policy.optimiser.masters.values()])


def seconds(policy: TrainedPolicy, batch: TrainBatch, cuda: bool) -> float:
    """Return the time of one forward and backward pass; gradients are discarded."""
    clock = time.perf_counter if cuda else time.process_time
    if cuda:
        torch.cuda.synchronize()
    started = clock()
    accumulate(policy, batch)
    if cuda:
        torch.cuda.synchronize()
    taken = clock() - started
    policy.optimiser.zero_grad()
    return taken


def differences(policy: TrainedPolicy, case: Case) -> tuple[float, float]:
    """Return the largest logprob difference and relative gradient difference over all layouts."""
    logprob, relative = 0.0, 0.0
    with policy.training(0):
        reference = accumulate(policy, case.batches[UNMERGED]).logprobs()
        expected = gradient(policy)
        for name in LAYOUTS[1:]:
            policy.optimiser.zero_grad()
            found = accumulate(policy, case.batches[name]).logprobs()
            got = gradient(policy)
            relative = max(relative, float((got - expected).norm() / expected.norm()))
            for one, other in zip(found, reference, strict=True):
                gaps = (abs(a - b) for a, b in zip(one, other, strict=True))
                logprob = max(logprob, *gaps)
    return logprob, relative


def measure_case(policy: TrainedPolicy, case: Case, repetitions: int) -> dict[str, object]:
    """Return all figures of one case."""
    cuda = policy.device.type == "cuda"
    policy.optimiser.zero_grad()
    logprob, relative = differences(policy, case)
    peaks = {}
    # Measure equal layouts only once.
    same = {
        name: next(n for n in case.batches if case.batches[n].trees == batch.trees)
        for name, batch in case.batches.items()
    }
    runs = {
        name: (case.batches[name], policy.token_budget) for name in dict.fromkeys(same.values())
    }
    if policy.token_budget > SMALL_PASSES:
        runs[SMALL_UNMERGED] = case.batches[UNMERGED], SMALL_PASSES
    times: dict[str, list[float]] = {name: [] for name in runs}
    budget = policy.token_budget
    with policy.training(0):
        for repetition in range(repetitions + 1):
            for name, (batch, allowed) in runs.items():
                policy.token_budget = allowed
                if cuda:
                    torch.cuda.reset_peak_memory_stats()
                taken = seconds(policy, batch, cuda)
                if cuda:
                    peaks[name] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
                if repetition:
                    times[name].append(taken)
    policy.token_budget = budget
    measured = {name: statistics.median(found) for name, found in times.items()}
    medians = {name: measured[same[name]] for name in case.batches}
    chosen = medians[case.plan.chosen]
    best = min(medians[name] for name in LAYOUTS)
    unmerged = min(medians[UNMERGED], measured.get(SMALL_UNMERGED, medians[UNMERGED]))
    shapes = {}
    for name in (*LAYOUTS, PLAIN):
        update = BatchUpdate(policy, AlgorithmConfig(), case.batches[name])
        (minibatch,) = update.minibatches(random.Random(0))
        passes = update.schedule(minibatch)
        padded = sum(part.shape.tokens for part in passes.passes)
        shapes[name] = {
            "tokens": passes.tokens,
            "padded": padded,
            "passes": len(passes.passes),
            "recomputed": sum(part.tokens for part in passes.passes if not part.keeps),
        }
    return {
        "chosen": case.plan.chosen,
        "speedup": round(medians[UNMERGED] / chosen, 2),
        "speedups": {name: round(medians[UNMERGED] / medians[name], 2) for name in LAYOUTS},
        "speedup_over_best_unmerged": round(unmerged / chosen, 2),
        "regret": round(chosen / best - 1, 4),
        "to_plain_sequence": round(chosen / medians[PLAIN], 2),
        "seconds": {name: round(value, 4) for name, value in (medians | measured).items()},
        "predicted": {
            name: round(cost.seconds or 0.0, 4) for name, cost in case.plan.costs.items()
        },
        "shapes": shapes,
        "peak_memory_gib": peaks or None,
        "max_logprob_diff": logprob,
        "rel_grad_diff": relative,
    }


def make_model(directory: Path, options: argparse.Namespace, dtype: str) -> str:
    torch.manual_seed(0)
    heads = max(2, options.hidden // 128) if options.device == "cuda" else 4
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if options.device != "cuda" else max(1, heads // 4),
        intermediate_size=options.hidden * 3,
        max_position_embeddings=32768,
        initializer_range=0.1 if options.device != "cuda" else 0.02,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(directory)
    return str(directory)


def measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Return all figures of one run."""
    wide = options.device == "cuda"
    dtype = options.dtype or ("bfloat16" if wide else "float32")
    path = make_model(directory / "model", options, dtype)
    trainer = TorchTrainer(
        TorchTrainerSettings(device=options.on or options.device, gradient_checkpointing=False),
        WorkerContext(run_dir=directory, seed=0),
    )
    started = time.perf_counter()
    info = trainer.start(
        ModelConfig(path=path, dtype=dtype), AlgorithmConfig(token_budget=options.token_budget)
    )
    started = time.perf_counter() - started
    policy = trainer.policy
    sizes = Sizes().times(options.scale)
    results = {}
    for name, make in CASES.items():
        dice = random.Random(0)

        def text(count: int, dice: random.Random = dice) -> list[int]:
            return dice.choices(range(2, VOCABULARY), k=count)

        case = make_case(make(sizes, text), policy)
        results[name] = measure_case(policy, case, options.repetitions)
        print(json.dumps({name: results[name]}, indent=1), flush=True)
    cuda = torch.cuda.is_available() and info.device != "cpu"
    return {
        "benchmark": "train_plan",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "torch": torch.__version__,
        "device": info.device,
        "dtype": dtype,
        "hidden": options.hidden,
        "layers": options.layers,
        "trees": info.trees,
        "token_budget": info.token_budget,
        "costs": asdict(info.costs) if info.costs else None,
        "start_seconds": round(started, 2),
        **{f"{name}_speedup": result["speedup"] for name, result in results.items()},
        "speedups_over_best_unmerged": {
            name: result["speedup_over_best_unmerged"] for name, result in results.items()
        },
        "planner_regret": max(float(str(result["regret"])) for result in results.values()),
        "max_logprob_diff": max(float(str(r["max_logprob_diff"])) for r in results.values()),
        "rel_grad_diff": max(float(str(r["rel_grad_diff"])) for r in results.values()),
        "to_plain_sequence": {name: r["to_plain_sequence"] for name, r in results.items()},
        "peak_memory_gib": {name: r["peak_memory_gib"] for name, r in results.items()}
        if cuda
        else None,
        "unmerged": {
            name: r["shapes"][UNMERGED]  # type: ignore[index]
            for name, r in results.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--on", help="run the cases of --device cuda on this device (a dry run)")
    parser.add_argument("--hidden", type=at_least(1), help="default: 128, or 2048 with cuda")
    parser.add_argument("--layers", type=at_least(1), help="default: 4, or 16 with cuda")
    parser.add_argument(
        "--scale", type=at_least(1), help="factor of all lengths; default: 1, or 18 with cuda"
    )
    parser.add_argument("--dtype", choices=["bfloat16", "float32"])
    parser.add_argument("--token-budget", type=at_least(1), help="default: the trainer's")
    parser.add_argument("--repetitions", type=at_least(1), default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    wide = options.device == "cuda"
    options.hidden = options.hidden or (2048 if wide else 128)
    options.layers = options.layers or (16 if wide else 4)
    options.scale = options.scale or (18 if wide else 1)
    with tempfile.TemporaryDirectory(prefix="ajet-plan-") as directory:
        line = json.dumps(measure(options, Path(directory)))
    if options.output is not None:
        options.output.write_text(line + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
