"""What a place is: a queue of another machine, or of many, in which trials run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from ajet_research.worker import BegunNote

JobState = Literal["alive", "gone", "unknown"] | tuple[Literal["ended"], str]
"""``("ended", how)`` if the place is certain that the job has ended; ``gone`` if the place no
longer has it; ``unknown`` if the place does not answer."""


class TrialPlace(ABC):
    """Starts jobs and ends them. It shares the directory of trials with the leader.

    No method waits for a job. Any of them may fail at any time: what counts is in the files of the
    trial.

    :cvar kind: its table in a file of places.
    :cvar queues: whether a job may wait in a queue as long as it takes. Otherwise, it begins at
        once.
    """

    kind: ClassVar[str]
    queues: ClassVar[bool]

    @abstractmethod
    def free(self, taken: Sequence[str]) -> bool:
        """Return whether a job can be submitted now.

        :param taken: the jobs that were submitted and have not ended.
        """

    @abstractmethod
    def submit(self, name: str, command: list[str], seconds: float, taken: Sequence[str]) -> str:
        """Submit a job, and return its id.

        :param name: of the job; no other job has it.
        :param command: what it runs, without a shell.
        :param seconds: that the trial may take, once it has begun.
        :raises OSError: it was not submitted, as far as is known.
        """

    @abstractmethod
    def state(self, job: str) -> JobState:
        """Return what the place says about a job."""

    @abstractmethod
    def withdraw(self, name: str, job: str) -> None:
        """Take a job out of the queue, unless it has started. It may stay there nevertheless.

        :param job: its id; "" if it is not known whether it was submitted.
        """

    @abstractmethod
    def end(self, job: str, begun: BegunNote | None, trial: Path) -> None:
        """End a job, whether it has started or not.

        :param begun: its worker, if it has begun.
        """
