"""A server in several processes, and how to find and end each."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.scripted_server import ServerProcess


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


def is_server(pid: int) -> bool:
    """Whether a process of a server is the one that has workers."""
    return bool(children(pid))


def gateways(server: ServerProcess) -> list[int]:
    """The gateway processes of a server whose run has started."""
    return [pid for pid in children(server.process.pid) if not is_server(pid)]


def server_pid(server: ServerProcess) -> int:
    """The server process of a server whose run has started."""
    (pid,) = (pid for pid in children(server.process.pid) if is_server(pid))
    return pid


def end(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
