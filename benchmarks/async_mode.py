"""What asynchronous rollouts are worth where tools are slow: steps an hour, and what is learnt in them.

The demo's model learns GridWalk twice from the same weights, with the same tasks and as many steps: once with the default
configuration, once with `rollout.mode = "async"`, truncated importance weights and `rollout.max_staleness = --bound`. Each
reply of the tool takes a time of a Pareto distribution, cut off at a longest one, the same for the same move of the
same rollout of a task in both. One client sends one stream of episodes, with more at a time than either mode has places for.

`seconds_*` are from the first claim to the weights of the last step being served, so that filling and draining the
pipeline is part of them. `success_*` is of sampled walks of held-out tasks with these weights. `waited_share_*`
is the share of the time in which no step was trained, because its batch was not full.

The JSON line comes last; `--output` keeps it, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from reporting import report

from ajet_core.client import AsyncSwarmClient, Episode, EpisodeOutcome, SwarmClient, Task
from ajet_core.demo.agent import GridWalkAgent
from ajet_core.demo.gridwalk import GridWalk
from ajet_core.demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    TEMPERATURE,
    run_config,
    train_task_ids,
)
from ajet_core.demo.server_child import DemoServer
from ajet_core.demo.tiny_model import create_tiny_model
from ajet_core.protocol import RolloutConfig, RunConfig, ServerState, ServerStatus

# Seconds: the least, the most, and how heavy the tail between them is.
SHORTEST, LONGEST, TAIL = 0.1, 6.0, 1.1
EVAL_TASKS = 256
POLL_SECONDS = 0.05


class SlowTools(GridWalkAgent):
    """The demo's agent in a world in which most tool calls are quick, and some are not.

    :param seed: of the delays.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(TEMPERATURE)
        self._seed = seed
        self._rollouts: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._delays: dict[GridWalk, random.Random] = {}
        self.slept = 0.0

    async def walk(self, walk: GridWalk, episode: Episode) -> None:
        number = next(self._rollouts[walk.task_id])
        self._delays[walk] = random.Random(f"{self._seed}/{walk.task_id}/{number}")
        try:
            await super().walk(walk, episode)
        finally:
            del self._delays[walk]

    async def use_tool(self, walk: GridWalk, name: str, arguments: str) -> str:
        delay = min(LONGEST, SHORTEST * self._delays[walk].paretovariate(TAIL))
        self.slept += delay
        await asyncio.sleep(delay)
        return await super().use_tool(walk, name, arguments)


def configured(model: Path, seed: int, bound: int | None) -> RunConfig:
    """The demo's run; asynchronous if there is a bound of staleness."""
    config = run_config(model, seed)
    if bound is None:
        return config
    algorithm = config.algorithm.model_copy(update={"importance": "truncated"})
    rollout = RolloutConfig(mode="async", max_staleness=bound)
    return config.model_copy(update={"algorithm": algorithm, "rollout": rollout})


def lacks_tasks(status: ServerStatus) -> bool:
    """Whether the batch will not be full without more tasks."""
    batch, rollout = status.batch, status.rollout
    if batch is None or rollout is None:
        return False
    idle = status.state is ServerState.ROLLING and rollout.training_step is None
    return idle and batch.ready < batch.needed and not batch.open_episodes


async def train(
    url: str, token: str, observer: SwarmClient, *, seed: int, steps: int, concurrency: int
) -> dict[str, float]:
    """Roll out the tasks of `steps` batches, wait for the last step, and evaluate its weights."""
    slow, quick = SlowTools(seed), GridWalkAgent(TEMPERATURE)
    tasks = [task_id for step in range(1, steps + 1) for task_id in train_task_ids(seed, step)]

    async def succeeds(task: Task, episode: Episode) -> EpisodeOutcome:
        outcome = await quick(task, episode)
        return EpisodeOutcome(reward=outcome.components["success"])

    async with AsyncSwarmClient(url, token) as client:

        async def roll_out(task_ids: Sequence[str]) -> int:
            rolled = await client.run_episodes_until_all_complete(
                task_ids, slow, episodes_per_task=ROLLOUTS_PER_TASK, concurrency=concurrency
            )
            return len(rolled.outcomes)

        began = time.monotonic()
        episodes = await roll_out(tasks)
        more = itertools.count()
        while (status := await asyncio.to_thread(observer.status)).step < steps:
            if lacks_tasks(status):
                # On a busy machine heartbeats are late, and tasks lose places and get more episodes than they need.
                episodes += await roll_out([f"train-{seed}-more-{next(more)}"])
            await asyncio.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
        held_out = [f"eval-{seed}-{i}" for i in range(EVAL_TASKS)]
        evaluated = await client.evaluate(held_out, succeeds, tag="held-out")
    await asyncio.gather(slow.close(), quick.close())
    return {
        "seconds": seconds,
        "success": evaluated.reward_mean or 0.0,
        "tool_seconds": slow.slept / episodes,
        "extra_tasks": float(next(more)),
    }


def measure(
    model: Path, directory: Path, *, seed: int, steps: int, bound: int | None, concurrency: int
) -> dict[str, float]:
    """Train in one mode, on a server of its own."""
    directory.mkdir()
    own = directory / "model"
    shutil.copytree(model, own)
    with DemoServer(directory) as server:
        server.client.sync_train_config(configured(own, seed, bound))
        server.client.start_engine()
        found = asyncio.run(
            train(
                server.client.url,
                server.client_token,
                server.client,
                seed=seed,
                steps=steps,
                concurrency=concurrency,
            )
        )
        server.stop_run()
    lines = (directory / "server" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    trained = [json.loads(line) for line in lines]
    assert len(trained) == steps, f"{len(trained)} steps instead of {steps}"

    def total(name: str) -> float:
        return float(sum(step[name] for step in trained))

    found |= {
        "max_staleness": max(step["staleness_max"] for step in trained),
        "mean_staleness": total("staleness_mean") / steps,
        "tokens_stale": total("tokens_stale"),
        "tokens_per_second": total("tokens_trained") / found["seconds"],
        "waited_share": total("rollout_seconds") / found["seconds"],
        "update_share": total("update_seconds") / found["seconds"],
        "forward_share": total("forward_seconds") / found["seconds"],
    }
    print(json.dumps({"bound": bound, **found}), file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bound", type=int, default=2, help="rollout.max_staleness")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    # As many as asynchronous rollouts may have under way, and a batch more that waits.
    concurrency = EPISODES_PER_STEP * (options.bound + 2)
    with tempfile.TemporaryDirectory(prefix="ajet-async-") as root:
        model = Path(root) / "model"
        create_tiny_model(model, seed=options.seed)
        modes = {
            mode: measure(
                model,
                Path(root) / mode,
                seed=options.seed,
                steps=options.steps,
                bound=bound,
                concurrency=concurrency,
            )
            for mode, bound in (("sync", None), ("async", options.bound))
        }
    sync, asynchronous = modes["sync"], modes["async"]
    figures = (
        "success",
        "seconds",
        "tokens_per_second",
        "waited_share",
        "update_share",
        "forward_share",
    )
    report(
        {
            "speedup": round(sync["seconds"] / asynchronous["seconds"], 3),
            **{
                f"{name}_{mode}": round(found[name], 3)
                for name in figures
                for mode, found in modes.items()
            },
            "max_staleness": asynchronous["max_staleness"],
            "mean_staleness": round(asynchronous["mean_staleness"], 3),
            "bound": options.bound,
            "steps": options.steps,
            "concurrency": concurrency,
            "extra_tasks": [found["extra_tasks"] for found in modes.values()],
            "tool_seconds_per_episode": round(asynchronous["tool_seconds"], 3),
        },
        options.output,
    )


if __name__ == "__main__":
    main()
