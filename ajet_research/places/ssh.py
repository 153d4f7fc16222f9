"""Processes of hosts that are reached with ssh."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ajet_research.places.interface import JobState, TrialPlace
from ajet_research.places.settings import SshSettings
from ajet_research.worker import BegunNote

_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=10")
_COMMAND_SECONDS = 60.0


class SshPlace(TrialPlace):
    """Hosts with slots. A job's id is its host: processes are known by the files of their trials.

    :param avoid_seconds: for which a host gets no job once it has not answered.
    """

    kind = "ssh"
    queues = False

    def __init__(self, settings: SshSettings, *, avoid_seconds: float) -> None:
        self._settings, self._avoid_seconds = settings, avoid_seconds
        self._failed: dict[str, float] = {}

    def free(self, taken: Sequence[str]) -> bool:
        """Return whether a host that is not avoided has a slot."""
        return self._host(taken) is not None

    def submit(
        self,
        name: str,  # noqa: ARG002 - the trial's path is in the command
        command: list[str],
        seconds: float,  # noqa: ARG002 - the worker ends at its limit
        taken: Sequence[str],
    ) -> str:
        """Start a process that outlives its connection."""
        host = self._host(taken)
        if host is None:
            raise OSError("no host has a free slot")
        # In a session of its own, with nothing that keeps the connection open.
        words = shlex.join(["setsid", *command])
        problem = self._run(host, f"{words} </dev/null >/dev/null 2>&1 &")
        if problem:
            self._failed[host] = time.monotonic()
            raise OSError(f"ssh {host} failed: {problem}")
        return host

    def state(self, job: str) -> JobState:  # noqa: ARG002 - signs of life are in the files
        """Return ``unknown``."""
        return "unknown"

    def withdraw(self, name: str, job: str) -> None:
        """Do nothing: a process starts at once, and ends if its attempt has a result."""

    def end(self, job: str, begun: BegunNote | None, trial: Path) -> None:
        """Kill the worker, if the process with its number is still one of this trial."""
        if begun is None or job not in self._settings.hosts:
            return
        path = f"/proc/{begun.pid:d}/cmdline"
        same = f"grep -qF -e {shlex.quote(str(trial))} {path} 2>/dev/null"
        self._run(job, f"{same} && kill -KILL {begun.pid:d}")

    def _host(self, taken: Sequence[str]) -> str | None:
        busy, now = Counter(taken), time.monotonic()
        free = [
            host
            for host in self._settings.hosts
            if busy[host] < self._settings.slots
            and now - self._failed.get(host, -self._avoid_seconds) >= self._avoid_seconds
        ]
        return min(free, key=lambda host: busy[host], default=None)

    def _run(self, host: str, command: str) -> str:
        """Run a command of a shell on a host; return why it failed, or ""."""
        line = ["ssh", *_OPTIONS, *self._settings.options, "--", host, command]
        try:
            ended = subprocess.run(  # noqa: S603 - found on PATH, as users do
                line,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        said = " ".join(ended.stderr.split())[-300:]
        return (said or f"exit status {ended.returncode}") if ended.returncode else ""
