"""What the sync and the async runner have in common: the jobs, and what becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ajet_core.client._episode import (
    Episode,
    EpisodeFailure,
    EpisodeResult,
    RunnerReport,
    Task,
    traceback_text,
)
from ajet_core.errors import EpisodeError, RequestError

# Short, because it is how long a batch waits for the episodes of a program that died; a living one sends
# heartbeats three times as often.
RUNNER_LEASE_SECONDS = 60.0

OnResult = Callable[[EpisodeResult | EpisodeFailure], object]


@dataclass(slots=True)
class Job:
    """One episode to be rolled out, however many attempts that takes."""

    task: Task
    attempts: int = 0


def make_jobs(tasks: Sequence[str | Task], episodes_per_task: int) -> list[Job]:
    """All jobs, the episodes of a task one after the other, so that groups complete early.

    :raises RequestError: `episodes_per_task` is not positive.
    """
    if episodes_per_task < 1:
        raise RequestError(
            f"episodes_per_task is {episodes_per_task}; it must be at least 1",
            param="episodes_per_task",
        )
    as_tasks = [task if isinstance(task, Task) else Task(task) for task in tasks]
    return [Job(task) for task in as_tasks for _ in range(episodes_per_task)]


def check_concurrency(concurrency: int) -> None:
    """:raises RequestError: it is not positive."""
    if concurrency < 1:
        raise RequestError(
            f"concurrency is {concurrency}; it must be at least 1", param="concurrency"
        )


def concerns_one_episode(error: BaseException) -> bool:
    """Whether `error`, raised by the server's side of an episode, leaves the others alone.

    A lost server, a refused token or a run that ended concern all of them.
    """
    return isinstance(error, EpisodeError | RequestError)


@dataclass
class Ledger:
    """Collects results and decides about retries.

    :param retries: further attempts after a failed one.
    """

    retries: int
    on_result: OnResult | None
    outcomes: list[EpisodeResult] = field(default_factory=list)
    failures: list[EpisodeFailure] = field(default_factory=list)

    def ended(self, result: EpisodeResult) -> None:
        """Note an episode that ended."""
        self.outcomes.append(result)
        if self.on_result is not None:
            self.on_result(result)

    def failed(self, job: Job, error: BaseException, episode: Episode | None) -> bool:
        """Note a failed attempt; True if the job is to be tried again."""
        job.attempts += 1
        if job.attempts <= self.retries:
            return True
        failure = EpisodeFailure(
            task=job.task,
            attempts=job.attempts,
            error=error,
            traceback=traceback_text(error, episode),
        )
        self.failures.append(failure)
        if self.on_result is not None:
            self.on_result(failure)
        return False

    def report(self, elapsed: float) -> RunnerReport:
        """All that was noted."""
        return RunnerReport(outcomes=self.outcomes, failures=self.failures, elapsed=elapsed)


class LeaseBook:
    """When which open episode needs its next heartbeat: pure bookkeeping.

    A third of the lease leaves room for two lost heartbeats.
    """

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, Episode]] = {}

    def __iter__(self) -> Iterator[Episode]:
        return iter([episode for _, episode in self._due.values()])

    def add(self, episode: Episode, now: float) -> None:
        """Begin with an episode."""
        self._due[episode.episode_id] = (now + episode.lease_seconds / 3, episode)

    def remove(self, episodes: Iterable[Episode]) -> None:
        """No more heartbeats for these."""
        for episode in episodes:
            self._due.pop(episode.episode_id, None)

    def take_due(self, now: float) -> list[Episode]:
        """Episodes that need a heartbeat now; each is due again a third of its lease later."""
        due = [episode for at, episode in self._due.values() if at <= now]
        for episode in due:
            self.add(episode, now)
        return due

    def wait(self, now: float) -> float | None:
        """Seconds until the next one is due; None if there is none."""
        return max(0.0, min(at for at, _ in self._due.values()) - now) if self._due else None
