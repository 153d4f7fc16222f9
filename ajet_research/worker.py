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

import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ajet_core.files import lock_file, read_bytes, sync, write_whole
from ajet_research.arenas import TrialBlueprint, load_arena

BLUEPRINT = "blueprint.json"
LOG = "log.txt"
STORE = "store"
LOCK = "lock"
HELD = 3
"""Exit status if another process has the trial."""
GIVEN_UP = 4
"""Exit status if the leader gave up the attempt while it ran."""
JOB_VARIABLE = "SLURM_JOB_ID"
_TURN = 0.01
_SIGN_SECONDS = 1.0
"""Between two signs of life."""


class AttemptResult(BaseModel):
    """What became of an attempt.

    :param status: ``done`` if the trial ended by itself; ``limit`` if its time was over;
        ``failed`` otherwise.
    :param seconds: wall time, of the monotonic clock.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempt: int
    status: Literal["done", "limit", "failed"]
    cause: str
    seconds: float


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


def main(trial: Path, attempt: int, patience: float = 0.0) -> int:
    """Supervise an attempt.

    :param patience: seconds to wait for an earlier attempt that still has the trial; 0 if the
        leader is on this machine.
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
    reading, writing = os.pipe()
    # The lock's descriptor is inherited: the trial is free when both processes have ended.
    child = os.fork()
    if child == 0:
        os.close(writing)
        _run(blueprint, trial, reading)
    os.close(reading)
    code: int | None = None
    signed = began
    given_up = False
    while not given_up and time.monotonic() - began < blueprint.seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() - signed >= _SIGN_SECONDS:
            signed = time.monotonic()
            # A file system that cannot be reached for a while does not end a trial.
            with suppress(OSError):
                os.utime(begun_path(trial, attempt))
                given_up = is_listed(result)
        time.sleep(_TURN)
    _kill_group(child)
    if code is None:
        os.waitpid(child, 0)
    if given_up:
        return GIVEN_UP
    content = _result(trial, attempt, code, round(time.monotonic() - began, 3))
    if not patience:
        write_whole(result, content.model_dump_json().encode())
    elif not create_once(result, content.model_dump_json().encode()):
        return GIVEN_UP
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


def _result(trial: Path, attempt: int, code: int | None, seconds: float) -> AttemptResult:
    if code is None:
        return AttemptResult(attempt=attempt, status="limit", cause="", seconds=seconds)
    if code == 0:
        return AttemptResult(attempt=attempt, status="done", cause="", seconds=seconds)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    lines = (trial / LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f": {lines[-1][:300]}" if lines and code > 0 else ""
    return AttemptResult(attempt=attempt, status="failed", cause=f"{how}{last}", seconds=seconds)


def _run(blueprint: TrialBlueprint, trial: Path, parent: int) -> None:
    """Run the trial in this process, which then ends."""
    code = 1
    try:
        os.setsid()
        log = os.open(trial / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
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
