"""Parts shared by the synchronous and the asynchronous runner: jobs and their results."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal

from agentjet.client._episode import (
    EpisodeFailure,
    EpisodeResult,
    EpisodeT,
    OutcomeT,
    RunnerReport,
    failure_reason,
    traceback_text,
)
from ajet_core.errors import EpisodeError, RequestError
from ajet_core.protocol import Pace
from ajet_core.task import Task

Concurrency = int | Literal["auto"]
"""How many episodes run at once; ``auto`` follows the server."""

# How long episodes stay open after their program has died.
RUNNER_LEASE_SECONDS = 60.0
# Frequent small requests show the server that a program is alive. After three missed heartbeats its
# slots are freed, for example for its successor.
_HEARTBEAT_SECONDS = 0.5
_BEATS_PER_LEASE = 3
_USUAL_EPISODES = 64
_CAUSES = 10

_log = logging.getLogger("ajet.client")

OnResult = Callable[[EpisodeResult[EpisodeT, OutcomeT] | EpisodeFailure], object]


@dataclass(slots=True)
class Job:
    """One episode to roll out, with as many attempts as needed.

    :param turn: position of its task among all tasks.
    :param first: whether it is the first one of its task.
    """

    task: Task
    turn: int = 0
    first: bool = False
    attempts: int = 0


@dataclass(slots=True)
class Turns:
    """The order of the tasks' first claims, which decide on the tasks of a batch.

    Claims are sent on several connections, so that they may arrive in another order. In an exact
    run each waits until the first claim of the task before was answered.

    :param in_order: whether the server wants this.
    :ivar answered: number of tasks whose first claim was answered.
    """

    in_order: bool
    answered: int = 0

    def may_claim(self, job: Job) -> bool:
        """Return whether the claim of a job may be sent."""
        return not self.in_order or job.turn + (not job.first) <= self.answered

    def note(self, job: Job) -> bool:
        """Record that a claim was answered; return whether others may be sent now."""
        before, self.answered = self.answered, max(self.answered, job.turn + 1)
        return self.in_order and self.answered > before


def heartbeat_seconds(lease_seconds: float) -> float:
    """Return the interval of a runner's heartbeats."""
    return min(_HEARTBEAT_SECONDS, lease_seconds / _BEATS_PER_LEASE)


def as_tasks(tasks: Sequence[str | Task]) -> list[Task]:
    """Convert bare ids to tasks."""
    return [task if isinstance(task, Task) else Task(task) for task in tasks]


def check_episodes_per_task(episodes_per_task: int) -> None:
    """:raises RequestError: the number is not positive."""
    if episodes_per_task < 1:
        raise RequestError(
            f"episodes_per_task is {episodes_per_task}; it must be at least 1",
            param="episodes_per_task",
        )


def make_jobs(remaining: Sequence[tuple[Task, int]]) -> list[Job]:
    """Create all jobs, with the episodes of a task in sequence, so that groups complete early."""
    return [
        Job(task, turn, number == 0)
        for turn, (task, lacking) in enumerate(remaining)
        for number in range(lacking)
    ]


def check_concurrency(concurrency: Concurrency) -> None:
    """:raises RequestError: the number is not positive."""
    if concurrency != "auto" and not (isinstance(concurrency, int) and concurrency >= 1):
        raise RequestError(
            f'concurrency is {concurrency!r}; it must be at least 1, or "auto"',
            param="concurrency",
        )


def episodes_at_once(concurrency: Concurrency, pace: Pace | None) -> int:
    """Return how many episodes a runner has under way or waiting.

    :param pace: what the server wants; None if it did not tell.
    """
    if concurrency != "auto":
        return concurrency
    # Claims that wait cost nothing, and the batch may need a later task.
    return max(_USUAL_EPISODES, (pace.episodes or 0) if pace is not None else 0)


def concerns_one_episode(error: BaseException) -> bool:
    """Return whether a server error concerns one episode only.

    A lost server, a refused token or a run that ended concern all of them.
    """
    return isinstance(error, EpisodeError | RequestError)


def _raised_at(error: BaseException | None) -> object:
    """Return the types and lines of an exception and its causes."""
    chain: list[object] = []
    while error is not None and len(chain) < _CAUSES:
        lines = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        chain.append((type(error), *lines))
        error = error.__cause__ or error.__context__
    return tuple(chain)


@dataclass
class Ledger(Generic[EpisodeT, OutcomeT]):
    """Collects results, logs failures and decides about retries.

    :param retries: further attempts after a failed one.
    """

    retries: int
    on_result: OnResult[EpisodeT, OutcomeT] | None
    outcomes: list[EpisodeResult[EpisodeT, OutcomeT]] = field(default_factory=list)
    failures: list[EpisodeFailure] = field(default_factory=list)
    _alike: Counter[object] = field(default_factory=Counter)

    def is_last(self, job: Job) -> bool:
        """Return whether a job is given up if its current attempt fails."""
        return job.attempts >= self.retries

    def ended(self, result: EpisodeResult[EpisodeT, OutcomeT]) -> None:
        """Record an episode that ended."""
        self.outcomes.append(result)
        if self.on_result is not None:
            self.on_result(result)

    def failed(
        self, job: Job, error: BaseException, episode: EpisodeT | None, *, outage: bool = False
    ) -> bool:
        """Record a failed attempt; return True if the job is to be retried.

        :param outage: the server was unreachable when the attempt failed. The attempt is then not
            counted, because it was not the task's fault. If the server stays away, the next claim
            ends the runner.
        """
        text = traceback_text(error, episode)
        reason = failure_reason(error, episode)
        level, shown = self._shown(error, text, reason, final=not outage and self.is_last(job))
        if outage:
            _log.log(level, "task %r failed during an outage of the server%s", job.task.id, shown)
            return True
        job.attempts += 1
        _log.log(
            level,
            "task %r, episode %s, attempt %d of %d failed%s",
            job.task.id,
            episode.episode_id if episode is not None else "(not claimed)",
            job.attempts,
            self.retries + 1,
            shown,
        )
        if job.attempts <= self.retries:
            return True
        failure = EpisodeFailure(
            task=job.task,
            attempts=job.attempts,
            error=error,
            traceback=text,
            reason=reason,
        )
        self.failures.append(failure)
        if self.on_result is not None:
            self.on_result(failure)
        return False

    def _shown(
        self, error: BaseException, text: str, reason: str, *, final: bool
    ) -> tuple[int, str]:
        """Return the level and the text with which a failure is logged.

        One bug fails all episodes, so its traceback is logged once. Of its repetitions that are
        retried, those that make it 10, 100 and so on are warnings.
        """
        place = _raised_at(error)
        self._alike[place] += 1
        count = self._alike[place]
        if count == 1:
            return logging.WARNING, f":\n{text}"
        level = logging.WARNING if final or str(count).strip("0") == "1" else logging.INFO
        return level, f" (failure {count} of this kind): {reason.partition(chr(10))[0]}"

    def report(self, elapsed: float) -> RunnerReport[EpisodeT, OutcomeT]:
        """Return all recorded results."""
        return RunnerReport(outcomes=self.outcomes, failures=self.failures, elapsed=elapsed)
