"""Benchmark learning on small worlds that each need one ability: `learning.py --world all`.

It works with any trainer, engine and mode. Each seed is a separate run of a new tiny model, on a
real server with real sockets. Success is measured on held-out tasks, sampled as in training, before
the first step and with the last weights. A mean has a 95 % confidence interval over seeds by
Student's t, clipped to 0 and 1, and the worst seed is listed next to it. `curve` is the mean
success of training episodes by the policy version that they started with. `seconds` count only
training, without making the model, booting and evaluating.

With `--runs FILE` each run appends its result to FILE when it ends, and runs whose results are
there are not repeated: an interrupted benchmark continues.

The JSON line comes last; `--output` also writes it to a file, with date and hardware, and `--plot`
plots it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from intervals import interval
from kept import KeptResults
from options import at_least
from reporting import report

from agentjet.client import AsyncSwarmClient
from agentjet.local import LocalServer
from ajet_core.errors import AjetError
from ajet_demo.orchestrate import terminate_as_interrupt
from ajet_installation.local_workers import check_components, worker_settings
from ajet_worlds import load_world, world_specs
from ajet_worlds.learning import EVAL_TASKS, Learned, learn
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

ROOT = Path(__file__).resolve().parents[1]
INTERRUPTED = 130
# One batch that is trained, one that fills, and one that waits in the server for slots.
ASYNC_BATCHES = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One seed of one world.

    :param steps: None uses the number of the world's recipe.
    """

    world: str
    seed: int
    trainer: str
    engine: str
    mode: str
    steps: int | None
    eval_tasks: int

    @property
    def name(self) -> str:
        """The name under which its result is kept."""
        return json.dumps(asdict(self))


def kept_result(kept: KeptResults, run: Run) -> Learned | str | None:
    """Return the result of a run, or why it failed; None if it has not ended."""
    result = kept.get(run.name)
    if isinstance(result, dict):
        return Learned(**{**result, "curve": tuple(result["curve"])})
    return None if result is None else str(result)


def measure(run: Run) -> Learned | str:
    """Return the result of a run, or why it failed."""
    try:
        with terminate_as_interrupt():
            return train(run)
    except AjetError as error:
        return f"seed {run.seed}: {error.message}"
    except KeyboardInterrupt:
        # An exception would be passed to the parent, and this process would start the next run.
        os._exit(INTERRUPTED)


def train(run: Run) -> Learned:
    """Make a model, and train it on a new server."""
    world = load_world(run.world)
    # Environments of engines and trainers are searched for above the run directory.
    (ROOT / "runs").mkdir(exist_ok=True)
    prefix = f"learning-{run.world}-{run.seed}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=ROOT / "runs") as root:
        directory = Path(root)
        create_tiny_model(directory / "model", worlds=[world], seed=run.seed)
        config = run_config(
            world,
            directory / "model",
            seed=run.seed,
            engine=run.engine,
            trainer=run.trainer,
            mode="async" if run.mode == "async" else "sync",
        )
        with LocalServer(directory) as server:
            server.start_run(config)
            learned = asyncio.run(_learn(run, server))
            server.stop_run()
    return learned


async def _learn(run: Run, server: LocalServer) -> Learned:
    world = load_world(run.world)

    def show(version: int, success: float) -> None:
        print(f"{run.world} seed {run.seed} version {version}: {success:.2f}", file=sys.stderr)

    async with AsyncSwarmClient(server.client.url, server.client_token) as client:
        return await learn(
            world,
            client,
            server.client,
            seed=run.seed,
            steps=run.steps or world.recipe.steps,
            batches_at_once=ASYNC_BATCHES if run.mode == "async" else 1,
            eval_tasks=run.eval_tasks,
            progress=show,
        )


def summary(world: str, learned: Sequence[Learned], failed: Sequence[str] = ()) -> dict[str, Any]:
    """Summarise the seeds of a world; the mean is over those that ended."""
    if not learned:
        return {"failed": list(failed)}
    after = [one.after for one in learned]
    low, high = interval(after)
    target = load_world(world).recipe.target
    return {
        "success_before": [round(one.before, 4) for one in learned],
        "success_after": [round(one.after, 4) for one in learned],
        "mean": round(statistics.mean(after), 4),
        "interval": [round(low, 4), round(high, 4)],
        "worst": min(after),
        "target": target,
        "reached": sum(value >= target for value in after),
        "failed": list(failed),
        "seconds": [round(one.seconds, 1) for one in learned],
        "curve": [
            round(statistics.mean(values), 4)
            for values in zip(*(one.curve for one in learned), strict=True)
        ],
    }


def line(world: str, found: Mapping[str, Any]) -> str:
    """Return a summary in words."""
    lost = len(found["failed"])
    failed = f", {lost} seeds failed" if lost else ""
    if "mean" not in found:
        return f"{world:10}{failed}"
    low, high = found["interval"]
    ended = len(found["success_after"])
    return (
        f"{world:10} success {found['mean']:.3f} (95 % of {low:.3f} to {high:.3f}, t over {ended} "
        f"seeds), worst {found['worst']:.3f}, {found['reached']} of {ended} reached "
        f"{found['target']:g}{failed}"
    )


def draw(results: dict[str, list[Learned]], path: Path, title: str) -> None:
    """Plot success over steps for each world: every seed, and the mean with its interval."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(3, len(results))
    rows = math.ceil(len(results) / columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(4 * columns, 3 * rows),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(title)
    panels = axes.flatten()
    for panel in panels[len(results) :]:
        panel.set_visible(False)
    for panel, (world, learned) in zip(panels, results.items(), strict=False):
        steps = range(len(learned[0].curve))
        for one in learned:
            panel.plot(steps, one.curve, color="#1f77b4", alpha=0.25, linewidth=1)
        columns_of_seeds = list(zip(*(one.curve for one in learned), strict=True))
        panel.plot(steps, [statistics.mean(values) for values in columns_of_seeds], color="#1f77b4")
        if len(learned) > 1:
            low, high = zip(*(interval(values) for values in columns_of_seeds), strict=True)
            panel.fill_between(steps, low, high, color="#1f77b4", alpha=0.2, linewidth=0)
        last = len(learned[0].curve)
        after = [one.after for one in learned]
        panel.plot([last] * len(after), after, "o", color="#d62728", markersize=4)
        panel.axhline(load_world(world).recipe.target, color="#999999", linestyle="--", linewidth=1)
        panel.set_title(world)
        panel.set_ylim(0, 1.03)
        panel.set_xlabel("training step")
    for row in axes:
        row[0].set_ylabel("success")
    figure.savefig(path, dpi=110)
    plt.close(figure)


@contextlib.contextmanager
def ended_with_their_parent() -> Iterator[None]:
    """Stop the processes of a pool, and their servers, if the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def chosen_worlds(name: str) -> list[str]:
    """Return the worlds to run.

    :raises UnknownComponentError: no world has this name.
    """
    if name == "all":
        return [spec.name for spec in world_specs()]
    load_world(name)
    return [name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", default="all", help="name of a world, or all")
    parser.add_argument("--trainer", default="torch")
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--seeds", type=at_least(1), default=5, help="number of seeds, from 0 on")
    parser.add_argument(
        "--steps", type=at_least(1), help="steps instead of those of each world's recipe"
    )
    parser.add_argument("--eval-tasks", type=at_least(1), default=EVAL_TASKS)
    parser.add_argument(
        "--jobs", type=at_least(1), default=1, help="number of runs at the same time"
    )
    parser.add_argument("--runs", type=Path, help="file of the results of single runs")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    parser.add_argument("--plot", type=Path, help="also plot them to this PNG file")
    options = parser.parse_args()
    try:
        worlds = chosen_worlds(options.world)
        check_components(
            ROOT / "runs",
            worker_settings(ROOT / "runs"),
            engine=options.engine,
            trainer=options.trainer,
        )
    except AjetError as error:
        sys.exit(f"learning.py: {error.message}")
    runs = [
        Run(
            world=world,
            seed=seed,
            trainer=options.trainer,
            engine=options.engine,
            mode=options.mode,
            steps=options.steps,
            eval_tasks=options.eval_tasks,
        )
        for world in worlds
        for seed in range(options.seeds)
    ]
    results: dict[str, list[Learned]] = {world: [] for world in worlds}
    failures: dict[str, list[str]] = {world: [] for world in worlds}
    kept = KeptResults(options.runs)
    missing = [run for run in runs if kept_result(kept, run) is None]
    context = multiprocessing.get_context("spawn")
    with (
        terminate_as_interrupt(),
        ProcessPoolExecutor(options.jobs, mp_context=context) as pool,
        ended_with_their_parent(),
    ):
        measured = zip(missing, pool.map(measure, missing), strict=True)
        for run in runs:
            learned = kept_result(kept, run)
            if learned is None:
                _, learned = next(measured)
                kept.add(run.name, learned if isinstance(learned, str) else asdict(learned))
            if isinstance(learned, str):
                failures[run.world].append(learned)
                print(f"{run.world} {learned}", file=sys.stderr)
                continue
            results[run.world].append(learned)
            print(
                f"{run.world} seed {run.seed}: {learned.before:.2f} -> {learned.after:.2f} "
                f"in {learned.seconds:.0f} s",
                file=sys.stderr,
            )
    summaries = {world: summary(world, results[world], failures[world]) for world in worlds}
    for world, found in summaries.items():
        print(line(world, found))
    if options.plot is not None and any(results.values()):
        draw(
            {world: learned for world, learned in results.items() if learned},
            options.plot,
            f"{options.trainer} on {options.engine}, {options.mode}, {options.seeds} seeds",
        )
    report(
        {
            "benchmark": "learning",
            "trainer": options.trainer,
            "engine": options.engine,
            "mode": options.mode,
            "seeds": options.seeds,
            "worlds": summaries,
        },
        options.output,
    )
    if any(failures.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
