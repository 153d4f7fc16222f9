"""What is measured of a version, and how much worse it may become.

All of them are costs: less is better. CPU time is preferred to time on the clock, which other load
of the machine changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VersionMeasure:
    """A number that a version has.

    :param summary: a description.
    :param margin: how much worse a version may be: relative to the baseline, or absolute.
    :param seconds: in which one trial must end.
    :param relative: compare ratios; else differences.
    :param plugins: folders of `plugins` whose wheels it needs beside agentjet.
    :param extra: of agentjet, whose requirements it needs.
    :param default: it is measured unless others are chosen.
    """

    unit: str
    summary: str
    margin: float
    seconds: float = 900.0
    relative: bool = True
    plugins: tuple[str, ...] = ()
    extra: str = "server"
    default: bool = True

    @property
    def metric(self) -> str:
        """The metric of the arena that is compared."""
        return "log_value" if self.relative else "value"

    @property
    def smallest(self) -> float:
        """The margin on the scale of the metric."""
        return math.log1p(self.margin) if self.relative else self.margin


def _failures(world: str, steps: int, *plugins: str) -> VersionMeasure:
    return VersionMeasure(
        "share",
        f"failures in the world `{world}`: mean of {steps} training steps and the held-out tasks "
        "after them, the area above the success curve",
        0.05,
        seconds=1800.0,
        relative=False,
        plugins=("backend_torch", *plugins),
        default=False,
    )


MEASURES: dict[str, VersionMeasure] = {
    "import_cpu": VersionMeasure("s", "CPU time of `import agentjet`", 0.10),
    "wheel_size": VersionMeasure("bytes", "size of agentjet's wheel", 0.10),
    "help_cpu": VersionMeasure("s", "CPU time of `ajet --help`", 0.10),
    "boot_cpu": VersionMeasure(
        "s", "CPU time of `ajet serve` and its worker until a scripted run accepts episodes", 0.05
    ),
    "call_cpu": VersionMeasure(
        "us", "CPU time of the server for a recorded call, claims and ends included", 0.05
    ),
    "merge_cpu": VersionMeasure("ms", "CPU time in which 1,000 calls are merged", 0.05),
    "idle_memory": VersionMeasure("MiB", "resident memory of an idle server and its worker", 0.10),
    "recovery_cpu": VersionMeasure(
        "s",
        "CPU time of `ajet serve` and its worker, started after SIGKILL, until the run accepts "
        "episodes again with all that had ended",
        0.05,
    ),
    "tree_cost": VersionMeasure(
        "share",
        "CPU time of an update with token trees, of that with a sample for each call",
        0.10,
        plugins=("backend_torch",),
        default=False,
    ),
    "bandit_failures": _failures("bandit", 12),
    "bandit_failures_trl": _failures("bandit", 12, "backend_trl"),
    "grid_failures": _failures("grid", 20),
}
