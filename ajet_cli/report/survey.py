"""One pass over all episodes of a run: totals, failures, and which are the best and the worst."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from ajet_core.interfaces import EpisodeRecord
from ajet_server.observe.timeline_view import finite
from ajet_server.store.evaluation_counts import EvaluationCount, EvaluationCounter

# Enough to choose episodes of different tasks.
_KEPT = 200
_REASON_CHARS = 300


@dataclass(slots=True)
class Failure:
    """The aborted episodes of one cause.

    :param reason: of the newest one.
    """

    episodes: int = 0
    reason: str = ""


@dataclass(slots=True)
class EpisodeSurvey:
    """Counts episodes; its memory grows with the tasks of evaluations alone.

    :param pass_reward: the least reward of an episode that passes.
    :param reasons: whether to keep the reasons of failures, which agents write.
    :ivar totals: the number of episodes by kind and state.
    :ivar failures: by cause.
    :ivar problem: why not all evaluations can be counted, "" if they can.
    """

    pass_reward: float
    reasons: bool = True
    totals: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    problem: str = ""
    first_at: float | None = None
    last_at: float | None = None
    _evaluations: EvaluationCounter = field(init=False)
    # Reward, place in the order of claims, id and task.
    _best: list[tuple[float, int, str, str]] = field(default_factory=list)
    _worst: list[tuple[float, int, str, str]] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        self._evaluations = EvaluationCounter(self.pass_reward)

    def add(self, record: EpisodeRecord) -> None:
        """Count an episode; they come in the order of their claims."""
        self._count += 1
        self.totals[record.kind, record.state] += 1
        self.first_at = record.created_at if self.first_at is None else self.first_at
        self.last_at = max(self.last_at or 0.0, record.finished_at or record.created_at)
        if record.state == "aborted":
            failure = self.failures.setdefault(record.cause or "unknown", Failure())
            failure.episodes += 1
            failure.reason = record.reason[:_REASON_CHARS] if self.reasons else ""
        if record.kind == "eval":
            try:
                self._evaluations.add(record)
            except TypeError as error:
                self._damaged(error)
        reward = finite(record.reward)
        if record.state == "ended" and reward is not None:
            _keep(self._best, (reward, self._count, record.episode_id, record.task_id))
            _keep(self._worst, (-reward, self._count, record.episode_id, record.task_id))

    def _damaged(self, error: TypeError) -> None:
        self.problem = f"An evaluation episode is damaged: {error}"

    @property
    def evaluations(self) -> list[EvaluationCount]:
        """All finished evaluation episodes; none, and a `problem`, if they cannot be counted."""
        try:
            return self._evaluations.counts()
        except TypeError as error:
            self._damaged(error)
            return []

    def best(self, most: int) -> list[str]:
        """Return episodes with the highest rewards, the newest of equal ones, tasks once first."""
        return _chosen(self._best, most)

    def worst(self, most: int) -> list[str]:
        """Return likewise those with the lowest rewards."""
        return _chosen(self._worst, most)


def _keep(heap: list[tuple[float, int, str, str]], entry: tuple[float, int, str, str]) -> None:
    if len(heap) < _KEPT:
        heapq.heappush(heap, entry)
    else:
        heapq.heappushpop(heap, entry)


def _chosen(heap: list[tuple[float, int, str, str]], most: int) -> list[str]:
    ordered = sorted(heap, reverse=True)
    tasks: set[str] = set()
    first: list[str] = []
    again: list[str] = []
    for _, _, episode_id, task in ordered:
        (again if task in tasks else first).append(episode_id)
        tasks.add(task)
    chosen = {*[*first, *again][:most]}
    return [episode_id for _, _, episode_id, _ in ordered if episode_id in chosen]
