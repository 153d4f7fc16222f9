"""Checks in child processes, with limits of CPU time and memory."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from agentjet.judges.model import JudgeFailedError
from ajet_core.errors import ConfigError

MEMORY_BYTES = 2**31
_WALL_SECONDS = 600.0
"""Longest wait for a check. CPU time is what limits it, unless the machine is overloaded."""
_PASSED = ("PATH", "LANG", "SYSTEMROOT", "TMPDIR", "TEMP")
_OVER_LIMIT = frozenset(
    -getattr(signal, name, 0) for name in ("SIGXCPU", "SIGSEGV", "SIGABRT", "SIGBUS")
)
_ISOLATED: tuple[str, ...] = ()
_EXTRA = "pip install 'agentjet[judges]>=0.1'"


class OverLimitError(Exception):
    """A check needed more CPU time or memory than it may."""


class BoundedChecks:
    """Child processes that run the functions of `agentjet.judges.checks`, for any thread.

    A child serves one check at a time and is kept for the next one. One that a check has exhausted
    is replaced. Children end with this process.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._idle: list[subprocess.Popen[str]] = []
        self.forget()

    def run(self, check: str, cpu_seconds: float, **arguments: Any) -> Any:
        """Return what a check returns.

        :raises OverLimitError: it needed too much CPU time or memory.
        :raises ConfigError: the task or the settings of the judge are wrong.
        :raises JudgeFailedError: the check failed, or a package is not installed.
        """
        request = {"check": check, "cpu_seconds": cpu_seconds, "arguments": arguments}
        with self._places:
            answer = self._answer(json.dumps(request))
        if "value" in answer:
            return answer["value"]
        kind, message = answer["error"], answer["message"]
        if kind == "limit":
            raise OverLimitError(message)
        if kind == "config":
            raise ConfigError(f"the judge {check!r}: {message}", param=f"judges.{check}")
        if kind == "missing":
            raise JudgeFailedError(f"the judge {check!r} needs {_EXTRA} ({message})")
        raise JudgeFailedError(f"the judge {check!r} failed: {message}")

    def close(self) -> None:
        """End all children that serve no check."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            _end(child)

    def forget(self) -> None:
        """Leave the children to the process that this one was forked from."""
        # Another thread may have held them when this process was forked.
        self._places = threading.BoundedSemaphore(self._at_once)
        self._lock = threading.Lock()
        self._idle = []

    def _answer(self, request: str) -> Any:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        child = child or _start()
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Timer(_WALL_SECONDS, child.kill)
        late.daemon = True
        late.start()
        line = ""
        try:
            with contextlib.suppress(OSError):
                child.stdin.write(request + "\n")
                child.stdin.flush()
            line = child.stdout.readline()
        finally:
            late.cancel()
            if not line:
                _end(child)
        if line:
            with self._lock:
                self._idle.append(child)
            return json.loads(line)
        if child.returncode in _OVER_LIMIT:
            return {"error": "limit", "message": "it needed too much time"}
        return {
            "error": "judge",
            "message": f"its process ended with status {child.returncode}, or took more than "
            f"{_WALL_SECONDS:g} seconds",
        }


def _start() -> subprocess.Popen[str]:
    environ = {name: os.environ[name] for name in _PASSED if name in os.environ}
    # The same packages, and none of the variables of this process, which has keys.
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environ["PYTHONHASHSEED"] = "0"
    return subprocess.Popen(  # noqa: S603
        [
            sys.executable,
            "-P",
            *_ISOLATED,
            str(Path(__file__).with_name("checks.py")),
            str(MEMORY_BYTES),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        encoding="utf-8",
    )


def _end(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(OSError):
        child.stdin.close()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


checks = BoundedChecks(os.cpu_count() or 1)
"""The children of this process."""

atexit.register(checks.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=checks.forget)
