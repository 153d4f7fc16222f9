"""Jobs of a Slurm cluster, submitted by submitit."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_core.errors import ConfigError
from ajet_research.places.interface import JobState, TrialPlace
from ajet_research.places.settings import SlurmSettings
from ajet_research.worker import BegunNote

if TYPE_CHECKING:
    from submitit import SlurmExecutor

_ENDED = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    )
)
_ROOM_MINUTES = 5
"""More than the trial may take: Slurm signals a job 90 s before its time is over, and what a trial
does until its limit is an outcome, which Slurm must not cut off."""
_POLLS = 5
"""Looks at an attempt between two questions to the cluster."""
_COMMAND_SECONDS = 60.0


class SlurmPlace(TrialPlace):
    """A cluster.

    :param folder: of the jobs' scripts and logs, on the shared file system.
    :param poll_seconds: between two looks at an attempt; the cluster is asked less often.
    :raises ConfigError: submitit or Slurm is not installed, or an option is unknown.
    """

    kind = "slurm"
    queues = True

    def __init__(
        self, settings: SlurmSettings, folder: Path, *, python: str, poll_seconds: float
    ) -> None:
        # Its logger would write to standard output.
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
        try:
            from submitit import SlurmExecutor
            from submitit.slurm.slurm import SlurmInfoWatcher
        except ImportError as error:
            raise ConfigError(
                f"Trials on Slurm need {error.name}: pip install 'agentjet[slurm]>=0.1'"
            ) from error
        self._ask_seconds = _POLLS * poll_seconds
        try:
            self._executor: SlurmExecutor = SlurmExecutor(folder)
        except RuntimeError as error:
            raise ConfigError(
                "Slurm's commands are not installed on this machine. Run the study on a login "
                "node of the cluster."
            ) from error
        self._executor.python = python
        chosen = settings.model_dump(exclude={"options"}, exclude_none=True, exclude_defaults=True)
        try:
            self._executor.update_parameters(**chosen, **settings.options)
        except ValueError as error:
            raise ConfigError(f"[slurm] options: {' '.join(str(error).split())}") from error
        self._read_accounting = SlurmInfoWatcher().read_info
        self._states: dict[str, JobState] = {}
        self._asked = -math.inf

    def free(self, taken: Sequence[str]) -> bool:  # noqa: ARG002 - the cluster has its own limits
        """Return True: a queue takes any number of jobs."""
        return True

    def submit(
        self,
        name: str,
        command: list[str],
        seconds: float,
        taken: Sequence[str],  # noqa: ARG002 - see above
    ) -> str:
        """Submit a job; see `TrialPlace`."""
        from submitit.core.utils import CommandFunction, FailedJobError, FailedSubmissionError

        self._executor.update_parameters(
            job_name=name,
            time=math.ceil(seconds / 60) + _ROOM_MINUTES,
            # An attempt begins once.
            additional_parameters={"no-requeue": True},
        )
        try:
            return self._executor.submit(CommandFunction(command)).job_id
        except (FailedJobError, FailedSubmissionError) as error:
            said = " ".join(str(error).split())
            raise OSError(f"sbatch failed: {said[:500]}") from error

    def state(self, job: str) -> JobState:
        """Return what the queue says, and the accounting of what is not in the queue."""
        self._states.setdefault(job, "unknown")
        if time.monotonic() - self._asked >= self._ask_seconds:
            self._ask()
            self._asked = time.monotonic()
        return self._states[job]

    def _ask(self) -> None:
        """Ask about all jobs that have not ended: a busy cluster is asked as seldom as that."""
        left = [job for job, state in self._states.items() if not isinstance(state, tuple)]
        queue = _queue()
        for job in left:
            known = queue is not None and job in queue
            self._states[job] = _read(queue[job]) if queue and known else "unknown"
        missing = [job for job in left if self._states[job] == "unknown"]
        accounting = self._accounting(missing) if missing else {}
        for job in missing:
            if state := accounting.get(job, {}).get("State"):
                self._states[job] = _read(state)
            elif queue is not None:
                self._states[job] = "gone"

    def _accounting(self, jobs: list[str]) -> dict[str, dict[str, str]]:
        """Return what the accounting has; nothing if it is off."""
        fields = ["--format=JobID,State", "--parsable2"]
        ended = _run(["sacct", *fields, f"--jobs={','.join(jobs)}"])
        return {} if ended is None or ended.returncode else self._read_accounting(ended.stdout)

    def withdraw(self, name: str, job: str) -> None:
        """Cancel a job that is pending."""
        which = [job] if job else [f"--name={name}"]
        _run(["scancel", "--state=PENDING", *which])

    def end(self, job: str, begun: BegunNote | None, trial: Path) -> None:  # noqa: ARG002 - Slurm has it
        """Cancel a job."""
        if (id_ := (begun.job if begun else "") or job).isdigit():
            _run(["scancel", id_])


def _read(state: str) -> JobState:
    # Such as "CANCELLED by 1000", or a state that was cut off, which ends with "+".
    word = (state.split() or [""])[0].rstrip("+")
    return ("ended", word) if word in _ENDED else "alive"


def _queue() -> dict[str, str] | None:
    """Return the states of this user's jobs that the queue has; None if it does not answer."""
    ended = _run(
        ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", "--format=%i|%T"]
    )
    if ended is None or ended.returncode:
        return None
    lines = (line.partition("|") for line in ended.stdout.splitlines())
    return {job.strip(): state.strip() for job, _, state in lines}


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command of Slurm; return None if it cannot run, or does not answer."""
    try:
        return subprocess.run(  # noqa: S603 - found on PATH, as users do
            command, check=False, capture_output=True, text=True, timeout=_COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
