"""Who started a box: processes carry the mark of their launcher, so that orphans are recognized.

A mark is in the environment of each process of a box and names the launcher's process. It is also
the name of directories and the label of containers. A launcher that was killed cannot clean up, so
the next one removes what belongs to launchers that no longer exist.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

VARIABLE = "AJET_BOX"
_PROC = Path("/proc")
_ROUNDS = 100
_numbers = itertools.count()


def launcher() -> str:
    """Return the name of this process: of its PID namespace, its id and its start."""
    return _name(os.getpid(), _started(os.getpid()))


def new_mark() -> str:
    """Return a mark for one box of this process."""
    return f"{launcher()}:{next(_numbers)}"


def is_gone(mark: str) -> bool:
    """Return whether the launcher that a mark names no longer exists.

    False for a launcher of another PID namespace, of which nothing is known here.
    """
    space, _, rest = mark.partition(":")[0].partition("-")
    pid, _, started = rest.partition("-")
    if space != _space() or not pid.isdigit():
        return False
    return _started(int(pid)) != started


def kill_marked(chosen: Callable[[str], bool]) -> None:
    """Kill all processes with a chosen mark, including those that they start meanwhile."""
    for _ in range(_ROUNDS):
        pids = marked(chosen)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        # Killed processes leave within moments, and there is nothing else to wait for.
        time.sleep(0.002)


def marked(chosen: Callable[[str], bool]) -> list[int]:
    """Return the ids of all processes with a chosen mark, but not that of this one."""
    prefix = f"{VARIABLE}=".encode()
    pids = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        # It ended, or belongs to another user.
        except OSError:
            continue
        marks = [each.removeprefix(prefix) for each in variables if each.startswith(prefix)]
        if any(chosen(mark.decode(errors="replace")) for mark in marks):
            pids.append(int(entry.name))
    return pids


def _name(pid: int, started: str) -> str:
    return f"{_space()}-{pid}-{started}"


def _space() -> str:
    return str((_PROC / "self/ns/pid").stat().st_ino)


def _started(pid: int) -> str:
    """Return the start of a process in clock ticks since boot; "" if it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
