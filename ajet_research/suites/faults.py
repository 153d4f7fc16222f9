"""Kills of leaders and workers at random moments: the report must come out as without them."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import AjetError
from ajet_core.files import write_whole
from ajet_research.leader import REPORT, TRIALS, run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.runners import FileRunner
from ajet_research.study import Study, canonical
from ajet_research.suites.planted import planted_study
from ajet_research.verifying import verify_study
from ajet_research.worker import LOCK

_LEAD = (
    "import sys; from pathlib import Path; from ajet_research.leader import run_study; "
    "run_study(Path(sys.argv[1]), Path(sys.argv[2]), parallel=2)"
)
_TURN = 0.02
_LONGEST = 600.0
_BACK_SECONDS = 5.0
_RESULTS = ("report.md", "report.html", "report.json", "intervals.csv", "intervals.svg")


def run_faults(*, seed: int, size: int = 20) -> dict[str, Any]:
    """Kill leaders and workers `size` times in all, in as many studies as that takes."""
    began = time.monotonic()
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    killed: Counter[str] = Counter()
    back: list[float] = []
    problems: list[str] = []
    studies = trials = lost = twice = 0
    with tempfile.TemporaryDirectory() as folder:
        while killed.total() < size:
            studies += 1
            place = Path(folder) / str(studies)
            # A report lists the studies beside it.
            calm, killed_often = place / "1" / "calm", place / "2" / "killed"
            calm.parent.mkdir(parents=True)
            source = place / "study.json"
            study = _slow_study(1 + 100 * studies)
            write_whole(source, canonical(study.model_dump(mode="json", by_alias=True)).encode())
            run_study(source, calm, runner=FileRunner)
            one = _KilledStudy(source, killed_often, rng, killed, back)
            if status := one.lead(size):
                problems.append(f"study {studies}: the leader ended with {status}")
                break
            problems += [
                f"study {studies}: {name} is different"
                for name in _RESULTS
                if (calm / REPORT / name).read_bytes()
                != (killed_often / REPORT / name).read_bytes()
            ]
            problems += verify_study(killed_often).problems
            wanted, finished = _finished(calm), _finished(killed_often)
            trials += len(finished)
            lost += len(wanted.keys() - finished.keys())
            twice += sum(count > 1 for count in finished.values())
    back_seconds = round(statistics.median(back), 2) if back else None
    return {
        "suite": "faults",
        "kills": killed.total(),
        "killed": dict(sorted(killed.items())),
        "studies": studies,
        "trials": trials,
        "lost": lost,
        "twice": twice,
        "back_seconds": back_seconds,
        "back_worst": round(max(back), 2) if back else None,
        "problems": problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not (problems or lost or twice)
        and (back_seconds is None or back_seconds <= _BACK_SECONDS),
    }


@dataclass(frozen=True, slots=True)
class _KilledStudy:
    """A study whose processes are killed until it has ended.

    :param killed: counts the kills of all studies, by kind.
    :param back: seconds from the start of a leader to its first row. Only leaders that may live
        until then are measured: those that are killed sooner would leave out the slow ones.
    """

    source: Path
    directory: Path
    rng: random.Random
    killed: Counter[str]
    back: list[float]

    def lead(self, most: int) -> int:
        """Lead the study to its end, with at most so many kills; return the exit status."""
        while True:
            began, rows = time.monotonic(), self._rows()
            with subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-c", _LEAD, str(self.source), str(self.directory)]
            ) as leader:
                if self.rng.random() < 0.5:
                    while leader.poll() is None and self._rows() == rows:
                        if time.monotonic() - began > _LONGEST:
                            leader.kill()
                        time.sleep(_TURN)
                    self.back.append(time.monotonic() - began)
                while self.killed.total() < most and leader.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        leader.wait(timeout=self.rng.uniform(0.2, 4.0))
                    if leader.poll() is None and self._kill(leader):
                        break
                else:
                    with suppress(subprocess.TimeoutExpired):
                        return leader.wait(timeout=_LONGEST)
                    leader.kill()
                    return leader.wait()

    def _kill(self, leader: subprocess.Popen[bytes]) -> bool:
        """Kill a worker, the leader, or the leader and all workers; return whether it died."""
        target = self.rng.choice(("worker", "leader", "all"))
        if target != "leader":
            pids = _workers(self.directory)
            for pid in pids if target == "all" else pids[:1]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed["worker"] += 1
        if target == "worker":
            return False
        leader.kill()
        self.killed["leader"] += 1
        return True

    def _rows(self) -> int:
        # It may be created at this moment.
        with suppress(AjetError):
            return sum(1 for _ in read_ledger(self.directory / LEDGER))
        return 0


def _finished(directory: Path) -> Counter[str]:
    rows = read_ledger(directory / LEDGER)
    return Counter(row.event.trial for row in rows if row.event.kind == "finished")


def _slow_study(first_seed: int) -> Study:
    study = planted_study("medium", looks=((6, 0.04), (8, 0.01)), repeats=1)
    settings = {**study.base.set, "steps": 5, "step_seconds": 0.2}
    changes = {
        "base": study.base.model_copy(update={"set": settings}),
        "budget": study.budget.model_copy(update={"attempts": 10}),
        "inference": study.inference.model_copy(update={"first_seed": first_seed}),
    }
    return study.model_copy(update=changes)


def _workers(directory: Path) -> list[int]:
    """Return the supervisors of trials that run."""
    pids = []
    for lock in (directory / TRIALS).glob(f"*/{LOCK}"):
        pid = lock.read_text(encoding="ascii").strip()
        command = Path(f"/proc/{pid}/cmdline")
        with suppress(OSError):
            # Another process may have the number by now.
            if pid and str(lock.parent).encode() in command.read_bytes():
                pids.append(int(pid))
    return pids
