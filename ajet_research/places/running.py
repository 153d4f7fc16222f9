"""Runs attempts in a place, of which any job, command or message may be lost.

What counts is in the files of a trial, which its worker and the leader share: ``begun-N`` and
``result-N`` of attempt N, each created once. So a job that was submitted twice runs once, and an
attempt that was given up has no other result. Another attempt starts once the former one has a
result, and then waits until its processes have released the trial's lock.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import UnreadableFileError
from ajet_core.files import read_bytes, write_whole
from ajet_research.arenas import Arena, TrialBlueprint
from ajet_research.places.interface import TrialPlace
from ajet_research.runners import (
    NO_ROOM,
    Settled,
    TrialRunner,
    forget_attempt,
    settled_attempt,
    write_blueprint,
)
from ajet_research.worker import (
    AttemptResult,
    BegunNote,
    begun_path,
    create_once,
    is_listed,
    result_path,
)

_GRACE_SECONDS = 10.0
"""In which the result of a job that has ended becomes visible on a shared file system."""


class JobNote(BaseModel):
    """A job that was submitted for an attempt.

    :param job: its id; "" while it is being submitted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    place: str
    name: str
    job: str


@dataclass(slots=True)
class _Watched:
    """What this leader has seen of an attempt; times are of its monotonic clock.

    :param sign: of life, the latest; `signed` is when it came.
    :param ended: since when its place says that its job has ended, and how.
    :param gone: since when its place no longer has its job.
    """

    next_look: float = 0.0
    sign: int = 0
    signed: float = 0.0
    ended: tuple[float, str] | None = None
    gone: float | None = None


class PlacedRunner(TrialRunner):
    """Attempts in a place.

    :param directory: of the trials, at the same path there.
    :param python: of the place.
    :param patience_seconds: without a sign of life, after which an attempt counts as lost.
    :param poll_seconds: between two looks at an attempt.
    """

    def __init__(
        self,
        directory: Path,
        arena: Arena,
        place: TrialPlace,
        *,
        python: str,
        patience_seconds: float,
        poll_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._arena, self._place = directory.resolve(), arena, place
        self._python, self._patience, self._poll = python, patience_seconds, poll_seconds
        self._monotonic = monotonic
        self._watched: dict[tuple[str, int], _Watched] = {}
        self._jobs: dict[tuple[str, int], str] = {}
        self._submitted: set[tuple[str, int]] = set()
        self._failing: tuple[float, float] | None = None

    def poll(self, blueprint: TrialBlueprint, attempt: int) -> Settled | None:
        """Submit the attempt, or see that it runs; return what became of it.

        :raises OSError: its place takes no jobs.
        """
        key = blueprint.id, attempt
        watched = self._watched.setdefault(key, _Watched())
        if self._monotonic() < watched.next_look:
            return None
        watched.next_look = self._monotonic() + self._poll
        settled = self._look_at(blueprint, attempt, watched)
        if settled is None:
            return None
        self._jobs.pop(key, None)
        del self._watched[key]
        if settled.cause == NO_ROOM:
            trial = self._directory / blueprint.id
            forget_attempt(trial, attempt)
            job_path(trial, attempt).unlink(missing_ok=True)
            if key in self._submitted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(trial))
            return None
        return settled

    def withdraw(self, blueprint: TrialBlueprint, attempt: int, *, final: bool) -> bool:
        """Cancel the job of an attempt that has not begun; see `TrialRunner`."""
        trial = self._directory / blueprint.id
        if is_listed(begun_path(trial, attempt)) or is_listed(result_path(trial, attempt)):
            return False
        note = self._note(trial, attempt)
        if final:
            # Should the job start nevertheless, it ends at once.
            trial.mkdir(parents=True, exist_ok=True)
            _give_up(trial, attempt, "it had not begun when the study ended", 0.0)
            self._watched.pop((blueprint.id, attempt), None)
        elif note is not None and not self._place.queues:
            return False
        if note is not None:
            self._place.withdraw(note.name, note.job)
            job_path(trial, attempt).unlink(missing_ok=True)
            self._jobs.pop((blueprint.id, attempt), None)
        return not final

    def _look_at(
        self, blueprint: TrialBlueprint, attempt: int, watched: _Watched
    ) -> Settled | None:
        trial = self._directory / blueprint.id
        if is_listed(result_path(trial, attempt)):
            return settled_attempt(self._arena, blueprint, trial, attempt)
        note = self._note(trial, attempt)
        begun = _begun(trial, attempt)
        if begun is None and (note is None or not note.job):
            self._submit(blueprint, attempt, note)
            return None
        job = begun.job if begun is not None and begun.job else note.job if note else ""
        self._jobs[blueprint.id, attempt] = job
        why = self._why_lost(trial, attempt, job, watched)
        if not why:
            return None
        if begun is None:
            # What has not begun has used none of the budget, however long it was in a queue.
            _give_up(trial, attempt, f"{why}, and it had not begun", 0.0)
        else:
            _give_up(trial, attempt, why, blueprint.seconds)
        if note is not None:
            self._place.end(job, begun, trial)
        # The worker may have been faster.
        return settled_attempt(self._arena, blueprint, trial, attempt)

    def _why_lost(self, trial: Path, attempt: int, job: str, watched: _Watched) -> str:
        """Return why an attempt without a result is lost; "" if it is not."""
        now = self._monotonic()
        sign = _sign(trial, attempt)
        if sign != watched.sign or not watched.signed:
            watched.sign, watched.signed = sign, now
        silent = now - watched.signed >= self._patience
        state = self._place.state(job) if job else "unknown"
        if isinstance(state, tuple):
            watched.ended = watched.ended or (now, state[1])
            since, how = watched.ended
            grace = min(_GRACE_SECONDS, self._patience)
            return f"the job {job} ended: {how}" if now - since >= grace else ""
        watched.ended = None
        if sign:
            # Only what has begun gives signs of life, and does so whatever its place says.
            return "the worker gives no sign of life" if silent else ""
        if state == "gone":
            watched.gone = now if watched.gone is None else watched.gone
            late = now - watched.gone >= self._patience
            return f"the job {job} is no longer in the queue" if late else ""
        watched.gone = None
        # Jobs of a queue wait as long as it takes; others begin at once.
        return f"nothing was heard of it from {job}" if silent and not self._place.queues else ""

    def _submit(self, blueprint: TrialBlueprint, attempt: int, note: JobNote | None) -> None:
        trial = self._directory / blueprint.id
        taken = list(self._jobs.values())
        if not self._place.free(taken):
            if not taken:
                self._fail(OSError("no host can be reached"))
            return
        if note is not None:
            # The leader was killed while it submitted this one: it may be in the queue.
            self._place.withdraw(note.name, "")
        trial.mkdir(parents=True, exist_ok=True)
        write_blueprint(trial, blueprint)
        name = f"ajet-{blueprint.id}-{attempt}-{secrets.token_hex(4)}"
        path = job_path(trial, attempt)
        new = JobNote(place=self._place.kind, name=name, job="")
        write_whole(path, new.model_dump_json().encode())
        command = [self._python, "-m", "ajet_research.worker", str(trial), str(attempt)]
        command.append(str(self._patience))
        try:
            job = self._place.submit(name, command, blueprint.seconds, taken)
        except OSError as error:
            self._fail(error)
            return
        self._failing = None
        write_whole(path, new.model_copy(update={"job": job}).model_dump_json().encode())
        self._submitted.add((blueprint.id, attempt))
        self._jobs[blueprint.id, attempt] = job

    def _fail(self, error: OSError) -> None:
        """Bear an error of the place, unless it has lasted, or a queue never took a job."""
        now = self._monotonic()
        first, last = self._failing or (now, now)
        if now - last > self._patience:
            # It has recovered since, and nothing was submitted meanwhile.
            first = now
        self._failing = first, now
        if now - first >= self._patience or (self._place.queues and not self._submitted):
            raise error

    def _note(self, trial: Path, attempt: int) -> JobNote | None:
        """Return the note of an attempt's job in this place."""
        try:
            note = JobNote.model_validate_json(read_bytes(job_path(trial, attempt)))
        except (FileNotFoundError, UnreadableFileError, InvalidModelError):
            return None
        # One of another place cannot be seen from here. Should it start, it ends at once, because
        # an attempt begins once.
        return note if note.place == self._place.kind else None


def job_path(trial: Path, attempt: int) -> Path:
    """Return the file with the job of an attempt."""
    return trial / f"job-{attempt}.json"


def _give_up(trial: Path, attempt: int, cause: str, seconds: float) -> None:
    """Write that an attempt is lost, unless its worker has written what became of it."""
    lost = AttemptResult(attempt=attempt, status="failed", cause=cause, seconds=seconds)
    create_once(result_path(trial, attempt), lost.model_dump_json().encode())


def _begun(trial: Path, attempt: int) -> BegunNote | None:
    if not is_listed(begun_path(trial, attempt)):
        return None
    try:
        return BegunNote.model_validate_json(read_bytes(begun_path(trial, attempt)))
    except (UnreadableFileError, InvalidModelError):
        return BegunNote(host="", pid=0, job="")


def _sign(trial: Path, attempt: int) -> int:
    """Return the latest sign of life of an attempt; 0 before it has begun."""
    try:
        # Opening it makes a network file system look for news.
        descriptor = os.open(begun_path(trial, attempt), os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)
