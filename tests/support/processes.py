"""A server in several processes, and how to find and end each."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from tests.support.scripted_server import ServerProcess


def children(pid: int) -> list[int]:
    """The child processes of a process; none once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sorted(child.pid for child in psutil.Process(pid).children())
    return []


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
