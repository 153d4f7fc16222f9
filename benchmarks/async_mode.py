"""Benchmark asynchronous rollouts with slow tools: speed of steps, and success after them.

The demo's model learns GridWalk from the same weights, with the same tasks and number of steps, in
mode `sync` and in mode `async` with `rollout.max_staleness` = `--bound`; all else is the default.
Each reply of the tool takes a time from a truncated Pareto distribution. The time is the same for
the same move of the same rollout of a task in both modes (the world `slow-grid`). One client runs
one stream of episodes, with more at a time than either mode has slots for.

Steps take as long as those of a large model. In sync the trainer (`waiting_trainer`) waits until
each step has taken `--update-share` of its cycle: S / (1 - S) times the time of its batch's
rollouts. In async a step takes the mean time of the steps with the same seed in sync. So the share
does not depend on the machine, unless computing a step takes longer than that.

Lists are in the order of the seeds. `success_*` is measured on sampled walks of held-out tasks with
the last weights. `seconds_*` count from the first claim until the weights of the last step are
served, so they include filling and draining the pipeline. `speedup` is the ratio of their sums.
`update_share` is the measured share in sync. `waited_share_*` is the share of the time in which no
step was trained, because its batch was not full. `max_staleness` is the highest of any token of any
run, `episodes_stale` the number of episodes left out because they were older than the bound.

`--spare-tasks` also measures sync with so many spare tasks, of which late ones are carried over to
later batches (`rollout.late = "carry"`), with the same time per step. These rows have
`success_spare` instead of `success_async`, and `spare_tasks` instead of `bound`.

`--seeds`, `--update-share`, `--bound` and `--spare-tasks` take several values; then the line has a
table of all pairs, and sync runs once for each seed and share. `--at-once` runs share the machine,
each with a separate client process. With `--runs FILE` each run appends its figures to FILE when it
ends, and runs whose figures are there are not repeated: an interrupted benchmark continues.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from altered_plugin import environment_with_plugin
from kept import KeptResults
from options import at_least, fraction
from reporting import report

from agentjet.client import AsyncSwarmClient, SwarmClient
from agentjet.local import LocalServer
from ajet_core.protocol import ComponentChoice, RolloutConfig, RunConfig, ServerState, ServerStatus
from ajet_demo.orchestrate import terminate_as_interrupt
from ajet_demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    TEMPERATURE,
    run_config,
    train_task_ids,
)
from ajet_demo.tiny_model import create_tiny_model
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent
from ajet_worlds.grid import SlowGridSettings, SlowGridWorld

EVAL_TASKS = 256
POLL_SECONDS = 0.05

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Rollout:
    """How a run rolls out.

    :param bound: `rollout.max_staleness` of an asynchronous run; None for a synchronous one.
    :param spare_tasks: of a synchronous run.
    """

    bound: int | None = None
    spare_tasks: int = 0

    @property
    def name(self) -> str:
        """Part of the name of a run."""
        if self.bound is not None:
            return f"bound-{self.bound}"
        return f"spare-{self.spare_tasks}" if self.spare_tasks else "sync"

    def config(self) -> RolloutConfig:
        """Return the configuration; all else is the default."""
        if self.bound is not None:
            return RolloutConfig(mode="async", max_staleness=self.bound)
        return RolloutConfig(spare_tasks=self.spare_tasks)


SYNC = Rollout()


# Slower than the world's own, so that the tools' time is most of a synchronous run's.
TOOLS = {"shortest": 0.1, "longest": 6.0}


class SlowTools(SlowGridWorld):
    """The world ``slow-grid``, which also sums the time of its tools."""

    def __init__(self) -> None:
        super().__init__(SlowGridSettings.model_validate(TOOLS))
        self.seconds = 0.0

    def delays(self, task_id: str) -> Iterator[float]:
        for delay in super().delays(task_id):
            self.seconds += delay
            yield delay


def configured(
    model: Path, seed: int, rollout: Rollout, trainer: dict[str, float], checkpoint_every: int
) -> RunConfig:
    """Return the demo's configuration with another way to roll out."""
    config = run_config(model, seed)
    return config.model_copy(
        update={
            "rollout": rollout.config(),
            "trainer": ComponentChoice(name="waiting", settings=trainer),
            "checkpoint_every": checkpoint_every,
        }
    )


def lacks_tasks(status: ServerStatus) -> bool:
    """Return whether the batch needs more tasks to become full."""
    batch, rollout = status.batch, status.rollout
    if batch is None or rollout is None:
        return False
    idle = status.state is ServerState.ROLLING and rollout.training_step is None
    return idle and batch.ready < batch.needed and not batch.open_episodes


async def train(
    url: str, token: str, observer: SwarmClient, *, seed: int, steps: int, concurrency: int
) -> Figures:
    """Roll out the tasks of `steps` batches, wait for the last step, and evaluate its weights."""
    tools = SlowTools()
    slow, quick = WorldAgent(tools, TEMPERATURE), WorldAgent(load_world("grid"), TEMPERATURE)
    tasks = [task_id for step in range(1, steps + 1) for task_id in train_task_ids(seed, step)]

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
                # On a busy machine heartbeats are late, so tasks lose slots and get more episodes
                # than they need.
                episodes += await roll_out([f"train-{seed}-more-{next(more)}"])
            await asyncio.sleep(POLL_SECONDS)
        seconds = time.monotonic() - began
        held_out = [f"eval-{seed}-{i}" for i in range(EVAL_TASKS)]
        evaluated = await client.evaluate(held_out, quick.success, tag="held-out")
    await asyncio.gather(slow.close(), quick.close())
    return {
        "seconds": seconds,
        "success": evaluated.reward_mean or 0.0,
        "tool_seconds": tools.seconds / episodes,
        "extra_tasks": float(next(more)),
    }


def run(
    directory: Path, seed: int, steps: int, rollout: Rollout, trainer: dict[str, float]
) -> Figures:
    """Train in one mode on a new server, in a directory that contains the model."""
    # One batch that fills, in async one that is trained, and one that waits for slots.
    concurrency = EPISODES_PER_STEP * (2 if rollout.bound is None else 3)
    with terminate_as_interrupt(), LocalServer(directory) as server:
        server.client.sync_train_config(
            configured(directory / "model", seed, rollout, trainer, steps)
        )
        server.client.start_engine()
        figures = asyncio.run(
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

    return figures | {
        "max_staleness": max(step["staleness_max"] for step in trained),
        "mean_staleness": total("staleness_mean") / steps,
        "episodes_stale": total("episodes_stale"),
        "update_seconds": total("update_seconds") / steps,
        "update_share": total("update_seconds") / figures["seconds"],
        "waited_share": (total("rollout_seconds") + total("idle_seconds")) / figures["seconds"],
    }


class Runs:
    """The runs of this benchmark, each in a separate process.

    :param root: a directory for the runs' files.
    :param histories: directory for the metrics of their steps, as RUN.jsonl.
    :param kept: figures of runs that ended before.
    """

    def __init__(self, root: Path, steps: int, histories: Path | None, kept: KeptResults) -> None:
        self._root, self._steps, self._histories, self._kept = root, steps, histories, kept
        self._environment = environment_with_plugin(root / "plugins")
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._ended = False

    def model(self, seed: int) -> Path:
        """Return the weights that all runs of a seed start with."""
        directory = self._root / f"model-{seed}"
        if not directory.exists():
            create_tiny_model(directory, seed=seed)
        return directory

    def measure(self, name: str, seed: int, rollout: Rollout, trainer: dict[str, float]) -> Figures:
        """Return the figures of one run."""
        figures: Figures | None = self._kept.get(name)
        if figures is not None:
            return figures
        directory = self._root / name
        directory.mkdir()
        shutil.copytree(self._root / f"model-{seed}", directory / "model")
        arguments = json.dumps([str(directory), seed, self._steps, asdict(rollout), trainer])
        command = [sys.executable, __file__, "run", arguments]
        with self._lock:
            if self._ended:
                raise InterruptedError(f"{name} was not begun")
            process = subprocess.Popen(
                command, env=self._environment, stdout=subprocess.PIPE, text=True
            )
            self._processes.add(process)
        written, _ = process.communicate()
        with self._lock:
            self._processes.remove(process)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        figures = json.loads(written.splitlines()[-1])
        assert figures is not None
        self._kept.add(name, figures)
        print(json.dumps({"run": name, **figures}), file=sys.stderr, flush=True)
        if self._histories is not None:
            shutil.copy(directory / "server" / "metrics.jsonl", self._histories / f"{name}.jsonl")
        shutil.rmtree(directory)
        return figures

    def end(self) -> None:
        """Stop the runs in progress and their servers, and start no others."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.terminate()

    def of_seed(
        self, share: float, seed: int, rollouts: Sequence[Rollout]
    ) -> dict[Rollout, Figures]:
        """Return the runs of a seed with one share: in sync, and with other rollouts."""
        name = f"seed-{seed}-share-{share:g}"
        sync = self.measure(f"{name}-{SYNC.name}", seed, SYNC, {"share": share})
        figures = {SYNC: sync}
        for rollout in rollouts:
            trainer = {"seconds": sync["update_seconds"]}
            figures[rollout] = self.measure(f"{name}-{rollout.name}", seed, rollout, trainer)
        return figures


def compared(
    sync: Sequence[Figures], others: Sequence[Figures], rollout: Rollout
) -> dict[str, Any]:
    """Return the reported figures of the runs of all seeds with one share and rollout."""
    kind = "spare" if rollout.bound is None else "async"

    def each(runs: Sequence[Figures], name: str) -> list[float]:
        return [round(run[name], 3) for run in runs]

    def mean(runs: Sequence[Figures], name: str) -> float:
        return round(sum(run[name] for run in runs) / len(runs), 3)

    seconds = [sum(run["seconds"] for run in runs) for runs in (sync, others)]
    return {
        "success_sync": each(sync, "success"),
        f"success_{kind}": each(others, "success"),
        "mean_success_sync": mean(sync, "success"),
        f"mean_success_{kind}": mean(others, "success"),
        "speedup": round(seconds[0] / seconds[1], 3),
        "update_share": mean(sync, "update_share"),
        "max_staleness": max(run["max_staleness"] for run in others),
        **(
            {"spare_tasks": rollout.spare_tasks}
            if rollout.bound is None
            else {"bound": rollout.bound}
        ),
        "mean_staleness": mean(others, "mean_staleness"),
        "episodes_stale": sum(run["episodes_stale"] for run in others),
        "seconds_sync": each(sync, "seconds"),
        f"seconds_{kind}": each(others, "seconds"),
        f"update_share_{kind}": mean(others, "update_share"),
        "waited_share_sync": mean(sync, "waited_share"),
        f"waited_share_{kind}": mean(others, "waited_share"),
        "extra_tasks": sum(run["extra_tasks"] for run in (*sync, *others)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=at_least(1), default=20)
    parser.add_argument(
        "--bound", type=at_least(1), nargs="+", help="rollout.max_staleness of async (default: 2)"
    )
    parser.add_argument(
        "--spare-tasks", type=at_least(1), nargs="+", default=[], help="rollout.spare_tasks of sync"
    )
    parser.add_argument("--update-share", type=fraction, nargs="+", default=[0.3])
    parser.add_argument("--seeds", type=at_least(1), default=5, help="how many")
    parser.add_argument(
        "--at-once", type=at_least(1), default=1, help="number of runs that share the machine"
    )
    parser.add_argument("--histories", type=Path, help="directory for the metrics of all steps")
    parser.add_argument("--runs", type=Path, help="file of the figures of single runs")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if options.histories is not None:
        options.histories.mkdir(parents=True, exist_ok=True)
    seeds = range(options.seeds)
    bounds = options.bound or ([] if options.spare_tasks else [2])
    rollouts = [
        *(Rollout(bound=bound) for bound in bounds),
        *(Rollout(spare_tasks=tasks) for tasks in options.spare_tasks),
    ]
    pairs = [(share, seed) for share in options.update_share for seed in seeds]
    with (
        terminate_as_interrupt(),
        tempfile.TemporaryDirectory(prefix="ajet-async-") as root,
    ):
        runs = Runs(Path(root), options.steps, options.histories, KeptResults(options.runs))
        for seed in seeds:
            runs.model(seed)
        with ThreadPoolExecutor(options.at_once) as pool:
            try:
                of_pairs = pool.map(lambda pair: runs.of_seed(pair[0], pair[1], rollouts), pairs)
                measured = dict(zip(pairs, of_pairs, strict=True))
            except BaseException:
                # Leaving the pool waits for its threads, which wait for these processes.
                runs.end()
                raise
    table = [
        compared(
            [measured[share, seed][SYNC] for seed in seeds],
            [measured[share, seed][rollout] for seed in seeds],
            rollout,
        )
        for share in options.update_share
        for rollout in rollouts
    ]
    tools = sum(f["tool_seconds"] for of_pair in measured.values() for f in of_pair.values())
    report(
        {
            **(table[0] if len(table) == 1 else {"table": table}),
            "steps": options.steps,
            "seeds": list(seeds),
            "at_once": options.at_once,
            "tool_seconds_per_episode": round(tools / sum(map(len, measured.values())), 3),
        },
        options.output,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run_dir, seed, steps, rollout, trainer = json.loads(sys.argv[2])
        print(json.dumps(run(Path(run_dir), seed, steps, Rollout(**rollout), trainer)))
    else:
        main()
