"""The supervisor of one attempt: ``python -m ajet_research.worker TRIAL ATTEMPT [PATIENCE]``.

It runs the trial in a process group of its own, kills it when its time is over, and writes what
became of it. It outlives its leader. The trial does not outlive it.

With a patience in seconds, it runs on another machine than its leader, with which it shares the
directory of the trial and nothing else. Two rules hold there, whatever is lost or late. An attempt
begins once: the first of its workers creates its file ``begun``. It has one result: the worker or
the leader creates it, but not both. A leader that gives up an attempt writes its result, and a
worker that still runs ends once it sees one.
"""

from __future__ import annotations

import math
import os
import resource
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ajet_core.files import lock_file, read_bytes, sync, write_whole
from ajet_research.arenas import TrialBlueprint, load_arena
from ajet_research.disk import used_mebibytes

BLUEPRINT = "blueprint.json"
LOG = "log.txt"
STORE = "store"
LOCK = "lock"
TIME_LIMIT = "time limit"
DISK_LIMIT = "disk limit"
TOO_LATE = "too little was left of wall_hours once its worker had started"
HELD = 3
"""Exit status if another process has the trial."""
GIVEN_UP = 4
"""Exit status if the leader gave up the attempt while it ran."""
JOB_VARIABLE = "SLURM_JOB_ID"
_TURN = 0.01
_KEPT_LOG = 2**16
_GIVEN_UP = 1000
"""Stands for the exit status of a trial that was given up. No real one is as large."""
_SIGN_SECONDS = 1.0
"""Between two signs of life."""


class AttemptResult(BaseModel):
    """What became of an attempt.

    :param status: ``done`` if the trial ended by itself; ``limit`` if it reached a limit;
        ``failed`` otherwise.
    :param seconds: wall time, of the monotonic clock.
    :param mebibytes: the largest size of the trial's directory; None if it has no limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempt: int
    status: Literal["done", "limit", "failed"]
    cause: str
    seconds: float
    mebibytes: float | None = Field(None, exclude_if=lambda value: value is None)

    def reached(self, blueprint: TrialBlueprint) -> str:
        """Return the limit of its trial that it reached; "" if none."""
        if blueprint.disk_mib is not None and (self.mebibytes or 0.0) > blueprint.disk_mib:
            return DISK_LIMIT
        return TIME_LIMIT if self.status == "limit" and self.seconds >= blueprint.seconds else ""


class BegunNote(BaseModel):
    """Who began an attempt.

    :param job: id of the worker's Slurm job; "" without one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str
    pid: int
    job: str


def result_path(trial: Path, attempt: int) -> Path:
    """Return where the result of an attempt is written, whole."""
    return trial / f"result-{attempt}.json"


def begun_path(trial: Path, attempt: int) -> Path:
    """Return the file that exists once the worker of an attempt has the trial."""
    return trial / f"begun-{attempt}"


def main(trial: Path, attempt: int, patience: float = 0.0, until: float = math.inf) -> int:
    """Supervise an attempt.

    :param patience: seconds to wait for an earlier attempt that still has the trial; 0 if the
        leader is on this machine.
    :param until: when the trial has to end, by the monotonic clock of this machine. If less than
        its time is left by now, it does not start.
    """
    result = result_path(trial, attempt)
    if not _locked(trial, result, patience):
        return HELD
    if is_listed(result):
        return 0
    # A leader inside a job has that job's id, which is not this attempt's.
    job = os.environ.get(JOB_VARIABLE, "") if patience else ""
    note = BegunNote(host=socket.gethostname(), pid=os.getpid(), job=job)
    if not create_once(begun_path(trial, attempt), note.model_dump_json().encode()):
        return HELD
    blueprint = TrialBlueprint.model_validate_json(read_bytes(trial / BLUEPRINT))
    (trial / STORE).mkdir(exist_ok=True)
    began = time.monotonic()
    if began + blueprint.seconds > until:
        late = AttemptResult(attempt=attempt, status="failed", cause=TOO_LATE, seconds=0.0)
        return _written(result, late, once=bool(patience))
    reading, writing = os.pipe()
    # The lock's descriptor is inherited: the trial is free when both processes have ended.
    child = os.fork()
    if child == 0:
        os.close(writing)
        _run(blueprint, trial, reading)
    os.close(reading)
    size = _Size(trial, blueprint.disk_mib)
    code = _watched(child, began + blueprint.seconds, begun_path(trial, attempt), result, size)
    if code is None or code == _GIVEN_UP:
        # It may not have its group yet.
        os.kill(child, signal.SIGKILL)
    _kill_group(child)
    if code is None or code == _GIVEN_UP:
        os.waitpid(child, 0)
    if code == _GIVEN_UP:
        return GIVEN_UP
    seconds = round(time.monotonic() - began, 3)
    content = _result(trial, attempt, code, seconds, size.largest())
    if content.reached(blueprint) == DISK_LIMIT:
        content = content.model_copy(update={"status": "limit", "cause": ""})
        _clear(trial)
    return _written(result, content, once=bool(patience))


def _watched(child: int, until: float, begun: Path, result: Path, size: _Size) -> int | None:
    """Wait for the end of a trial; return how it ended.

    :param until: when its time is over, by the monotonic clock.
    :return: its exit status; None if it reached a limit, and `_GIVEN_UP` if there is a result.
    """
    signed = time.monotonic()
    while not size.is_over() and time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - signed >= _SIGN_SECONDS:
            signed = time.monotonic()
            # A file system that cannot be reached for a while does not end a trial.
            with suppress(OSError):
                os.utime(begun)
                if is_listed(result):
                    return _GIVEN_UP
        time.sleep(_TURN)
    return None


def _written(result: Path, content: AttemptResult, *, once: bool) -> int:
    """Write a result; return the exit status of this process.

    :param once: whether the leader may have written one.
    """
    if once and not create_once(result, content.model_dump_json().encode()):
        return GIVEN_UP
    if not once:
        write_whole(result, content.model_dump_json().encode())
    return 0


def create_once(path: Path, content: bytes) -> bool:
    """Create a file with its content, unless there is one; return whether it was created.

    Of several machines that share a file system, one creates it.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_whole(temporary, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync(path.parent)
    return True


def is_listed(path: Path) -> bool:
    """Return whether a file is in its directory.

    Reading the directory makes a network file system look for news.
    """
    try:
        return any(one.name == path.name for one in path.parent.iterdir())
    except FileNotFoundError:
        return False


def _locked(trial: Path, result: Path, patience: float) -> bool:
    """Take the lock of a trial; return whether this process has it."""
    until = time.monotonic() + patience
    while True:
        with suppress(BlockingIOError):
            lock_file(trial / LOCK)
            return True
        if time.monotonic() >= until or is_listed(result):
            return False
        time.sleep(_SIGN_SECONDS / 4)


class _Size:
    """The size of a trial's directory, measured for at most a tenth of the time.

    :param limit: in MiB; without one, nothing is measured.
    """

    def __init__(self, trial: Path, limit: float | None) -> None:
        self._trial, self._limit = trial, limit
        self._largest = self._next = 0.0

    def largest(self) -> float | None:
        """Measure it once more, and return the largest that was measured, in MiB."""
        if self._limit is None:
            return None
        self._largest = max(self._largest, round(used_mebibytes(self._trial, unlock=True), 6))
        return self._largest

    def is_over(self) -> bool:
        """Return whether it is above the limit, or was."""
        began = time.monotonic()
        if self._limit is not None and began >= self._next:
            self.largest()
            self._next = began + max(_TURN, 10 * (time.monotonic() - began))
        return self._limit is not None and self._largest > self._limit


def _clear(trial: Path) -> None:
    """Remove what a trial wrote, but for the end of its log."""
    shutil.rmtree(trial / STORE, ignore_errors=True)
    (trial / STORE).mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        log = trial / LOG
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _KEPT_LOG))
            end = file.read()
        log.write_bytes(end)


def _result(
    trial: Path, attempt: int, code: int | None, seconds: float, mebibytes: float | None
) -> AttemptResult:
    if code is None or code == 0:
        status: Literal["limit", "done"] = "limit" if code is None else "done"
        return AttemptResult(
            attempt=attempt, status=status, cause="", seconds=seconds, mebibytes=mebibytes
        )
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    lines = (trial / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f": {lines[-1][:300]}" if lines and code > 0 else ""
    return AttemptResult(
        attempt=attempt,
        status="failed",
        cause=f"{how}{last}",
        seconds=seconds,
        mebibytes=mebibytes,
    )


def _run(blueprint: TrialBlueprint, trial: Path, parent: int) -> None:
    """Run the trial in this process, which then ends."""
    code = 1
    try:
        os.setsid()
        log = os.open(trial / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if blueprint.disk_mib is not None:
            # Between two measurements, no file grows beyond what all of them may have.
            most, hard = (
                int(blueprint.disk_mib * 2**20),
                resource.getrlimit(resource.RLIMIT_FSIZE)[1],
            )
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
        load_arena(blueprint.arena).run(blueprint, trial / STORE)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, and the log says why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """End this process group once the supervisor has ended, however it did."""
    os.read(parent, 1)
    os.killpg(0, signal.SIGKILL)


def _kill_group(leader: int) -> None:
    """Kill what is left of the trial."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:])))
