"""What a real study takes, measured from outside: its directory, and its processes in ``/proc``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet_core.files import write_whole
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.state import StudyState, fold
from ajet_research.suites.spending import SpendingArena
from ajet_research.worker import DISK_LIMIT

RESOLUTION = 0.1
"""Seconds by which a time that is read from outside may be wrong."""
_TURN = 0.005
_LONGEST = 1800.0
_TRIALS = "trials"
_LEAD = (
    "import sys; from pathlib import Path; from ajet_research.leader import run_study; "
    "run_study(Path(sys.argv[1]), Path(sys.argv[2]), parallel=2)"
)
_VERIFY = (
    "import json, sys; from pathlib import Path; "
    "from ajet_research.verifying import verify_study; "
    "print(json.dumps(verify_study(Path(sys.argv[1])).problems))"
)
_STUDY = """\
schema = 1

[topic]
question = "How much do trials take that have no end?"

[base]
arena = "spending"

[factors.method]
path = "method"
levels = [{levels}]

[outcome]
metric = "score"
smallest = 0.1

[inference]
alpha = 0.9
repeats = 0
looks = [{{ seeds = 3, alpha = 0.9 }}]

[[compare]]
id = "first-vs-second"
arm = {{ method = {first} }}
against = {{ method = {second} }}

[[decide]]
otherwise = true
conclude = "It is known."

[budget]
trials = {trials}
{budget}
"""
_SECONDS = 1.5
_COMPUTE = 6 * _SECONDS
# A third pair of trials cannot end in it, however slow the machine is.
_WALL = 4.0
_OWN_MIB = 4.0
_DISK_MIB = 25.25


@dataclass(slots=True)
class _GroupUse:
    """The process group of a trial.

    :param start: of the group.
    :param last: when it was seen last.
    :param cpu: seconds, as far as they were seen.
    """

    start: float
    last: float
    cpu: float = 0.0


@dataclass(slots=True)
class OutsideUse:
    """What a study took. Times are those of the clock that counts from the start of the machine.

    :param disk: the largest size of its directory in MiB.
    :param trial_disk: the largest size of the directory of one of its trials in MiB.
    :param began: when its ledger was seen first.
    """

    state: StudyState
    problems: list[str]
    disk: float = 0.0
    trial_disk: float = 0.0
    began: float = 0.0
    groups: dict[int, _GroupUse] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Wall time of the trials of all attempts."""
        return sum(one.last - one.start for one in self.groups.values())

    @property
    def longest(self) -> float:
        """Wall time of the longest attempt."""
        return max((one.last - one.start for one in self.groups.values()), default=0.0)

    @property
    def cpu(self) -> float:
        """CPU seconds of all trials."""
        return sum(one.cpu for one in self.groups.values())

    @property
    def wall(self) -> float:
        """Time from the beginning of the study to the end of its last trial."""
        return max((one.last - self.began for one in self.groups.values()), default=0.0)


def run_real(*, studies: int | None = None) -> dict[str, Any]:
    """Run studies whose trials would take more than their budget, and measure what they take.

    :param studies: how many of the three; None means all.
    """
    if not Path("/proc/self/stat").exists():
        return {"skipped": "there is no /proc", "overruns": {}, "problems": []}
    results: dict[str, Any] = {}
    overruns = {"disk_mib": 0.0, "trial_seconds": 0.0, "wall_seconds": 0.0, "cpu_seconds": 0.0}
    problems: list[str] = []
    for name, limits, levels in _CASES[:studies]:
        with tempfile.TemporaryDirectory(prefix="ajet-budgets-") as folder:
            taken = _taken(Path(folder), limits, levels)
        budget = taken.state.budget
        beyond = {
            "disk_mib": taken.disk - budget.disk_mib,
            "trial_seconds": taken.seconds - budget.compute_hours * 3600 - RESOLUTION,
            "cpu_seconds": taken.cpu - budget.compute_hours * 3600 - RESOLUTION,
            "wall_seconds": taken.wall - budget.wall_hours * 3600 - RESOLUTION,
        }
        for resource, amount in beyond.items():
            overruns[resource] = max(overruns[resource], round(amount, 3))
        ended = [one.outcome for one in taken.state.trials.values() if one.outcome is not None]
        results[name] = {
            "attempts": len(taken.groups),
            "exhausted": taken.state.exhausted.resource if taken.state.exhausted else "",
            "reached": sorted(one.failed for one in ended if one.limit),
            "disk_mib": [round(taken.disk, 2), round(budget.disk_mib, 2)],
            "trial_seconds": [round(taken.seconds, 2), round(budget.compute_hours * 3600, 2)],
            "cpu_seconds": round(taken.cpu, 2),
            "wall_seconds": [round(taken.wall, 2), round(budget.wall_hours * 3600, 2)],
            "longest_trial_seconds": [round(taken.longest, 2), budget.trial_seconds],
        }
        if budget.trial_disk_mib is not None:
            results[name]["largest_trial_mib"] = [round(taken.trial_disk, 2), budget.trial_disk_mib]
        problems += [f"{name}: {one}" for one in taken.problems]
        if not taken.groups:
            problems.append(f"{name}: no trial was measured")
        if taken.state.reported is None:
            problems.append(f"{name}: there is no report")
        if name != "disk" and results[name]["exhausted"] != f"{name}_hours":
            problems.append(f"{name}: the study did not use up its budget")
        if name == "disk" and set(results[name]["reached"]) != {DISK_LIMIT}:
            problems.append(f"{name}: no trial reached its limit")
    return {"studies": results, "overruns": overruns, "problems": problems}


_CASES: tuple[tuple[str, dict[str, float], tuple[str, str]], ...] = (
    (
        "disk",
        {
            "trial_seconds": 600.0,
            "compute_hours": 1.0,
            "trial_disk_mib": _OWN_MIB,
            "disk_mib": _DISK_MIB,
        },
        ("one-file", "many-files"),
    ),
    (
        "compute",
        {"trial_seconds": _SECONDS, "compute_hours": _COMPUTE / 3600, "attempts": 3},
        ("busy", "crashing"),
    ),
    (
        "wall",
        {
            "trial_seconds": _SECONDS,
            "compute_hours": 1.0,
            "wall_hours": _WALL / 3600,
            "attempts": 10,
        },
        ("busy", "crashing"),
    ),
)


def _taken(folder: Path, limits: Mapping[str, float], levels: tuple[str, str]) -> OutsideUse:
    """Run a study, and measure it until its leader ends."""
    source, directory = folder / "study.toml", folder / "study"
    write_whole(source, study_file(limits, levels).encode())
    environment = _with_arena(folder / "arena")
    taken = OutsideUse(StudyState(), [])
    until = _now() + _LONGEST
    with subprocess.Popen(  # noqa: S603 - this program
        [sys.executable, "-c", _LEAD, str(source), str(directory)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as leader:
        while leader.poll() is None:
            _measure(taken, leader.pid, directory)
            if _now() > until:
                leader.kill()
            time.sleep(_TURN)
    _measure(taken, leader.pid, directory)
    if leader.returncode:
        taken.problems.append(f"the leader ended with {leader.returncode}")
    taken.state = fold(read_ledger(directory / LEDGER))
    said = subprocess.run(  # noqa: S603 - this program
        [sys.executable, "-c", _VERIFY, str(directory)],
        env=environment,
        capture_output=True,
        check=True,
    )
    taken.problems += json.loads(said.stdout)
    return taken


def study_file(limits: Mapping[str, float], levels: tuple[str, str]) -> str:
    """Return a study file of two arms with three seeds.

    :param limits: parts of its budget.
    """
    first, second = (json.dumps(one) for one in levels)
    return _STUDY.format(
        levels=f"{first}, {second}",
        first=first,
        second=second,
        trials=6,
        budget="\n".join(f"{name} = {limit!r}" for name, limit in limits.items()),
    )


def _with_arena(folder: Path) -> dict[str, str]:
    """Return an environment whose processes know the arena of this suite."""
    metadata = folder / "ajet_spending-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ajet-spending\nVersion: 1\n")
    arena = f"{SpendingArena.__module__}:{SpendingArena.__name__}"
    (metadata / "entry_points.txt").write_text(f"[agentjet.arenas]\nspending = {arena}\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _measure(taken: OutsideUse, leader: int, directory: Path) -> None:
    now = _now()
    if not taken.began and (directory / LEDGER).exists():
        taken.began = now
    taken.disk = max(taken.disk, _blocks(directory))
    with suppress(FileNotFoundError):
        for trial in (directory / _TRIALS).iterdir():
            taken.trial_disk = max(taken.trial_disk, _blocks(trial))
    processes, now = _processes(), _now()
    workers = {pid for pid, process in processes.items() if process.parent == leader}
    for pid, process in processes.items():
        group = processes.get(process.session)
        if group is not None and (group.parent in workers or process.session in taken.groups):
            seen = taken.groups.setdefault(process.session, _GroupUse(group.start, now))
            seen.last = max(seen.last, now)
            if pid == process.session:
                seen.cpu = max(seen.cpu, process.cpu)


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    session: int
    start: float
    cpu: float


def _processes() -> dict[int, _Process]:
    """Return all processes that have not ended, by their id."""
    ticks = os.sysconf("SC_CLK_TCK")
    processes = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        with suppress(OSError):
            # The name of the program, which may have spaces, ends with the last parenthesis.
            rest = (path / "stat").read_text().rpartition(")")[2].split()
            if rest[0] not in ("Z", "X"):
                processes[int(path.name)] = _Process(
                    parent=int(rest[1]),
                    session=int(rest[3]),
                    start=int(rest[19]) / ticks,
                    cpu=(int(rest[11]) + int(rest[12])) / ticks,
                )
    return processes


def _blocks(directory: Path) -> float:
    """Return what ``du`` says of the content of a directory, in MiB."""
    total = 0
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                total += (Path(folder) / name).lstat().st_blocks
    return total * 512 / 2**20
