"""Check the trained mixture of tags with clients of very different speed.

The ratios change in the middle of the run, and later a client ends. The benchmark has a real
gateway with a stub engine, and one process for each tag; the slowest needs about thirty times as
long for an episode as the fastest. The figures come from the store's file: the episodes of each
batch. It runs once by tasks and once by episodes, with counts that the ratios do not divide evenly.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from load import start_run
from mixture_client import Rollouts
from reporting import report
from stub_processes import gateway

from agentjet.client import SwarmClient
from ajet_core import credentials
from ajet_core.protocol import MixtureConfig
from ajet_testing.tokenizers import write_model

FIRST = {"math": 0.4, "code": 0.3, "terminal": 0.3}
SECOND = {"math": 0.1, "code": 0.1, "terminal": 0.8}
# Seconds that an agent is busy outside the model.
SECONDS = {"math": 0.005, "code": 0.04, "terminal": 0.15}
TASKS, EPISODES_PER_TASK = 8, 4
STEPS = 20
# Number of batches to compare before and after a client ends.
USUAL = 6
GRACE_SECONDS = 3.0
# Time limit until all clients have started; a small machine may need long.
PATIENT_SECONDS = 600.0
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Batch:
    """A batch in the store.

    :ivar tags: by tag, the number of its complete tasks, or of its episodes.
    :ivar left_over: number of episodes of incomplete tasks, which a batch by tasks contains in
        addition.
    """

    made_at: float
    tags: Counter[str]
    left_over: int


def batches(run_dir: Path, full_by: str) -> list[Batch]:
    """Return all batches of a run, in order."""
    path = f"file:{run_dir / 'samples.sqlite3'}?mode=ro"
    with closing(sqlite3.connect(path, uri=True)) as store:
        made = store.execute("SELECT batch_id, created_at FROM batches ORDER BY step").fetchall()
        rows = store.execute(
            "SELECT batch_id, group_name, tag, count(*) FROM episodes "
            "WHERE batch_id IS NOT NULL AND state = 'ended' GROUP BY 1, 2, 3"
        ).fetchall()
    found = {batch_id: Batch(made_at, Counter(), 0) for batch_id, made_at in made}
    for batch_id, _, tag, episodes in rows:
        batch = found[batch_id]
        if full_by == "episodes":
            batch.tags[tag] += episodes
        elif episodes == EPISODES_PER_TASK:
            batch.tags[tag] += 1
        else:
            left_over = batch.left_over + episodes
            found[batch_id] = Batch(batch.made_at, batch.tags, left_over)
    return list(found.values())


def furthest_off(found: list[Batch], ratios: Mapping[str, float]) -> float:
    """Return the largest deviation of a tag in a batch from its ratio, in tasks or episodes."""
    return max(
        abs(batch.tags[tag] - ratio * batch.tags.total())
        for batch in found
        for tag, ratio in ratios.items()
    )


def mean_share_off(found: list[Batch], ratios: Mapping[str, float]) -> float:
    """Return the mean over tags of the deviation of their share of all batches from their ratio."""
    total: Counter[str] = sum((batch.tags for batch in found), Counter())
    return statistics.fmean(
        abs(total[tag] / total.total() - ratio) for tag, ratio in ratios.items()
    )


def has(batch: Batch, ratios: Mapping[str, float]) -> bool:
    return furthest_off([batch], ratios) < 1


def seconds(found: list[Batch]) -> list[float]:
    """Return how long each batch except the first took."""
    return [b.made_at - a.made_at for a, b in itertools.pairwise(found)]


@dataclass(frozen=True)
class Run:
    """A run of the server at `url`, as recorded in its store."""

    run_dir: Path
    full_by: str
    url: str
    control: str

    def batches(self, count: int = 0) -> list[Batch]:
        """Return all batches, once there are at least `count`."""
        while len(found := batches(self.run_dir, self.full_by)) < count:
            time.sleep(LOOK_SECONDS)
        return found

    def change(self, ratios: Mapping[str, float], grace_seconds: float) -> None:
        """Change the mixture with ``PUT /v1/mixture``."""
        with SwarmClient(self.url, self.control) as client:
            client.set_mixture(MixtureConfig(ratios=dict(ratios), grace_seconds=grace_seconds))

    def change_lag(self) -> tuple[int, list[Batch]]:
        """Return the number of batches with old ratios after a change, and STEPS with the new ones.

        One batch is being filled when the change comes, and keeps the old ratios.
        """
        made = len(self.batches())
        self.change(SECOND, PATIENT_SECONDS)
        after = self.batches(made + STEPS + 1)[made:]
        lag = next(i for i, b in enumerate(after) if furthest_off([b], SECOND) < 1)
        return lag, self.batches(made + lag + STEPS)[made + lag :]

    def blocked(self, client: Rollouts, how: signal.Signals) -> tuple[float, int]:
        """Return the largest delay of a batch, and the number of delays, when a client ends."""
        begun = len(self.batches())
        usual = statistics.median(seconds(self.batches(begun + USUAL)[begun:]))
        client.stop(how)
        gone = len(self.batches())
        late = [s - usual for s in seconds(self.batches(gone + USUAL)[gone - 1 :])]
        return max(late), sum(s > GRACE_SECONDS / 3 for s in late)


def measure(full_by: str, directory: Path, model: Path) -> dict[str, float]:
    """Run once, and return the figures from its store."""
    with ExitStack() as stack:
        server = stack.enter_context(gateway(directory / full_by, model))
        url = f"http://127.0.0.1:{server.port}"
        tokens = credentials.find_local(url)
        assert tokens is not None
        batch = {"full_by": full_by, "tasks": TASKS, "episodes_per_task": EPISODES_PER_TASK}
        mixture = {"ratios": FIRST, "grace_seconds": PATIENT_SECONDS}
        asyncio.run(start_run(server.port, tokens.control, model, batch, mixture))
        run = Run(directory / full_by, full_by, url, tokens.control)
        clients = {tag: stack.enter_context(Rollouts(url, tag, SECONDS[tag])) for tag in FIRST}

        first = run.batches(STEPS)[:STEPS]
        lag, second = run.change_lag()
        run.change(FIRST, GRACE_SECONDS)
        gone, gone_batches = run.blocked(clients["code"], signal.SIGTERM)
        clients["code"] = stack.enter_context(Rollouts(url, "code", SECONDS["code"]))
        run.batches(len(run.batches()) + USUAL)
        killed, killed_batches = run.blocked(clients["code"], signal.SIGKILL)
    return {
        "max_deviation": furthest_off(first, FIRST),
        "mean_deviation": mean_share_off(first, FIRST),
        "max_deviation_after_change": furthest_off(second, SECOND),
        "mean_deviation_after_change": mean_share_off(second, SECOND),
        "left_over_episodes": sum(b.left_over for b in [*first, *second]),
        "change_lag_batches": lag,
        "blocked_s": gone,
        "blocked_batches": gone_batches,
        "killed_blocked_s": killed,
        "killed_blocked_batches": killed_batches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-mixture-") as name:
        directory = Path(name)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        model = write_model(directory / "models" / "tiny", "qwen3")
        (model / "model.safetensors").write_bytes(b"")
        by_tasks = measure("tasks", directory, model)
        by_episodes = measure("episodes", directory, model)
    worse = {
        key: round(max(by_tasks[key], by_episodes[key]), 4)
        for key in ("mean_deviation", "change_lag_batches", "blocked_s", "killed_blocked_s")
    }
    report(
        {
            "benchmark": "mixture",
            "max_deviation_tasks": round(by_tasks["max_deviation"], 4),
            "max_deviation_episodes": round(by_episodes["max_deviation"], 4),
            **worse,
            "grace_s": GRACE_SECONDS,
            "batches_of_tasks": TASKS,
            "episodes_per_task": EPISODES_PER_TASK,
            "by_tasks": {key: round(value, 4) for key, value in by_tasks.items()},
            "by_episodes": {key: round(value, 4) for key, value in by_episodes.items()},
        },
        options.output,
    )


if __name__ == "__main__":
    main()
