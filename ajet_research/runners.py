"""Where trials run: in processes of this machine, or, for suites, in this process."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import AjetError, ConfigError
from ajet_core.files import lock_file, write_whole
from ajet_research.arenas import Arena, TrialBlueprint, TrialEvidence, read_evidence
from ajet_research.study import canonical
from ajet_research.worker import (
    BLUEPRINT,
    DISK_LIMIT,
    HELD,
    LOCK,
    STORE,
    TIME_LIMIT,
    AttemptResult,
    begun_path,
    result_path,
)

_ROOM = 1024 * 1024
"""With fewer free bytes, the disk counts as full."""
NO_ROOM = "the disk is full"
"""Why an attempt failed that does not count."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk, or of its quota, without room."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an attempt.

    :param evidence: None if it failed by no fault of its arm.
    :param cause: why it failed, then.
    :param store: by path, the SHA-256 of each file of the raw store.
    :param mebibytes: the largest size of the trial's directory; None if it was not measured.
    """

    seconds: float
    evidence: TrialEvidence | None = None
    limit: bool = False
    cause: str = ""
    store: Mapping[str, str] = field(default_factory=dict)
    mebibytes: float | None = None


class TrialRunner(Protocol):
    """Runs attempts. Each method may be called any number of times, also by another leader.

    Runners are subclasses, so that they need not have queues.

    :cvar left: seconds of the study's time that are left. The leader sets it before it polls. On
        this machine, a trial that takes more does not start, however long its worker took to.
    """

    left: float = math.inf

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
        """See that an attempt runs; return what became of it once it has ended.

        :raises OSError: the machine does not let it run. It does not count: call again later.
        """

    def withdraw(self, blueprint: TrialBlueprint, attempt: int, *, final: bool) -> bool:  # noqa: ARG002 - see above
        """Keep an attempt that has not begun from beginning; return whether it is not to be polled.

        Called while nothing may start.

        :param final: whether it will not begin later either. If it had not begun, `poll` then
            returns that it is lost; if not, `poll` lets it run once it may.
        """
        return False


class LocalRunner(TrialRunner):
    """Processes of this machine, which outlive their leader.

    :param directory: of the trials.
    """

    def __init__(self, directory: Path, arena: Arena) -> None:
        self._directory = directory
        self._arena = arena
        self._workers: dict[tuple[str, int], subprocess.Popen[bytes]] = {}

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
        """Start the attempt, unless a worker has it or has ended; return its result.

        :raises OSError: it cannot be started, or it ended because the disk is full.
        """
        settled = self._look_at(blueprint, attempt)
        if settled is None or settled.cause != NO_ROOM:
            return settled
        trial = self._directory / blueprint.id
        forget_attempt(trial, attempt)
        if self._workers.pop((blueprint.id, attempt), None) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(trial))
        # It ended under another leader, and there may be room by now.
        return None

    def _look_at(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
        trial = self._directory / blueprint.id
        worker = self._workers.get((blueprint.id, attempt))
        status = worker.poll() if worker is not None else None
        if result_path(trial, attempt).exists():
            return settled_attempt(self._arena, blueprint, trial, attempt)
        if worker is not None and status is None:
            return None
        if is_held(trial):
            return None
        if result_path(trial, attempt).exists():
            # It was written between the two looks.
            return settled_attempt(self._arena, blueprint, trial, attempt)
        if begun_path(trial, attempt).exists() or status not in (None, HELD):
            return Settled(blueprint.seconds, cause=_cause(status, trial))
        self._start(blueprint, trial, attempt)
        return None

    def _start(self, blueprint: TrialBlueprint, trial: Path, attempt: int) -> None:
        trial.mkdir(parents=True, exist_ok=True)
        write_blueprint(trial, blueprint)
        until = time.monotonic() + self.left
        self._workers[blueprint.id, attempt] = subprocess.Popen(  # noqa: S603 - this program
            [
                *(sys.executable, "-m", "ajet_research.worker"),
                *(str(trial), str(attempt), "0", str(until)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It outlives its leader, and the leader's terminal.
            start_new_session=True,
        )


class FileRunner(TrialRunner):
    """Trials in this process, with the files of `LocalRunner`: for suites.

    :param directory: of the trials.
    """

    def __init__(self, directory: Path, arena: Arena) -> None:
        self._directory = directory
        self._arena = arena

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled:
        """Run a trial to its end."""
        trial = self._directory / blueprint.id
        (trial / STORE).mkdir(parents=True, exist_ok=True)
        write_blueprint(trial, blueprint)
        begun_path(trial, attempt).touch()
        self._arena.run(blueprint, trial / STORE)
        result = AttemptResult(attempt=attempt, status="done", cause="", seconds=0.0)
        result_path(trial, attempt).write_text(result.model_dump_json(), encoding="utf-8")
        return settled_attempt(self._arena, blueprint, trial, attempt)


class InlineRunner(TrialRunner):
    """Trials of the arena ``synthetic`` in this process, without files: for suites."""

    def __init__(self) -> None:
        self._position = 0

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled:  # noqa: ARG002 - its only one
        """Run a trial to its end."""
        from ajet_research.arenas.synthetic import evidence_of, rows

        content = list(rows(blueprint, self._position))
        self._position += 1
        return Settled(0.0, evidence=evidence_of(content, int(blueprint.settings["steps"])))


def write_blueprint(trial: Path, blueprint: TrialBlueprint) -> None:
    """Write what a worker reads."""
    write_whole(trial / BLUEPRINT, canonical(blueprint.model_dump(mode="json")).encode())


def settled_attempt(arena: Arena, blueprint: TrialBlueprint, trial: Path, attempt: int) -> Settled:
    """Read what became of an attempt whose result is written: the raw store decides.

    :raises OSError: the result cannot be read now.
    """
    path = result_path(trial, attempt)
    try:
        result = AttemptResult.model_validate_json(path.read_bytes(), strict=True)
    except InvalidModelError:
        return Settled(blueprint.seconds, cause="the result of the worker cannot be read")
    if result.status == "failed":
        full = any(f"[Errno {code}]" in result.cause for code in FULL_DISK) or _is_full(trial)
        cause = NO_ROOM if full else result.cause
        return Settled(result.seconds, cause=cause, mebibytes=result.mebibytes)
    reached = result.reached(blueprint)
    if reached == DISK_LIMIT:
        over = TrialEvidence(failed=reached)
        return Settled(result.seconds, evidence=over, limit=True, mebibytes=result.mebibytes)
    try:
        evidence = read_evidence(arena, blueprint, trial / STORE)
    except AjetError as error:
        if result.status == "limit":
            over = TrialEvidence(failed=reached or TIME_LIMIT)
            return Settled(result.seconds, evidence=over, limit=True, mebibytes=result.mebibytes)
        return Settled(result.seconds, cause=error.message, mebibytes=result.mebibytes)
    store = store_hashes(trial / STORE)
    return Settled(result.seconds, evidence=evidence, store=store, mebibytes=result.mebibytes)


def store_hashes(store: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a directory, by its path in it.

    :raises ConfigError: a file cannot be read.
    """
    try:
        return {
            path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(store.rglob("*"))
            if path.is_file()
        }
    except OSError as error:
        raise ConfigError(f"The raw store {store} cannot be read: {error}") from error


def _cause(status: int | None, trial: Path) -> str:
    """Return why a worker has left no result."""
    if _is_full(trial):
        return NO_ROOM
    return "the worker was lost" if status in (None, 0) else f"the worker ended with {status}"


def _is_full(directory: Path) -> bool:
    return shutil.disk_usage(directory).free < _ROOM


def is_held(trial: Path) -> bool:
    """Return whether a process has a trial. Its lock is taken for a moment."""
    if not (trial / LOCK).exists():
        return False
    try:
        descriptor = lock_file(trial / LOCK)
    except BlockingIOError:
        return True
    os.close(descriptor)
    return False


def forget_attempt(trial: Path, attempt: int) -> None:
    """Let an attempt start again that failed for room: a full disk says nothing about a trial."""
    begun_path(trial, attempt).unlink(missing_ok=True)
    result_path(trial, attempt).unlink(missing_ok=True)
