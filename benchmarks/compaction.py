"""Benchmark training through compaction and sub-agents: `compaction.py --seeds 3`.

Two worlds (`compaction_worlds.py`): in `compacting`, the agent's context is so short that it has to
summarise it every two moves; in `delegating`, a leader sends sub-agents with conversations of their
own. Each seed is a run of a new tiny model on a real server. Success is measured on held-out tasks.
Afterwards every trained step is prepared again from the run's records, as `ajet replay` does:

- `lost`: sampled tokens of the batches that no timeline trains, and `twice`: those that several do;
- `computed_over_unique`: tokens that the trainer computed, divided by the distinct ones of each
  task's episodes that have to be computed;
- `raw_over_unique`: the same if each call were a sample of its own;
- `notes`: the share of trained tokens that belong to notes (`compacting`), or to sub-agents.

`forge` is one long prefix with many short branches, as a large agent tree has. Its batch is trained
merged and unmerged, each in a process of its own: `token_ratio`; `speedup` in CPU time of one
thread, each the best of `--repetitions`; `peak_mib`, memory of the process above what it takes
before training; and `to_plain`, the time of the merged batch divided by that of one plain sequence
with as many tokens. `rel_grad_diff` is the relative difference of the two gradients.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from ajet_backend_torch.policy import TrainedPolicy
from ajet_backend_torch.settings import TorchTrainerSettings
from compaction_worlds import ASKS_FOR_NOTE, WALKER, CompactingGrid, DelegatingGrid
from options import at_least
from reporting import report
from train_plan import PLAIN, UNMERGED, VOCABULARY, accumulate, gradient, make_case
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentjet.client import AsyncSwarmClient
from agentjet.local import LocalServer
from ajet_cli.replay.recorded import Preparation, RecordedRun
from ajet_core.interfaces import ComponentSettings, TrainerInfo, WorkerContext, World
from ajet_core.plugin import PluginManager
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import Call
from ajet_demo.orchestrate import terminate_as_interrupt
from ajet_installation.settings import StoreSettings
from ajet_server.store.chosen_store import make_store
from ajet_worlds.learning import Learned, learn
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

WORLDS: dict[str, type[World]] = {"compacting": CompactingGrid, "delegating": DelegatingGrid}
MERGED = "tree"
SEED = 1


def train(name: str, seed: int, steps: int | None, eval_tasks: int) -> dict[str, Any]:
    """Train a new model in a world, and account for all tokens."""
    world = WORLDS[name](ComponentSettings())
    with tempfile.TemporaryDirectory(prefix="ajet-compaction-") as root:
        directory = Path(root)
        create_tiny_model(directory / "model", worlds=[world], seed=seed)
        config = run_config(world, directory / "model", seed=seed)
        with LocalServer(directory) as server:
            server.start_run(config)

            async def work() -> Learned:
                async with AsyncSwarmClient(server.client.url, server.client_token) as client:
                    return await learn(
                        world,
                        client,
                        server.client,
                        seed=seed,
                        steps=steps or world.recipe.steps,
                        eval_tasks=eval_tasks,
                    )

            learned = asyncio.run(work())
            server.stop_run()
        tokens = asyncio.run(account(directory / "server"))
    print(
        f"{name} seed {seed}: {learned.before:.2f} -> {learned.after:.2f} in "
        f"{learned.seconds:.0f} s, {dict(tokens)}",
        file=sys.stderr,
    )
    return {"before": learned.before, "after": learned.after, "tokens": tokens}


async def account(run_dir: Path) -> Counter[str]:
    """Count the tokens of all trained steps."""
    plugins = PluginManager()
    run = await RecordedRun.open(run_dir, make_store(StoreSettings(), plugins, run_dir))
    trainer = TrainerInfo(parameters=0, trainable_parameters=0, device="cpu", trees=True)
    total: Counter[str] = Counter()
    try:
        preparation = Preparation.of(run.config, plugins, run_dir)
        for number in range(1, run.last_step + 1):
            step = await run.step(number)
            data = preparation.data(step, trainer)
            batch = data.batch
            trained: Counter[tuple[int, int]] = Counter()
            for tree in batch.trees:
                for segment in tree.segments:
                    for span in segment.spans:
                        trained.update((span.call, span.start + i) for i in range(span.length))
            calls = {
                call.call_id: call
                for its_calls in step.calls.values()
                for call in its_calls
                if call.finish_reason != "abort"
            }
            sampled = sum(len(call.sampled_ids) for call in calls.values())
            total["lost"] += sampled - len(trained)
            total["twice"] += sum(count > 1 for count in trained.values())
            total["sampled"] += sampled
            total["rewriting"] += sum(
                len(call.sampled_ids) for call in calls.values() if rewrites(call)
            )
            total["raw"] += data.plan.costs["separate"].tokens
            total["unique"] += data.plan.costs["group_tree"].tokens
            total["computed"] += int(step.record.metrics["tokens_planned"])
    finally:
        await run.close()
    return total


def rewrites(call: Call) -> bool:
    """Return whether a call is a note or a sub-agent's."""
    conversation = call.conversation()
    return call.agent == WALKER or conversation[-1].text.content == ASKS_FOR_NOTE


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the seeds of a world."""
    tokens: Counter[str] = Counter()
    for one in runs:
        tokens.update(one["tokens"])
    return {
        "success_before": [round(one["before"], 4) for one in runs],
        "success_after": [round(one["after"], 4) for one in runs],
        "mean": round(statistics.mean(one["after"] for one in runs), 4),
        "worst": round(min(one["after"] for one in runs), 4),
        "sampled": tokens["sampled"],
        "lost": sum(one["tokens"]["lost"] for one in runs),
        "twice": tokens["twice"],
        "computed_over_unique": round(tokens["computed"] / tokens["unique"], 4),
        "raw_over_unique": round(tokens["raw"] / tokens["unique"], 4),
        "notes": round(tokens["rewriting"] / tokens["sampled"], 4),
    }


def forge(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the merged and the unmerged batch, and a plain sequence."""
    with tempfile.TemporaryDirectory(prefix="ajet-forge-") as root:
        torch.manual_seed(SEED)
        config = Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=options.hidden,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=options.hidden * 3,
            max_position_embeddings=32768,
            initializer_range=0.1,
            tie_word_embeddings=True,
        )
        Qwen2ForCausalLM(config).save_pretrained(root)
        found = {}
        for way in (MERGED, UNMERGED, PLAIN):
            command = [sys.executable, __file__, "--forge", way, "--model", root]
            for name in ("prefix", "branches", "branch", "repetitions"):
                command += [f"--{name}", str(getattr(options, name))]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[way] = json.loads(output.splitlines()[-1])
            print(f"forge {way}: {found[way]['seconds']:.2f} s", file=sys.stderr)
    merged, unmerged = found[MERGED], found[UNMERGED]
    first, second = (torch.tensor(one.pop("gradient")) for one in (merged, unmerged))
    return {
        "prefix": options.prefix,
        "branches": options.branches,
        "branch": options.branch,
        "tokens": {way: one["tokens"] for way, one in found.items()},
        "token_ratio": round(unmerged["tokens"] / merged["tokens"], 2),
        "seconds": {way: round(one["seconds"], 3) for way, one in found.items()},
        "speedup": round(unmerged["seconds"] / merged["seconds"], 2),
        "to_plain": round(merged["seconds"] / found[PLAIN]["seconds"], 2),
        "peak_mib": {way: one["peak_mib"] for way, one in found.items()},
        "rel_grad_diff": float((first - second).norm() / second.norm()),
    }


def forge_in_this_process(options: argparse.Namespace) -> dict[str, Any]:
    """Train the batch in one way; return its time, memory and gradient."""
    torch.set_num_threads(1)
    dice = random.Random(SEED)

    def text(count: int) -> list[int]:
        return dice.choices(range(2, VOCABULARY), k=count)

    prefix = text(options.prefix)
    episode = [(prefix, text(options.branch)) for _ in range(options.branches)]
    with tempfile.TemporaryDirectory() as scratch:
        policy = TrainedPolicy(
            ModelConfig(path=options.model),
            AlgorithmConfig(),
            TorchTrainerSettings(device="cpu", measure_costs=False),
            torch.device("cpu"),
            WorkerContext(run_dir=Path(scratch)),
        )
    batch = make_case([episode], policy).batches[options.forge]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    with policy.training(0):
        for _ in range(options.repetitions):
            policy.optimiser.zero_grad()
            started = time.process_time()
            update = accumulate(policy, batch)
            times.append(time.process_time() - started)
        found = gradient(policy).tolist() if options.forge != PLAIN else []
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": min(times),
        "tokens": update.totals.processed,
        "peak_mib": round((peak - before) / 1024),
        "gradient": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=at_least(1), default=3, help="number of seeds, from 0 on")
    parser.add_argument("--steps", type=at_least(1), help="steps instead of those of the recipes")
    parser.add_argument("--eval-tasks", type=at_least(1), default=128)
    parser.add_argument("--prefix", type=at_least(1), default=2048, help="tokens of the prefix")
    parser.add_argument("--branches", type=at_least(2), default=256)
    parser.add_argument("--branch", type=at_least(1), default=16, help="tokens of a branch")
    parser.add_argument("--hidden", type=at_least(16), default=128)
    parser.add_argument("--repetitions", type=at_least(1), default=3)
    parser.add_argument("--only", choices=[*WORLDS, "forge"], help="measure only this")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    parser.add_argument("--forge", choices=(MERGED, UNMERGED, PLAIN), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.forge:
        print(json.dumps(forge_in_this_process(options)))
        return
    result: dict[str, Any] = {"benchmark": "compaction", "seeds": options.seeds}
    with terminate_as_interrupt():
        for name in WORLDS:
            if options.only in {None, name}:
                seeds = range(options.seeds)
                result[name] = summary(
                    [train(name, seed, options.steps, options.eval_tasks) for seed in seeds]
                )
        if options.only in {None, "forge"}:
            result["forge"] = forge(options)
        report(result, options.output)


if __name__ == "__main__":
    main()
