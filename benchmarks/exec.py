"""What the launcher of `ajet exec` adds to an episode: wall and CPU seconds, JSON last.

An episode is a working copy of 100 files and two sandboxes, that of the program with an endpoint.
Program and reward are ``true``, so that what is measured is the launcher and the sandboxes.

With AT_ONCE, as many episodes begin at the same moment, in as many rounds as EPISODES needs, and
the seconds are those of an episode among the others.

    python benchmarks/exec.py [EPISODES] [SANDBOX] [AT_ONCE]
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ajet_core.interfaces import BoxProgram, Sandbox
from ajet_exec import load_sandbox
from ajet_exec.endpoint import relay
from ajet_exec.workshop import Workshop

GOAL_SECONDS = 0.2
GOAL_CPU_SECONDS = 0.1


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


async def episode(sandbox: Sandbox, workshop: Workshop) -> None:
    """Do what the launcher does for an episode, with a program and a reward that do nothing."""
    async with workshop.episode() as directory:
        for name, endpoints in (
            ("agent", {8642: relay("http://127.0.0.1:8642/v1")}),
            ("grade", {}),
        ):
            program = BoxProgram(
                argv=("true",),
                environ={"PATH": os.environ["PATH"]},
                work=directory / "work",
                stdout=directory / f"{name}.out",
                stderr=directory / f"{name}.err",
                endpoints=endpoints,
            )
            ended = await sandbox.run(program, timeout=60.0)
            assert ended.status == 0


async def main(count: int, name: str, at_once: int) -> None:
    sandbox = load_sandbox(name)
    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory) / "files"
        files.mkdir()
        for number in range(100):
            (files / f"{number}.py").write_text("x = 1\n" * 100)
        workshop = Workshop(files, base=Path(directory) / "copies")
        workshop.open()
        await episode(sandbox, workshop)
        seconds: list[float] = []
        used: list[float] = []

        async def timed() -> None:
            began = time.perf_counter()
            await episode(sandbox, workshop)
            seconds.append(time.perf_counter() - began)

        began_all = time.perf_counter()
        for first in range(0, count, at_once):
            number, before = min(at_once, count - first), cpu()
            await asyncio.gather(*(timed() for _ in range(number)))
            used.append((cpu() - before) / number)
        whole = time.perf_counter() - began_all
        left = len(list(workshop.base.rglob("work")))
        workshop.close()
    print(
        f"{name}: {count} episodes, {at_once} at once, a copy of 100 files and two sandboxes each"
    )
    print(
        json.dumps(
            {
                "sandbox": name,
                "episodes": count,
                "at_once": at_once,
                "episodes_per_second": round(count / whole, 2),
                "seconds_most": round(max(seconds), 4),
                "directories_left": left,
                "seconds_median": round(statistics.median(seconds), 4),
                "cpu_seconds_median": round(statistics.median(used), 4),
                "goal_seconds": GOAL_SECONDS,
                "goal_cpu_seconds": GOAL_CPU_SECONDS,
                "load": os.getloadavg()[0],
            }
        )
    )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(
        main(
            int(arguments[0]) if arguments else 50,
            arguments[1] if len(arguments) > 1 else "bubblewrap",
            int(arguments[2]) if len(arguments) > 2 else 1,
        )
    )
