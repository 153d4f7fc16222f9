"""Kills of all processes of studies at random moments: the reports must come out as without them.

There are three kinds of studies. ``plain`` ones have a leader and the workers of its trials,
``driven`` ones a driver and its ``ajet mcp`` besides, and the trials of ``swarm`` ones are runs on
swarm servers, whose engine and trainer are scripted.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import AjetError
from ajet_core.files import write_whole
from ajet_research.leader import REPORT, run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import FileRunner
from ajet_research.steering import leader_of
from ajet_research.study import Study, canonical
from ajet_research.suites.killing import (
    clients,
    kill,
    left_in,
    mcp_servers,
    server_workers,
    servers,
    workers,
)
from ajet_research.suites.planted import planted_study
from ajet_research.swarm.machine import missing_packages
from ajet_research.verifying import verify_study
from ajet_worlds.bandit import BEST_ARM

_LEAD = (
    "import sys; from pathlib import Path; from ajet_research.leader import run_study; "
    "run_study(Path(sys.argv[1]), Path(sys.argv[2]), parallel=2)"
)
_TURN = 0.02
_REPORT_TURN = 0.001
_LONGEST = 3600.0
_GONE_SECONDS = 120.0
_BACK_SECONDS = 5.0
_SCRIPTED = "scripted"
_OF_THE_LAST_STEP = "train_reward"
_RESULTS = ("report.md", "report.html", "report.json", "intervals.csv", "intervals.svg")
_SHARES = {"swarm": 0.12, "driven": 0.16}
"""Of all kills, by kind of study; the rest are in plain ones."""
_MOST_IN_A_SWARM_STUDY = 8
"""Kills. A trial has ten attempts."""
_WATCHED_SHARE = 0.6
"""Of the leaders that come to the report, those that are killed while they write it."""
_UNTIL_A_KILL = {"plain": (0.2, 4.0), "driven": (0.2, 6.0), "swarm": (1.0, 12.0)}
"""Seconds between two moments, at least and at most, by kind of study."""
_AIMS = {
    "plain": ("worker", "leader", "all"),
    "driven": ("driver", "mcp", "leader", "worker", "all"),
    "swarm": ("server", "server_worker", "client", "all"),
}
"""What is killed at a moment, by kind of study."""


def run_faults(*, seed: int, size: int = 20) -> dict[str, Any]:
    """Kill processes of studies `size` times in all, in as many studies as that takes."""
    began = time.monotonic()
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    tally = _KillCounts(Counter(), Counter(), Counter(), defaultdict(list), [])
    skipped = {kind: why for kind, absent in _ABSENT.items() if (why := absent())}
    # At least one of each, if there are enough.
    shares = {
        kind: 0 if kind in skipped else max(round(size * share), min(1, size // len(_AIMS)))
        for kind, share in _SHARES.items()
    }
    until = {**dict(zip(shares, itertools.accumulate(shares.values()), strict=True)), "plain": size}
    studies: Counter[str] = Counter()
    trials = lost = twice = 0
    with tempfile.TemporaryDirectory() as folder:
        environ = _environ(Path(folder))
        for kind, most in until.items():
            while tally.kills < most and not tally.problems:
                studies[kind] += 1
                number = studies.total()
                one = _KilledStudy(kind, Path(folder) / str(number), environ, rng, tally)
                try:
                    counted = one.compare(number, most)
                finally:
                    for pid in left_in(one.place):
                        kill(pid)
                trials += sum(count > 0 for count in counted.values())
                lost += sum(count == 0 for count in counted.values())
                twice += sum(count > 1 for count in counted.values())
    all_back = [seconds for some in tally.back.values() for seconds in some]
    back_seconds = round(statistics.median(all_back), 2) if all_back else None
    return {
        "suite": "faults",
        "kills": tally.kills,
        "killed": dict(sorted(tally.by_process.items())),
        "kills_by_kind": dict(sorted(tally.by_kind.items())),
        "studies": studies.total(),
        "studies_by_kind": dict(studies),
        "trials": trials,
        "lost": lost,
        "twice": twice,
        "back_seconds": back_seconds,
        "back_worst": round(max(all_back), 2) if all_back else None,
        "back_by_kind": {
            kind: round(statistics.median(some), 2) for kind, some in sorted(tally.back.items())
        },
        "skipped": skipped,
        "problems": tally.problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not (tally.problems or lost or twice or skipped)
        and (back_seconds is None or back_seconds <= _BACK_SECONDS),
    }


@dataclass(frozen=True, slots=True)
class _KillCounts:
    """What all studies together have shown.

    :param by_process: kills, by what the process does.
    :param by_kind: kills, by what was aimed at.
    :param by_aim: the same, for each kind of study.
    :param back: seconds from the start of a leader, or of a driver without one, to the next row,
        by kind of study. Only those that may live until then are measured: those that are killed
        sooner would leave out the slow ones.
    """

    by_process: Counter[str]
    by_kind: Counter[str]
    by_aim: Counter[tuple[str, str]]
    back: defaultdict[str, list[float]]
    problems: list[str]

    @property
    def kills(self) -> int:
        """Processes that were killed."""
        return self.by_process.total()


@dataclass(frozen=True, slots=True)
class _KilledStudy:
    """A study whose processes are killed until it has ended, and the same one without kills."""

    kind: str
    place: Path
    environ: Mapping[str, str]
    rng: random.Random
    tally: _KillCounts

    @property
    def source(self) -> Path:
        """The study file. A report lists the studies beside it, so the two are apart."""
        return self.place / "2" / "study.json"

    @property
    def directory(self) -> Path:
        """The directory of the study that is killed."""
        return self.place / "2" / "study.study"

    def compare(self, number: int, most: int) -> Counter[str]:
        """Run both, and note what is different.

        :param most: kills of all studies until then.
        :return: how often each trial has finished that should have.
        """
        study = _STUDIES[self.kind](1 + 100 * number)
        self.source.parent.mkdir(parents=True)
        write_whole(self.source, canonical(study.model_dump(mode="json", by_alias=True)).encode())
        calm = self.place / "1" / "calm"
        calm.parent.mkdir()
        if self.kind == "swarm":
            subprocess.run(  # noqa: S603 - this program
                [sys.executable, "-c", _LEAD, str(self.source), str(calm)],
                env=self.environ,
                check=True,
                timeout=_LONGEST,
            )
            most = min(most, self.tally.kills + _MOST_IN_A_SWARM_STUDY)
        else:
            run_study(self.source, calm, runner=FileRunner)
        problems = []
        if status := self._run(most):
            problems.append(f"it ended with {status}")
        else:
            problems += [
                f"{name} is different"
                for name in _RESULTS
                if _comparable(calm / REPORT / name) != _comparable(self.directory / REPORT / name)
            ]
            problems += verify_study(self.directory).problems
        problems += self._left()
        self.tally.problems.extend(f"{self.kind} study {number}: {one}" for one in problems)
        finished = _finished(self.directory)
        return Counter({**dict.fromkeys(_finished(calm), 0), **finished})

    def _run(self, most: int) -> int:
        """Have the study led to its end, with at most so many kills; return the exit status."""
        while True:
            with (self.place / "log").open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 - this program
                    self._command(), env=self.environ, cwd=self.place, stderr=log
                )
            with process:
                if self.rng.random() < 0.5:
                    self._see_it_back(process)
                while self.tally.kills < most:
                    moment = self._wait(process)
                    if moment == "ended" or self._kill(process, moment):
                        break
                else:
                    with suppress(subprocess.TimeoutExpired):
                        return process.wait(timeout=_LONGEST)
                    process.kill()
                    return process.wait()
                if moment == "ended":
                    return process.wait()

    def _command(self) -> list[str]:
        what = ("-c", _LEAD) if self.kind != "driven" else ("-P", "-m", "ajet_cli.studies.driving")
        return [sys.executable, *what, str(self.source), str(self.directory)]

    def _see_it_back(self, process: subprocess.Popen[bytes]) -> None:
        """Measure the time to the next row, unless a leader is at work that was not killed."""
        began, rows = time.monotonic(), self._rows()
        if self.kind == "driven" and leader_of(self.directory):
            return
        while process.poll() is None and self._rows() == rows:
            if time.monotonic() - began > _LONGEST:
                process.kill()
            time.sleep(_TURN)
        if self._rows() != rows:
            self.tally.back[self.kind].append(time.monotonic() - began)

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for a random time, or until some files of the report are written.

        :return: ``ended`` if the process has ended, ``report`` if its leader is to be killed while
            it writes the report, ``moment`` otherwise.
        """
        until = time.monotonic() + self.rng.uniform(*_UNTIL_A_KILL[self.kind])
        written = self.rng.randint(1, len(_RESULTS) + 2)
        watched = self.rng.random() < _WATCHED_SHARE
        # Outcomes of a leader that was killed were reported before.
        before = self._reported()
        while time.monotonic() < until:
            if watched and len(self._reported() - before) >= written:
                return "report"
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_REPORT_TURN)
                return "ended"
        return "moment"

    def _reported(self) -> set[tuple[str, int]]:
        """Return the files of the report, each with its number, which is another one each time."""
        with suppress(OSError), os.scandir(self.directory / REPORT) as files:
            return {(one.name, one.inode()) for one in files}
        return set()

    def _kill(self, process: subprocess.Popen[bytes], moment: str) -> bool:
        """Kill what is aimed at; return whether `process` has ended by that."""
        aim = "report" if moment == "report" else self._aim()
        pids = self._processes(process)
        if aim == "all":
            # Those first that would start others again.
            targets = [(role, pid) for role, members in pids.items() for pid in members]
        else:
            role = "leader" if aim == "report" else aim
            targets = [(role, pid) for pid in pids[role][:1]]
        for role, pid in targets:
            if kill(pid):
                self.tally.by_process[role] += 1
                self.tally.by_kind[aim] += 1
                self.tally.by_aim[self.kind, aim] += 1
        mine = {pid for _, pid in targets}
        if process.pid not in mine and not (aim == "mcp" and mine):
            return False
        # A driver ends without its server.
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_LONGEST)
            return True
        self.tally.problems.append(f"a {self.kind} study hangs without its {aim}")
        process.kill()
        return True

    def _aim(self) -> str:
        """Return what was killed least in studies of this kind."""
        aims = _AIMS[self.kind]
        return min(aims, key=lambda aim: (self.tally.by_aim[self.kind, aim], self.rng.random()))

    def _processes(self, process: subprocess.Popen[bytes]) -> dict[str, list[int]]:
        """Return the processes of the study, by what they do, those first that start others."""
        pids: dict[str, list[int]] = {}
        if self.kind == "driven":
            pids["driver"] = [process.pid]
            pids["mcp"] = mcp_servers(process.pid)
            leader = leader_of(self.directory)
            pids["leader"] = [int(leader)] if leader else []
        else:
            pids["leader"] = [process.pid]
        pids["worker"] = workers(self.directory)
        if self.kind == "swarm":
            pids["client"] = clients(self.directory)
            pids["server"] = servers(self.directory)
            pids["server_worker"] = server_workers(self.directory)
        return pids

    def _rows(self) -> int:
        # It may be created at this moment.
        with suppress(AjetError):
            return sum(1 for _ in read_ledger(self.directory / LEDGER))
        return 0

    def _left(self) -> list[str]:
        """Return what still runs of a study that has ended."""
        until = time.monotonic() + _GONE_SECONDS
        while (left := left_in(self.place)) and time.monotonic() < until:
            time.sleep(_TURN)
        return [f"process {pid} still runs" for pid in left]


def _finished(directory: Path) -> Counter[str]:
    if not (directory / LEDGER).exists():
        return Counter()
    rows = read_ledger(directory / LEDGER)
    return Counter(row.event.trial for row in rows if row.event.kind == "finished")


def _comparable(path: Path) -> bytes:
    """Return a file of a report, without a metric that depends on which tasks a step has.

    If a client is killed, a task can lose its place in a batch to another one.
    """
    content = path.read_bytes()
    if path.name != "report.json":
        return content
    report = json.loads(content)
    for trial in report["trials"].values():
        trial["metrics"].pop(_OF_THE_LAST_STEP, None)
    return canonical(report).encode()


def _slow_study(first_seed: int) -> Study:
    study = planted_study("medium", looks=((6, 0.04), (8, 0.01)), repeats=1)
    settings = {**study.base.set, "steps": 5, "step_seconds": 0.2}
    changes = {
        "base": study.base.model_copy(update={"set": settings}),
        "budget": study.budget.model_copy(update={"attempts": 10}),
        "inference": study.inference.model_copy(update={"first_seed": first_seed}),
    }
    return study.model_copy(update=changes)


def _swarm_study(first_seed: int) -> Study:
    """Return a study whose one arm pulls the best arm of each lamp, and the other one never does.

    So both success rates are certain, whichever tasks are trained on.
    """
    levels = [
        f"json:{canonical({'replies': [_reply(lamp, off) for lamp in range(len(BEST_ARM))]})}"
        for off in (1, 0)
    ]
    settings = {
        "world": "bandit",
        "train_steps": 12,
        "eval_tasks": 16,
        "warmup_steps": 0,
        "batch.tasks": 4,
        "batch.episodes_per_task": 2,
        "engine.name": _SCRIPTED,
        "trainer.name": _SCRIPTED,
        "failures.pause_on": "json:[]",
        "preflight.enabled": False,
    }
    study = {
        "schema": 1,
        "topic": {"question": "Does the best arm of each lamp pay more often?"},
        "base": {"arena": "swarm", "set": settings},
        "factors": {"replies": {"path": "engine.settings", "levels": levels}},
        "outcome": {"metric": "success", "smallest": 0.2},
        "inference": {
            "looks": [{"seeds": 2, "alpha": 0.5}],
            "alpha": 0.5,
            "first_seed": first_seed,
            "repeats": 0,
        },
        "compare": [
            {
                "id": "best-vs-others",
                "arm": {"replies": levels[1]},
                "against": {"replies": levels[0]},
            }
        ],
        "decide": [{"otherwise": True, "conclude": "See the verdicts."}],
        "budget": {"trials": 4, "trial_seconds": 3600, "compute_hours": 100, "attempts": 10},
    }
    return Study.model_validate(study)


def _reply(lamp: int, off: int) -> dict[str, Any]:
    return {"prompt": f"lamp {lamp}", "says": [f"{(BEST_ARM[lamp] + off) % 4}<|im_end|>"]}


def _environ(folder: Path) -> dict[str, str]:
    """Return an environment whose processes have the scripted engine and trainer."""
    site = folder / "site"
    info = site / f"{_SCRIPTED}-1.0.dist-info"
    info.mkdir(parents=True)
    module = f"{_SCRIPTED}_hooks"
    (site / f"{module}.py").write_text("from ajet_testing.hooks import *\n", encoding="utf-8")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {_SCRIPTED}\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        f"[agentjet]\n{_SCRIPTED} = {module}\n[agentjet.hook_api]\n1.0 = {module}\n",
        encoding="utf-8",
    )
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _why_not_driven() -> str:
    return "" if importlib.util.find_spec("mcp") else "the package mcp is not installed"


def _why_no_swarm() -> str:
    missing = missing_packages()
    return f"packages are not installed: {', '.join(missing)}" if missing else ""


_STUDIES: dict[str, Callable[[int], Study]] = {
    "plain": _slow_study,
    "driven": _slow_study,
    "swarm": _swarm_study,
}
_ABSENT: dict[str, Callable[[], str]] = {"driven": _why_not_driven, "swarm": _why_no_swarm}
"""By kind of study, what returns why it cannot run here, "" if it can."""
