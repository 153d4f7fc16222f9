"""Episodes of a task that are rewarded together, once all of them have a result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agentjet.client._runner import Concurrency, Job
from ajet_core.errors import RequestError
from ajet_core.task import Task

GroupReward = Callable[[Task, Sequence[Any]], Any]
"""Maps a task and what the agent returned in each of its episodes to as many outcomes.

Asynchronous runners accept coroutine functions too.
"""


def check_group_reward(
    reward: GroupReward | None, episodes_per_task: int, concurrency: Concurrency
) -> None:
    """:raises RequestError: a group could never be complete."""
    if reward is not None and concurrency != "auto" and concurrency < episodes_per_task:
        raise RequestError(
            f"concurrency is {concurrency}, but a group reward needs all {episodes_per_task} "
            "episodes of a task at once: raise concurrency, or lower episodes_per_task",
            param="concurrency",
        )


@dataclass(frozen=True, slots=True)
class CompleteGroup:
    """A group whose episodes all have a result; the client that receives it must reward it.

    :ivar results: of all episodes, in the order of their jobs.
    :ivar positions: of those whose episodes are still open, in `results`.
    :ivar discard: removes the results of those from the group.
    """

    task: Task
    results: Sequence[Any]
    positions: Sequence[int]
    waiting: Sequence[Future[Any]]
    discard: Callable[[], None]

    def outcomes(self, rewards: Any) -> None:
        """Give each open episode its outcome."""
        if isinstance(rewards, str) or not isinstance(rewards, Sequence):
            self.failed(
                TypeError(
                    f"the group reward returned {type(rewards).__name__}; it must return a list "
                    "with an outcome for each result"
                )
            )
        elif len(rewards) != len(self.results):
            self.failed(
                ValueError(
                    f"the group reward returned {len(rewards)} outcomes for "
                    f"{len(self.results)} results"
                )
            )
        else:
            for position, future in zip(self.positions, self.waiting, strict=True):
                if not future.done():
                    future.set_result(rewards[position])

    def failed(self, error: BaseException) -> None:
        """Let each open episode fail."""
        # Before any of them is attempted again: a new result must not complete the group with
        # results of attempts that have failed.
        self.discard()
        for future in self.waiting:
            if not future.done():
                future.set_exception(error)


@dataclass(slots=True)
class _Group:
    """:ivar jobs: those that were not given up.

    :ivar results: by `id` of the job. They remain when an episode has ended, because a sibling may
        be attempted again.
    """

    jobs: list[Job] = field(default_factory=list)
    results: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, Future[Any]] = field(default_factory=dict)

    def complete(self, lock: threading.Lock) -> CompleteGroup | None:
        if not self.waiting or any(id(job) not in self.results for job in self.jobs):
            return None
        answered = list(self.waiting)

        def discard() -> None:
            with lock:
                for job in answered:
                    self.results.pop(job, None)

        positions = [at for at, job in enumerate(self.jobs) if id(job) in self.waiting]
        complete = CompleteGroup(
            self.jobs[0].task,
            [self.results[id(job)] for job in self.jobs],
            positions,
            [self.waiting[id(self.jobs[at])] for at in positions],
            discard,
        )
        self.waiting = {}
        return complete


class Groups:
    """The groups of a runner, in all of its threads."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, _Group] = {}
        self._stopped: BaseException | None = None
        for job in jobs:
            self._groups.setdefault(job.turn, _Group()).jobs.append(job)

    def join(self, job: Job, result: Any) -> tuple[Future[Any], CompleteGroup | None]:
        """Record the result of an episode.

        :return: the outcome of the episode, once its group is rewarded; and the group if this was
            its last result.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._stopped is not None:
                future.set_exception(self._stopped)
                return future, None
            group = self._groups[job.turn]
            group.results[id(job)] = result
            group.waiting[id(job)] = future
            return future, group.complete(self._lock)

    def failed(self, job: Job, *, given_up: bool) -> CompleteGroup | None:
        """Record that an attempt at a job failed.

        :param given_up: whether its siblings are to be rewarded without it.
        :return: the group if this completed it.
        """
        with self._lock:
            group = self._groups[job.turn]
            group.results.pop(id(job), None)
            group.waiting.pop(id(job), None)
            if not given_up:
                return None
            group.jobs = [other for other in group.jobs if other is not job]
            return group.complete(self._lock)

    def stop(self, error: BaseException) -> None:
        """Let all open episodes fail, and those that would join later."""
        with self._lock:
            self._stopped = error
            waiting = [one for group in self._groups.values() for one in group.waiting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
