"""Benchmark learning by `ajet exec`: a program without code of agentjet walks to a goal.

`exec_walk/walk.py` is an agent of 57 lines of the standard library. Each episode runs it in a
sandbox of its own with the tiny model of the world ``grid``, and a second sandbox runs
`exec_walk/tests/grade.py` for the reward. Success is measured on held-out tasks before the first
step and with the last weights. Each seed is a separate run of a new model, on a real server; with
`--runs FILE` an interrupted benchmark continues.

The JSON line comes last, as that of `learning.py`; `--output` also writes it to a file, with date
and hardware, and `--plot` plots it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Literal

from kept import KeptResults
from learning import draw, line, summary
from options import at_least
from reporting import report

from agentjet import AsyncSwarmClient, Task
from agentjet.agents import task_of
from agentjet.client import EpisodeFailure, EpisodeResult
from agentjet.local import LocalServer
from ajet_core.errors import AjetError
from ajet_exec import BoxedProgram, ProgramTerms, load_sandbox
from ajet_worlds import load_world
from ajet_worlds.gridwalk import GRID_SIZE, MAX_MOVES, GridWalk
from ajet_worlds.learning import Learned
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

ROOT = Path(__file__).resolve().parents[1]
WALK = Path(__file__).resolve().parent / "exec_walk"
PYTHON = "/usr/bin/python3"
WORLD = "grid"
# Sandboxes at once: more only wait for the cores.
AT_ONCE = 16
EVAL_TASKS = 64
MAX_TOKENS = 32


def walk_task(task_id: str) -> Task:
    """Return a task of the world as a row of a dataset."""
    walk = GridWalk(task_id)
    places = {"start": walk.position, "goal": walk.goal, "size": GRID_SIZE}
    return task_of({"id": task_id, **places, "most_moves": MAX_MOVES, "max_tokens": MAX_TOKENS})


def terms() -> ProgramTerms:
    """Return how the program is run."""
    return ProgramTerms(
        argv=(PYTHON, "/agent/walk.py"),
        reward=(PYTHON, "/tests/grade.py"),
        read_only={"/agent": WALK},
        tests=WALK / "tests",
        timeout=60.0,
    )


async def learn(client: AsyncSwarmClient, seed: int, steps: int, eval_tasks: int) -> Learned:
    """Train a rolling run for some steps, and evaluate before and after."""
    world = load_world(WORLD)
    batch = world.recipe.batch
    by_version: dict[int, list[float]] = defaultdict(list)

    async def roll_out(
        program: BoxedProgram, split: str, count: int, episodes: int, kind: Literal["train", "eval"]
    ) -> list[float]:
        successes = []

        def note(result: EpisodeResult | EpisodeFailure) -> None:
            if isinstance(result, EpisodeFailure):
                return
            success = result.outcome.components["success"]
            successes.append(success)
            if kind == "train":
                version = result.episode.policy_version
                if version not in by_version and by_version:
                    last = max(by_version)
                    mean = statistics.mean(by_version[last])
                    print(f"seed {seed} version {last}: {mean:.2f}", file=sys.stderr)
                by_version[version].append(success)

        done = await client.run_episodes_until_all_complete(
            [walk_task(name) for name in world.task_ids(split, seed, count)],
            program.agent,
            kind=kind,
            episodes_per_task=episodes,
            concurrency=AT_ONCE,
            on_result=note,
        )
        if done.failures:
            raise AjetError(f"the run cannot be completed: {done}")
        return successes

    async with BoxedProgram(terms(), load_sandbox("bubblewrap"), client) as program:
        before = statistics.mean(await roll_out(program, "eval", eval_tasks, 1, "eval"))
        began = monotonic()
        tasks = steps * batch.tasks
        await roll_out(program, "train", tasks, batch.episodes_per_task, "train")
        while (await client.status()).step < steps:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        seconds = monotonic() - began
        after = statistics.mean(await roll_out(program, "eval", eval_tasks, 1, "eval"))
    curve = [statistics.mean(by_version[v]) for v in sorted(by_version)]
    return Learned(before, after, tuple(curve), seconds)


def train(seed: int, steps: int, eval_tasks: int) -> Learned:
    """Make a model, and train it on a new server."""
    world = load_world(WORLD)
    (ROOT / "runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"exec-{seed}-", dir=ROOT / "runs") as root:
        directory = Path(root)
        create_tiny_model(directory / "model", worlds=[world], seed=seed)
        with LocalServer(directory) as server:
            server.start_run(run_config(world, directory / "model", seed=seed))

            async def run() -> Learned:
                async with AsyncSwarmClient(server.client.url, server.client_token) as client:
                    return await learn(client, seed, steps, eval_tasks)

            learned = asyncio.run(run())
            server.stop_run()
    return learned


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--steps", type=at_least(1), default=load_world(WORLD).recipe.steps)
    parser.add_argument("--eval-tasks", type=at_least(1), default=EVAL_TASKS)
    parser.add_argument("--runs", type=Path, help="file to keep results of seeds in")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args(arguments)
    kept = KeptResults(args.runs)
    learned = []
    for seed in range(args.seeds):
        name = f"exec {seed} {args.steps} {args.eval_tasks}"
        make = partial(train, seed, args.steps, args.eval_tasks)
        result = kept.of(name, lambda make=make: asdict(make()))
        learned.append(Learned(**{**result, "curve": tuple(result["curve"])}))
    found = summary(WORLD, learned)
    print(line(WORLD, found), file=sys.stderr)
    if args.plot is not None:
        draw({WORLD: learned}, args.plot, "ajet exec: success by step")
    report({"benchmark": "exec_learning", "steps": args.steps, **found}, args.output)


if __name__ == "__main__":
    main()
