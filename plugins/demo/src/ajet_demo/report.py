"""The demo's result files: metrics.jsonl, summary.json and reward.png."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ajet_core.files import write_whole


class Summary(BaseModel):
    """The result of a demo run; times in seconds, summed over all sessions of a resumed run.

    :param success_before: success on the held-out tasks before the first step.
    :param success_after: success on the held-out tasks with the final weights.
    :param reached: whether `success_after` is at least `target`.
    :param steps: training steps.
    :param episodes: episodes of all kinds, those for evaluation included.
    :param calls: model calls of all episodes.
    :param seconds: wall time of the whole command, from its first line to its last.
    :param boot_seconds: from starting the server to the moment in which it takes episodes.
    :param training_seconds: from the moment in which the server takes episodes to the client's end,
        evaluations included.
    :param rollout_seconds: the engine's forward passes and sampling, during `training_seconds`.
    :param update_seconds: the trainer's steps.
    :param overhead_seconds: `training_seconds` that are neither: agents, HTTP, recording, merging,
        weight updates.
    :param overhead_share: `overhead_seconds` / `training_seconds`.
    :param tokens_raw: tokens of all trained calls, each call counted in full.
    :param tokens_trained: tokens that had a loss.
    :param model_dir: the trained model, a Hugging Face directory.
    """

    # Earlier versions wrote more.
    model_config = ConfigDict(extra="ignore", frozen=True)

    seed: int
    target: float
    reached: bool
    success_before: float
    success_after: float
    steps: int
    episodes: int
    calls: int
    tokens_raw: int
    tokens_trained: int
    seconds: float
    boot_seconds: float
    training_seconds: float
    rollout_seconds: float
    update_seconds: float
    overhead_seconds: float
    overhead_share: float
    run_dir: str
    model_dir: str


class Record(BaseModel):
    """One line of metrics.jsonl: a training step, or an evaluation after `step` steps.

    :param success: share of episodes that reached the goal.
    :param metrics: the server's metrics of a step; empty for an evaluation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["step", "eval"]
    step: int
    success: float
    reward: float
    metrics: dict[str, float] = {}


class History:
    """All records of a run, in memory and in metrics.jsonl.

    If a step is trained again after a crash, its last line counts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[tuple[str, int], Record] = {}
        if path.exists():
            content = path.read_bytes()
            # A killed process can leave an incomplete line at the end; remove it.
            whole = content.rfind(b"\n") + 1
            os.truncate(path, whole)
            for line in content[:whole].splitlines():
                self._keep(Record.model_validate_json(line))

    def add(self, record: Record) -> None:
        """Add a record, and write it to the file."""
        self._keep(record)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(record.model_dump_json() + "\n")

    def steps(self) -> list[Record]:
        """Return the training steps, in order."""
        return self._of("step")

    def evals(self) -> list[Record]:
        """Return the evaluations, in order."""
        return self._of("eval")

    def total(self, metric: str) -> float:
        """Return the sum of a metric over all steps."""
        return sum(record.metrics.get(metric, 0.0) for record in self.steps())

    def _of(self, kind: str) -> list[Record]:
        return [self._records[key] for key in sorted(self._records) if key[0] == kind]

    def _keep(self, record: Record) -> None:
        self._records[record.kind, record.step] = record


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_whole(path, (json.dumps(value, indent=2) + "\n").encode(), mode=0o644)


def draw(
    history: History,
    target: float,
    path: Path,
    title: str = "agentjet demo: a tiny model learns to walk to the goal",
) -> None:
    """Plot success and reward over the steps to a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    steps, evals = history.steps(), history.evals()
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    figure.suptitle(title, fontsize=13)
    numbers = [r.step for r in steps]
    success = [r.success for r in steps]
    above.axhline(target, color="#999999", linestyle="--", linewidth=1)
    above.annotate(
        f"target {target:.0%}",
        (0, target),
        xytext=(2, 4),
        textcoords="offset points",
        color="#666666",
        fontsize=9,
    )
    above.plot(numbers, success, color="#1f77b4", alpha=0.3, linewidth=1, label="training batch")
    above.plot(
        numbers, _smooth(success), color="#1f77b4", linewidth=2, label="mean of the last 5 batches"
    )
    above.plot(
        [r.step for r in evals],
        [r.success for r in evals],
        "o",
        color="#d62728",
        markersize=7,
        label="held-out tasks",
        zorder=3,
    )
    above.set_ylabel("success")
    above.set_ylim(0, 1.03)
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    above.legend(loc="lower right", frameon=False, fontsize=9)
    rewards = [r.reward for r in steps]
    below.plot(numbers, rewards, color="#2ca02c", alpha=0.3, linewidth=1)
    below.plot(numbers, _smooth(rewards), color="#2ca02c", linewidth=2)
    below.set_ylabel("mean reward")
    below.set_xlabel("training step")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.grid(color="#eeeeee")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Return moving means over up to `width` values."""
    windows = [values[max(0, i + 1 - width) : i + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
