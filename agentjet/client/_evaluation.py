"""What a client makes of the episodes of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentjet.client._episode import RunnerReport, Task
from agentjet.client._runner import as_tasks
from ajet_core.pass_at import mean_pass_at
from ajet_core.protocol import EvaluationConfig


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation:
    """The episodes of one task that ended."""

    task_id: str
    episodes: int
    passed: int
    reward_mean: float


@dataclass(frozen=True, kw_only=True)
class EvaluationReport(RunnerReport):
    """What became of all episodes of an evaluation.

    :param pass_at: pass@k by k, for those k of the run's `EvaluationConfig` for which a task has episodes enough.
    :param pass_reward: an episode passed with at least this reward.
    :param steps: the training steps at which episodes were claimed; one, if no step was trained meanwhile.
    :param tasks: in the order they were given, without those of which no episode ended.
    """

    pass_at: Mapping[int, float]
    pass_reward: float
    steps: Sequence[int]
    tasks: Sequence[TaskEvaluation]


def tagged(tasks: Sequence[str | Task], tag: str) -> list[Task]:
    """`tasks` as those of a task set; each keeps its own tag if `tag` is empty."""
    return [replace(task, tag=tag or task.tag) for task in as_tasks(tasks)]


def evaluation_report(
    report: RunnerReport, tasks: Sequence[Task], config: EvaluationConfig
) -> EvaluationReport:
    """What the episodes of `report` come to under `config`."""
    rewards: dict[str, list[float]] = {task.id: [] for task in tasks}
    for result in report.outcomes:
        rewards[result.task.id].append(result.outcome.reward)
    found = [
        TaskEvaluation(
            task_id=task_id,
            episodes=len(own),
            passed=sum(reward >= config.pass_reward for reward in own),
            reward_mean=sum(own) / len(own),
        )
        for task_id, own in rewards.items()
        if own
    ]
    alike = Counter((task.episodes, task.passed) for task in found)
    return EvaluationReport(
        outcomes=report.outcomes,
        failures=report.failures,
        elapsed=report.elapsed,
        pass_at=mean_pass_at(alike, config.pass_at),
        pass_reward=config.pass_reward,
        steps=sorted({result.episode.policy_version for result in report.outcomes}),
        tasks=found,
    )
