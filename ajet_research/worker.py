"""The supervisor of one attempt: ``python -m ajet_research.worker TRIAL ATTEMPT``.

It runs the trial in a process group of its own, kills it when its time is over, and writes what
became of it. It outlives its leader. The trial does not outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ajet_core.files import lock_file, read_bytes, write_whole
from ajet_research.arenas import TrialBlueprint, load_arena

BLUEPRINT = "blueprint.json"
LOG = "log.txt"
STORE = "store"
LOCK = "lock"
HELD = 3
"""Exit status if another process has the trial."""
_TURN = 0.01


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


def result_path(trial: Path, attempt: int) -> Path:
    """Return where the result of an attempt is written, whole."""
    return trial / f"result-{attempt}.json"


def begun_path(trial: Path, attempt: int) -> Path:
    """Return the file that exists once the worker of an attempt has the trial."""
    return trial / f"begun-{attempt}"


def main(trial: Path, attempt: int) -> int:
    """Supervise an attempt."""
    try:
        lock_file(trial / LOCK)
    except BlockingIOError:
        return HELD
    if result_path(trial, attempt).exists():
        return 0
    begun_path(trial, attempt).touch()
    blueprint = TrialBlueprint.model_validate_json(read_bytes(trial / BLUEPRINT))
    (trial / STORE).mkdir(exist_ok=True)
    begun = time.monotonic()
    reading, writing = os.pipe()
    # The lock's descriptor is inherited: the trial is free when both processes have ended.
    child = os.fork()
    if child == 0:
        os.close(writing)
        _run(blueprint, trial, reading)
    os.close(reading)
    code: int | None = None
    while time.monotonic() - begun < blueprint.seconds:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(_TURN)
    _kill_group(child)
    if code is None:
        os.waitpid(child, 0)
    seconds = round(time.monotonic() - begun, 3)
    result = _result(trial, attempt, code, seconds)
    write_whole(result_path(trial, attempt), result.model_dump_json().encode())
    return 0


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
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
