"""Benchmark the parts of a training cycle, and check its logprobs, for a trainer and an engine.

Example: `cycle.py --trainer trl --engine vllm`. The demo's model learns GridWalk for `--steps`
steps on a real server. After each step one call is made before any other; it is the first one that
the new weights answer. Then transformers computes every recorded call again, from the weights that
were published for its policy version. The trainer's logprobs before its step are compared with the
engine's logprobs at sampling.

Medians over steps, in seconds: `rollout_s` (until the batch is full), `drain_s` (until the trainer
has it: waiting for late episodes, of which the demo has none, and merging), `step_s`, `publish_s`,
`load_s`, `seal_s` (the proof by both sides that the served weights are the published ones),
`first_call_s`. `publish_load_max_s` is that of the slowest step. `max_logprob_diff` is the largest
difference between a sampled token's logprob and that of transformers with the published weights,
over the versions in `versions_checked`: only the first and the last one if the channel publishes no
files. `max_trainer_diff` is the largest difference between engine and trainer on the same tokens,
before any of the step's updates.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from options import at_least
from recorded import recorded_episodes
from reporting import report

from agentjet.client import AsyncSwarmClient, Episode, EpisodeOutcome, Task
from agentjet.local import LocalServer
from ajet_core.protocol import FailureConfig, ServerState
from ajet_core.timeline import Call
from ajet_demo.agent import GridWalkAgent
from ajet_demo.orchestrate import adopt, terminate_as_interrupt
from ajet_demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    TEMPERATURE,
    eval_task_ids,
    run_config,
    train_task_ids,
)
from ajet_demo.tiny_model import create_tiny_model
from ajet_worlds.gridwalk import GridWalk

ROOT = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.01
# Names of the parts in a step's metrics.
PARTS = {
    "rollout_s": "rollout_seconds",
    "drain_s": "merge_seconds",
    "step_s": "update_seconds",
    "publish_s": "publish_seconds",
    "load_s": "load_seconds",
    "seal_s": "seal_seconds",
}


@dataclass
class Cycles:
    """The steps of one run, as its client sees them.

    :ivar weights: by policy version, a directory with its weights.
    """

    directory: Path
    seed: int
    first_calls: list[float] = field(default_factory=list)
    success_before: float = 0.0
    success_after: float = 0.0
    weights: dict[int, Path] = field(default_factory=dict)

    async def train(self, url: str, token: str, steps: int) -> None:
        """Evaluate, train `steps` steps, and evaluate again."""
        agent = GridWalkAgent(TEMPERATURE)
        self._keep_weights(0)
        async with AsyncSwarmClient(url, token) as client:
            self.success_before = await self._evaluate(client, agent)
            for step in range(1, steps + 1):
                await client.run_episodes_until_all_complete(
                    train_task_ids(self.seed, step),
                    agent,
                    episodes_per_task=ROLLOUTS_PER_TASK,
                    concurrency=EPISODES_PER_STEP,
                )
                await self._served(client, step)
                self.first_calls.append(await self._first_call(client, agent))
                self._keep_weights(step)
                print(f"step {step}", file=sys.stderr)
            self.success_after = await self._evaluate(client, agent)
        await agent.close()

    async def _evaluate(self, client: AsyncSwarmClient, agent: GridWalkAgent) -> float:
        async def succeeds(task: Task, episode: Episode) -> EpisodeOutcome:
            outcome = await agent(task, episode)
            return EpisodeOutcome(reward=outcome.components["success"])

        evaluated = await client.evaluate(
            eval_task_ids(self.seed), succeeds, tag="held-out", concurrency=EPISODES_PER_STEP
        )
        return evaluated.reward_mean or 0.0

    async def _served(self, client: AsyncSwarmClient, step: int) -> None:
        while True:
            status = await client.status()
            if status.step >= step and status.state is ServerState.ROLLING:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _first_call(self, client: AsyncSwarmClient, agent: GridWalkAgent) -> float:
        walk = OneCall("first-call")
        async with client.episode(walk.task_id, kind="eval") as episode:
            began = time.monotonic()
            await agent.walk(walk, episode)
            seconds = time.monotonic() - began
            await episode.end(0.0)
        return seconds

    def _keep_weights(self, step: int) -> None:
        """Copy the weights of a step, because the server deletes them two steps later."""
        published = self.directory / "server" / "weights" / f"v{step:09d}"
        if published.is_dir():
            kept = self.directory / "kept" / published.name
            shutil.copytree(published, kept)
            self.weights[step] = kept


class OneCall(GridWalk):
    """A walk that ends after the model's first answer."""

    def call(self, name: str, arguments: str) -> str:
        answer = super().call(name, arguments)
        self.reject()
        return answer


def recorded_calls(directory: Path) -> Iterator[Call]:
    """Iterate over all finished calls of a run."""
    for episode in recorded_episodes(directory / "server"):
        yield from (call for call in episode.calls if call.finish_reason != "abort")


def logprob_differences(calls: Iterator[Call], weights: dict[int, Path]) -> dict[int, float]:
    """Return the largest difference of a logprob to that of transformers, by policy version."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    by_version: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        versions = set(call.policy_versions)
        if len(versions) == 1 and versions <= weights.keys():
            by_version[versions.pop()].append(call)
    found = {}
    for version, sampled in sorted(by_version.items()):
        model = AutoModelForCausalLM.from_pretrained(weights[version], dtype=torch.float32).eval()
        worst = 0.0
        for call in sampled:
            start = call.prompt_length
            with torch.no_grad():
                logits = model(torch.tensor([call.token_ids]), use_cache=False).logits[0]
            logprobs = torch.log_softmax(logits[start - 1 : -1] / (call.temperature or 1.0), -1)
            chosen = logprobs.gather(1, torch.tensor(call.sampled_ids)[:, None])[:, 0]
            worst = max(worst, float((chosen - torch.tensor(call.logprobs)).abs().max()))
        found[version] = worst
    return found


def measure(
    directory: Path, *, trainer: str, engine: str, steps: int, seed: int, channel: str | None
) -> dict[str, object]:
    """Run one pair in a new directory."""
    model = directory / "model"
    if not model.is_dir():
        create_tiny_model(model, seed=seed)
    cycles = Cycles(directory, seed)
    began = time.monotonic()
    with terminate_as_interrupt(), LocalServer(directory) as server:
        config = run_config(model, seed, engine=engine, trainer=trainer)
        # The measurements do not depend on what is learnt, and no operator would resume a paused
        # run.
        failures = FailureConfig(pause_on=())
        config = config.model_copy(update={"weight_channel": channel, "failures": failures})
        server.start_run(config)
        boot = time.monotonic() - began
        asyncio.run(cycles.train(server.client.url, server.client_token, steps))
        adopt(server.stop_run(), directory / "trained_model")
    cycles.weights.setdefault(0, model)
    cycles.weights.setdefault(steps, directory / "trained_model")
    lines = (directory / "server" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    trained: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len(trained) == steps, f"{len(trained)} steps instead of {steps}"
    differences = logprob_differences(recorded_calls(directory), cycles.weights)
    medians = {
        ours: statistics.median(step[name] for step in trained) for ours, name in PARTS.items()
    }
    slowest = max(step["publish_seconds"] + step["load_seconds"] for step in trained)
    return {
        "benchmark": "cycle",
        "trainer": trainer,
        "engine": engine,
        "channel": channel or "first",
        "steps": steps,
        "boot_s": round(boot, 2),
        **{name: round(value, 4) for name, value in medians.items()},
        "first_call_s": round(statistics.median(cycles.first_calls), 4),
        "publish_load_max_s": round(slowest, 4),
        "success_before": cycles.success_before,
        "success_after": cycles.success_after,
        "max_logprob_diff": max(differences.values()),
        "max_trainer_diff": max(step["logprob_gap"] for step in trained),
        "versions_checked": sorted(differences),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trainer", default="torch")
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--steps", type=at_least(1), default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="model of the demo, created before")
    parser.add_argument("--channel", help="channel to publish weights by, if not the default")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    # Environments of engines and trainers are searched for above the run directory.
    (ROOT / "runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cycle-", dir=ROOT / "runs") as root:
        directory = Path(root)
        if options.model is not None:
            shutil.copytree(options.model, directory / "model")
        result = measure(
            directory,
            trainer=options.trainer,
            engine=options.engine,
            steps=options.steps,
            seed=options.seed,
            channel=options.channel,
        )
    report(result, options.output)


if __name__ == "__main__":
    main()
