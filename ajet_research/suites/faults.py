"""Kills of leaders and workers at random moments: the report must come out as without them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

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
_RESULTS = ("report.md", "report.html", "report.json", "intervals.csv", "intervals.svg")


def run_faults(*, seed: int, size: int = 20) -> dict[str, Any]:
    """Kill a leader, and with it a worker in every third case, `size` times in all."""
    began = time.monotonic()
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "study.json"
        study = _slow_study()
        content = canonical(study.model_dump(mode="json", by_alias=True))
        write_whole(source, content.encode())
        # A report lists the studies beside it.
        calm, killed_often = Path(folder) / "1" / "calm", Path(folder) / "2" / "killed"
        run_study(source, calm, runner=FileRunner)
        for index in range(size):
            leader = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-c", _LEAD, str(source), str(killed_often)]
            )
            try:
                # Starting takes a part of it, which also should be interrupted.
                leader.wait(timeout=rng.uniform(0.2, 5.0))
                killed["ended before"] += 1
            except subprocess.TimeoutExpired:
                while index % 3 == 2 and leader.poll() is None:
                    if _kill_worker(killed_often, rng):
                        killed["worker"] += 1
                        break
                    time.sleep(_TURN)
                leader.kill()
                leader.wait()
                killed["leader"] += 1
        last = subprocess.run(  # noqa: S603 - this program
            [sys.executable, "-c", _LEAD, str(source), str(killed_often)], check=False, timeout=600
        )
        different = [
            name
            for name in _RESULTS
            if (calm / REPORT / name).read_bytes() != (killed_often / REPORT / name).read_bytes()
        ]
        finished = Counter(
            row.event.trial
            for row in read_ledger(killed_often / LEDGER)
            if row.event.kind == "finished"
        )
        problems = verify_study(killed_often).problems
    twice = sum(count > 1 for count in finished.values())
    return {
        "suite": "faults",
        "kills": dict(sorted(killed.items())),
        "trials": len(finished),
        "counted_twice": twice,
        "different": different,
        "problems": problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not (different or problems or twice or last.returncode),
    }


def _slow_study() -> Study:
    study = planted_study("medium", looks=((6, 0.04), (8, 0.01)), repeats=1)
    settings = {**study.base.set, "steps": 5, "step_seconds": 0.2}
    budget = study.budget.model_copy(update={"attempts": 10})
    base = study.base.model_copy(update={"set": settings})
    return study.model_copy(update={"base": base, "budget": budget})


def _kill_worker(directory: Path, rng: random.Random) -> bool:
    """Kill the supervisor of a trial that runs; return whether there was one."""
    locks = sorted((directory / TRIALS).glob(f"*/{LOCK}"))
    rng.shuffle(locks)
    for lock in locks:
        pid = lock.read_text(encoding="ascii").strip()
        command = Path(f"/proc/{pid}/cmdline")
        # Another process may have the number by now.
        if pid and command.exists() and str(lock.parent).encode() in command.read_bytes():
            os.kill(int(pid), signal.SIGKILL)
            return True
    return False
