"""Launchers of sandboxes are killed with SIGKILL: how much is left of each sandbox, JSON last.

It is the test of `SandboxSuite` with more kills: of the launcher alone, after the outer processes
of its boxes, and with all that it started, by turns; when its boxes have begun, or are being made.
`left` is the most that the next launcher did not remove after any kill: processes, directories, and
others such as containers.

    python benchmarks/exec_kills.py [--kills N] [--at-once N] [--output FILE] [SANDBOX]...
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reporting import report

sys.path.insert(0, str(Path(__file__).parents[1]))

from ajet_testing.suites.sandbox_suite import LeftByKills
from tests.exec.test_sandboxes import TestBubblewrap, TestDocker, TestNone, TestPodman
from tests.exec.usable import no_bubblewrap, no_containers

SUITES = {
    "bubblewrap": TestBubblewrap,
    "none": TestNone,
    "podman": TestPodman,
    "docker": TestDocker,
}


def problem(name: str) -> str:
    """Return why a sandbox cannot be used; "" if it can."""
    return no_containers(name) if name in ("podman", "docker") else no_bubblewrap()


def killed(name: str, kills: int, at_once: int) -> dict[str, object]:
    """Kill so many launchers of a sandbox, and count what is left."""
    if why := problem(name):
        return {"sandbox": name, "problem": why}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        case = SUITES[name]()
        with ThreadPoolExecutor(at_once) as pool:
            each = pool.map(lambda number: case.left_by_kill(Path(place), number), range(kills))
            left = functools.reduce(LeftByKills.most, each, LeftByKills())
    return {
        "sandbox": name,
        "kills": kills,
        "at_once": at_once,
        "left": dataclasses.asdict(left),
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sandboxes", nargs="*", metavar="SANDBOX", default=["bubblewrap"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows = [killed(name, given.kills, given.at_once) for name in given.sandboxes]
    report({"benchmark": "exec_kills", "sandboxes": rows}, given.output)
