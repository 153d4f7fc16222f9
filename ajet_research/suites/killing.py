"""Processes of a study, by what they do, as ``/proc`` shows them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from ajet_research.leader import TRIALS
from ajet_research.worker import LOCK

_SERVE, _MCP = b"serve", b"mcp"


def workers(directory: Path) -> list[int]:
    """Return the supervisors of a study's trials that run."""
    pids = []
    for lock in (directory / TRIALS).glob(f"*/{LOCK}"):
        pid = lock.read_text(encoding="ascii").strip()
        # Another process may have the number by now.
        if pid and str(lock.parent).encode() in b"\0".join(_command(int(pid))):
            pids.append(int(pid))
    return pids


def clients(directory: Path) -> list[int]:
    """Return the processes that run trials: on a swarm server, they are its clients."""
    return [child for worker in workers(directory) for child in children(worker)]


def servers(directory: Path) -> list[int]:
    """Return the swarm servers of a study's trials."""
    below = [child for client in clients(directory) for child in children(client)]
    return [pid for pid in below if _SERVE in _command(pid)]


def server_workers(directory: Path) -> list[int]:
    """Return the worker processes of the swarm servers of a study's trials."""
    return [child for server in servers(directory) for child in children(server)]


def mcp_servers(driver: int) -> list[int]:
    """Return the processes ``ajet mcp`` that a driver has started."""
    return [pid for pid in children(driver) if _MCP in _command(pid)]


def children(parent: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    return [pid for pid, above in _parents().items() if above == parent]


def left_in(directory: Path) -> list[int]:
    """Return the processes whose command or working directory names a directory."""
    pids = []
    for pid in _parents():
        where = ""
        with suppress(OSError):
            where = str(Path(f"/proc/{pid}/cwd").readlink())
        named = f"{directory}/".encode() in b"\0".join(_command(pid))
        if pid != os.getpid() and (named or Path(where).is_relative_to(directory)):
            pids.append(pid)
    return pids


def kill(pid: int) -> bool:
    """Kill a process; return whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _parents() -> dict[int, int]:
    """Return the parent of each process that has not ended."""
    parents_of: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # It may end at this moment.
        with suppress(OSError):
            state, parent, *_ = (
                path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            )
            if state != "Z":
                parents_of[int(path.parent.name)] = int(parent)
    return parents_of
