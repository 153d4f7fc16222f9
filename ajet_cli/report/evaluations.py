"""Evaluations of a run with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ajet_core.pass_at import mean_pass_at, pass_at_k
from ajet_core.protocol import Evaluation, EvaluationConfig
from ajet_loggers.tracking import wilson
from ajet_server.averages import mean
from ajet_server.store.evaluation_counts import EvaluationCount
from ajet_sources.evaluating import interval

Ends = tuple[float, float] | None

METHOD = (
    "Intervals cover 95 % for other tasks of the same kind. That of pass@1 is Wilson's (1927) with "
    "the tasks as trials, as in trackers. Those of rewards and other pass@k are normal intervals "
    "of the mean over tasks, with the standard error between tasks; Wilson's if each task is 0 or "
    "1. Episodes of one task never count as several tasks. Between policy versions, nothing is "
    "corrected for multiple comparisons."
)
"""How intervals are computed, for readers."""


@dataclass(frozen=True, slots=True)
class MeasuredEvaluation:
    """An evaluation with intervals of 95 %; an interval is None if there are too few tasks.

    :param reward_mean: mean over tasks of their mean reward; None if no episode has one.
    :param pass_ends: by k.
    """

    evaluation: Evaluation
    reward_mean: float | None
    reward_ends: Ends = None
    pass_ends: Mapping[int, Ends] = field(default_factory=dict)

    @property
    def task_set(self) -> tuple[str, str]:
        """The tag, and the client that claimed the episodes."""
        return self.evaluation.tag, self.evaluation.client_id


def measured(
    counts: Iterable[EvaluationCount], config: EvaluationConfig
) -> list[MeasuredEvaluation]:
    """Return the evaluations of a run by tag, client and step.

    :param counts: of all finished evaluation episodes.
    """

    def of(count: EvaluationCount) -> tuple[str, str, int]:
        return count.tag, count.client_id, count.claim_version

    return [
        _measured(key, list(group), config) for key, group in groupby(sorted(counts, key=of), of)
    ]


def logged(evaluations: Iterable[Evaluation]) -> list[MeasuredEvaluation]:
    """Return evaluations of which only the totals are known, the last of each key."""
    last = {(one.tag, one.client_id, one.step): one for one in evaluations}
    return [
        MeasuredEvaluation(one, one.reward_mean, None, {1: _wilson(one)} if one.pass_at else {})
        for _, one in sorted(last.items())
    ]


def _measured(
    key: tuple[str, str, int], tasks: Sequence[EvaluationCount], config: EvaluationConfig
) -> MeasuredEvaluation:
    tag, client_id, step = key
    ended = [task for task in tasks if task.ended]
    rewards = [task.reward_sum / task.ended for task in ended]
    reward_mean = mean(rewards) if rewards else None
    evaluation = Evaluation(
        client_id=client_id,
        tag=tag,
        step=step,
        tasks=len(ended),
        episodes=sum(task.ended for task in ended),
        open=0,
        aborted=sum(task.aborted for task in tasks),
        mixed=sum(task.mixed for task in tasks),
        reward_mean=reward_mean,
        pass_at=mean_pass_at(Counter((t.ended, t.passed) for t in ended), config.pass_at),
    )
    ends: dict[int, Ends] = {}
    for k in evaluation.pass_at:
        shares = [pass_at_k(t.ended, t.passed, k) for t in ended if t.ended >= k]
        ends[k] = _wilson(evaluation) if k == 1 else _bounded(interval(shares, (0.0, 1.0)))
    return MeasuredEvaluation(evaluation, reward_mean, interval(rewards), ends)


def _wilson(evaluation: Evaluation) -> Ends:
    share = evaluation.pass_at.get(1)
    return wilson(share, evaluation.tasks) if share is not None and evaluation.tasks else None


def _bounded(ends: Ends) -> Ends:
    return ends and (max(0.0, ends[0]), min(1.0, ends[1]))
