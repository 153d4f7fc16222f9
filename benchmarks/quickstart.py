"""Benchmark `ajet demo`, the main step of the quickstart, for each seed in a fresh process.

For each seed a line names the phases of the command and the CPU seconds of its processes in them.
`wall` is the time of the whole command, from the start of the interpreter to its end. `starting`
ends when the first phase is shown, `exit` begins with the summary. `rollout_seconds` and
`update_seconds` are those of `summary.json`. `training_cpu` divides the CPU seconds of the training
phase by process, `cpu_ms_per_call` by the number of model calls, too. `busy_cores` is their sum by
the phase's wall time: on a quiet machine with two cores, a value near 2 means that only less work
would make it shorter.

`overhead_share` is the share of the training phase that is neither the engine's forward passes nor
the trainer's updates. `overhead_share_kept` is the largest of all seeds. All seconds grow with the
other load of the machine: `load` is the load average at the start and at the end. The JSON line
with lists by seed comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from options import at_least
from reporting import report

TARGET_SECONDS = 60.0
TARGET_OVERHEAD = 1 / 3
SAMPLE_SECONDS = 0.1
# Beginnings of the demo's lines, in the order in which they appear.
PHASES = {
    "starting server and engine": "boot",
    "training": "training",
    "exporting the trained model": "export",
    "drawing the plot": "plot",
    "success": "exit",
}
# Words of command lines.
ROLES = {
    "ajet_demo.client_main": "client",
    "ajet_cli.main serve": "server",
    "ajet_server.workers": "worker",
}


class Processes:
    """CPU seconds of a process and its descendants, by phase and role, sampled in a thread."""

    def __init__(self, pid: int) -> None:
        self.phase = "starting"
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._root = psutil.Process(pid)
        self._last: dict[psutil.Process, float] = {}
        self._roles: dict[psutil.Process, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def enter(self, phase: str) -> None:
        """Count what is used from now on to another phase."""
        self._sample()
        self.phase = phase

    def end(self) -> None:
        """End sampling."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        try:
            family = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            try:
                times = process.cpu_times()
                role = self._roles.get(process) or self._role(process)
            except psutil.Error:
                # It has ended.
                continue
            used = times.user + times.system
            self.seconds[self.phase][role] += used - self._last.get(process, 0.0)
            self._last[process] = used

    def _role(self, process: psutil.Process) -> str:
        if process == self._root:
            role = "demo"
        else:
            line = " ".join(process.cmdline())
            role = next((name for words, name in ROLES.items() if words in line), "other")
        # A process that was only forked has its parent's command line.
        if process.create_time() + 1 < time.time():
            self._roles[process] = role
        return role


def run_demo(seed: int, directory: Path) -> dict[str, Any]:
    """Return the summary of one demo run, with the wall and CPU seconds of its phases.

    :raises RuntimeError: the demo failed; the message contains its last lines.
    """
    command = [sys.executable, "-m", "ajet_cli.main", "demo"]
    command += ["--seed", str(seed), "--run-dir", str(directory)]
    begins = {"starting": time.monotonic()}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    )
    processes = Processes(child.pid)
    shown = []
    assert child.stdout is not None, "the output is a pipe"
    for line in child.stdout:
        shown.append(line)
        for phase in _phases_of(line):
            if phase not in begins:
                begins[phase] = time.monotonic()
                processes.enter(phase)
    code = child.wait()
    ended = time.monotonic()
    processes.end()
    if code != 0:
        raise RuntimeError(f"seed {seed} failed:\n{''.join(shown)[-3000:]}")
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    ends = [*list(begins.values())[1:], ended]
    summary["wall"] = ended - begins["starting"]
    summary["phases"] = {
        phase: round(end - begin, 2)
        for (phase, begin), end in zip(begins.items(), ends, strict=True)
    }
    summary["cpu"] = {
        phase: {role: round(seconds, 2) for role, seconds in sorted(roles.items()) if seconds > 0}
        for phase, roles in processes.seconds.items()
    }
    return summary


def _phases_of(line: str) -> Iterator[str]:
    for words, phase in PHASES.items():
        # "success" is the first word of the summary, in a line with other words.
        if line.rstrip("\n") == words or (phase == "exit" and line.startswith("success ")):
            yield phase


def main() -> None:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=5, help="number of seeds")
    parser.add_argument("--output", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    load = [os.getloadavg()[0]]
    runs = []
    with tempfile.TemporaryDirectory(prefix="ajet-quickstart-") as root:
        for seed in range(options.seeds):
            run = run_demo(seed, Path(root) / f"seed{seed}")
            runs.append(run)
            print(
                f"seed {seed}: {run['success_before']:.0%} to {run['success_after']:.0%} in "
                f"{run['steps']} steps, {run['wall']:.1f} s, overhead {run['overhead_share']:.0%}; "
                f"seconds {run['phases']}; CPU seconds {run['cpu']}",
                flush=True,
            )
    load.append(os.getloadavg()[0])
    training_cpu = [run["cpu"]["training"] for run in runs]
    result = {
        "benchmark": "quickstart",
        "seeds": options.seeds,
        "success_before": [run["success_before"] for run in runs],
        "success_after": [run["success_after"] for run in runs],
        "steps": [run["steps"] for run in runs],
        "wall": [round(run["wall"], 1) for run in runs],
        "wall_median": round(statistics.median(run["wall"] for run in runs), 1),
        "within_60_s": all(run["wall"] <= TARGET_SECONDS for run in runs),
        "overhead_share": [run["overhead_share"] for run in runs],
        "overhead_share_kept": max(run["overhead_share"] for run in runs),
        "overhead_within_a_third": all(run["overhead_share"] <= TARGET_OVERHEAD for run in runs),
        "phases": [run["phases"] for run in runs],
        "rollout_seconds": [run["rollout_seconds"] for run in runs],
        "update_seconds": [run["update_seconds"] for run in runs],
        "training_cpu": training_cpu,
        "cpu_seconds": [
            round(sum(sum(roles.values()) for roles in run["cpu"].values()), 1) for run in runs
        ],
        "cpu_ms_per_call": [
            {role: round(1000 * seconds / run["calls"], 2) for role, seconds in cpu.items()}
            for cpu, run in zip(training_cpu, runs, strict=True)
        ],
        "busy_cores": [
            round(sum(cpu.values()) / run["phases"]["training"], 2)
            for cpu, run in zip(training_cpu, runs, strict=True)
        ],
        "load": [round(value, 2) for value in load],
    }
    report(result, options.output)


if __name__ == "__main__":
    main()
