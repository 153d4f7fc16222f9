"""Benchmark exact runs: `exact.py --world grid --steps 6`.

Three runs of one seed on a new tiny model, each on a real server with real sockets: an exact run;
another whose worker is killed (SIGKILL) in the middle of the rollouts, so that it continues from a
checkpoint; and a usual run. `identical` says whether weights, samples (tokens, logprobs, rewards)
and metrics (without times) of the two exact runs are the same to the bit. `gap` is the largest
difference between the engine's and the trainer's logprobs in the exact runs, and `gap_usual` that
in the usual run.

`cost` is the training time of an exact run divided by that of a usual run, over `--rounds` pairs
that alternate: the median, and all ratios.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from options import at_least
from reporting import report

from agentjet.client import AsyncSwarmClient
from agentjet.local import LocalServer
from ajet_cli.replay.comparison import is_time
from ajet_core.interfaces import WorkerContext
from ajet_demo.orchestrate import terminate_as_interrupt
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_worlds import load_world
from ajet_worlds.learning import Learned, learn
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

EVAL_TASKS = 32
CHECKPOINT_EVERY = 2


@dataclass(frozen=True, slots=True)
class Result:
    """What a run left behind.

    :param weights: hash of the exported weights.
    :param samples: hash of all calls and rewards.
    :param metrics: of each step, without times.
    """

    learned: Learned
    weights: str
    samples: str
    metrics: list[dict[str, float]]

    @property
    def gap(self) -> float:
        """The largest logprob gap of any step."""
        return max(step.get("logprob_gap", 0.0) for step in self.metrics)


def run(world_name: str, seed: int, steps: int, *, exact: bool, kill_at: int | None) -> Result:
    """Train a new model.

    :param kill_at: kill the worker once episodes of this policy version arrive.
    """
    world = load_world(world_name)
    with tempfile.TemporaryDirectory(prefix="ajet-exact-") as root:
        directory = Path(root)
        create_tiny_model(directory / "model", worlds=[world], seed=seed)
        config = run_config(world, directory / "model", seed=seed).model_copy(
            update={"exact": exact, "checkpoint_every": CHECKPOINT_EVERY}
        )
        with LocalServer(directory) as server:
            server.start_run(config)
            killer = _Killer(server, kill_at)

            async def train() -> Learned:
                async with AsyncSwarmClient(server.client.url, server.client_token) as client:
                    return await learn(
                        world,
                        client,
                        server.client,
                        seed=seed,
                        steps=steps,
                        eval_tasks=EVAL_TASKS,
                        progress=killer,
                    )

            learned = asyncio.run(train())
            exported = server.stop_run()
            weights = hashlib.sha256()
            for file in sorted(exported.glob("*.safetensors")):
                weights.update(file.read_bytes())
        if kill_at is not None and not killer.killed:
            sys.exit(f"no worker was killed: version {kill_at} was not reached")
        samples, metrics = asyncio.run(_records(directory / "server"))
    return Result(learned, weights.hexdigest(), samples, metrics)


class _Killer:
    """Kills the server's worker once a version has some episodes."""

    def __init__(self, server: LocalServer, version: int | None) -> None:
        self._server = server
        self._version = version
        self.killed = False

    def __call__(self, version: int, success: float) -> None:
        print(f"version {version}: {success:.2f}", file=sys.stderr)
        if version + 1 != self._version:
            return
        pid = self._server.child.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            self.killed = True


async def _records(run_dir: Path) -> tuple[str, list[dict[str, float]]]:
    """Return a hash of the samples, and the metrics of the steps without times."""
    store = SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir=run_dir))
    await store.open(read_only=True)
    try:
        samples = []
        async for record in store.episodes():
            if record.state != "ended":
                continue
            calls = (await store.calls([record.episode_id]))[record.episode_id]
            said = [[call.prompt_ids, call.sampled_ids, call.logprobs] for call in calls]
            samples.append(json.dumps([record.task_id, record.claim_version, record.reward, said]))
        metrics = [
            {name: value for name, value in step.metrics.items() if not is_time(name)}
            for step in await store.steps()
        ]
    finally:
        await store.close()
    return hashlib.sha256("\n".join(sorted(samples)).encode()).hexdigest(), metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--world", default="grid", help="name of a world")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--steps", type=at_least(4), default=6)
    parser.add_argument("--rounds", type=at_least(1), default=3, help="pairs for the cost")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()

    def trained(*, exact: bool, kill_at: int | None = None) -> Result:
        return run(options.world, options.seed, options.steps, exact=exact, kill_at=kill_at)

    with terminate_as_interrupt():
        report(measure(trained, options), options.output)


def measure(trained: Callable[..., Result], options: argparse.Namespace) -> dict[str, Any]:
    """Make all runs, and compare them."""
    # Step 3 has no checkpoint, so it is lost and trained again.
    killed = trained(exact=True, kill_at=CHECKPOINT_EVERY + 1)
    pairs = [(trained(exact=True), trained(exact=False)) for _ in range(options.rounds)]
    exact = [killed, *(one for one, _ in pairs)]
    identical = {
        name: len({str(getattr(one, name)) for one in exact}) == 1
        for name in ("weights", "samples", "metrics")
    }
    ratios = [one.learned.seconds / other.learned.seconds for one, other in pairs]
    for one, other in pairs:
        print(
            f"exact {one.learned.seconds:.1f} s, usual {other.learned.seconds:.1f} s",
            file=sys.stderr,
        )
    return {
        "world": options.world,
        "seed": options.seed,
        "steps": options.steps,
        "exact_runs": len(exact),
        "identical": identical,
        "gap": max(one.gap for one in exact),
        "gap_usual": max(other.gap for _, other in pairs),
        "cost": round(statistics.median(ratios), 3),
        "cost_ratios": [round(ratio, 3) for ratio in ratios],
        "success": [round(one.learned.after, 4) for one, _ in pairs],
    }


if __name__ == "__main__":
    main()
