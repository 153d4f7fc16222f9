"""Launchers that are killed leave nothing once the next one has begun."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ajet_exec import load_sandbox
from ajet_exec.boxes import owners
from ajet_exec.workshop import Workshop

MARK = "31557601"
AT_ONCE = 4
LAUNCHER = f"""
import asyncio, os, sys
from pathlib import Path
from ajet_core.interfaces import BoxProgram
from ajet_exec import load_sandbox
from ajet_exec.workshop import Workshop

async def episode(sandbox, workshop):
    async with workshop.episode() as directory:
        await sandbox.run(
            BoxProgram(
                argv=("sh", "-c", "setsid sleep {MARK} & mkdir -p a/b; touch begun; sleep {MARK}"),
                environ={{"PATH": os.environ["PATH"]}},
                work=directory / "work",
                stdout=directory / "stdout",
                stderr=directory / "stderr",
            ),
            timeout=600.0,
        )

async def main():
    workshop = Workshop(base=Path(sys.argv[1]))
    workshop.open()
    sandbox = load_sandbox("bubblewrap")
    await asyncio.gather(*(episode(sandbox, workshop) for _ in range({AT_ONCE})))

asyncio.run(main())
"""

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "kills", [3, pytest.param(50, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])]
)
@pytest.mark.usefixtures("sandbox")
async def test_nothing_is_left_after_kills(base: Path, kills: int) -> None:
    chosen = random.Random(kills)
    most_processes = most_directories = 0
    for _ in range(kills):
        launcher = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LAUNCHER, str(base), stderr=subprocess.PIPE
        )
        # Some boxes have begun, and others are being made.
        begun = chosen.randint(0, AT_ONCE)
        while len(list(base.glob("*/*/*/work"))) < 1 or (
            len(list(base.glob("*/*/*/work/begun"))) < begun
        ):
            assert launcher.returncode is None, (await launcher.communicate())[1].decode()
            await asyncio.sleep(0.005)
        victims = [launcher.pid]
        if chosen.random() < 0.5:
            # All at once: the launcher, what it started, and the programs.
            victims += started_by(launcher.pid)
            chosen.shuffle(victims)
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        await launcher.wait()
        # What the next launcher does.
        load_sandbox("bubblewrap")
        workshop = Workshop(base=base)
        workshop.open()
        workshop.close()
        most_directories = max(most_directories, len(list(base.iterdir())))
        most_processes = max(most_processes, len(await settled()))
    print(f"{kills} kills: {most_processes} processes, {most_directories} directories left")  # noqa: T201 - the figure
    assert (most_processes, most_directories) == (0, 0)


def started_by(launcher: int) -> list[int]:
    """The processes of a launcher's boxes."""
    return owners.marked(lambda mark: f"-{launcher}-" in mark)


async def settled() -> list[int]:
    """The processes of programs that are left when the kernel has ended the killed ones."""
    for _ in range(500):
        if not (pids := sleeping()):
            break
        await asyncio.sleep(0.01)
    return pids


def sleeping() -> list[int]:
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids
