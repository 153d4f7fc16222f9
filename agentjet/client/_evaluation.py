"""Reports of evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentjet.client._episode import RunnerReport
from agentjet.client._runner import as_tasks
from ajet_core.pass_at import mean_pass_at
from ajet_core.protocol import EvaluationConfig
from ajet_core.task import Task


@dataclass(frozen=True, kw_only=True)
class TaskEvaluation:
    """The ended episodes of one task."""

    task_id: str
    episodes: int
    passed: int
    reward_mean: float


@dataclass(frozen=True, kw_only=True)
class EvaluationReport(RunnerReport):
    """The results of all episodes of an evaluation.

    :param pass_at: pass@k by k, for those k of the run's `EvaluationConfig` for which a task has
        enough episodes.
    :param pass_reward: the reward from which an episode counts as passed.
    :param steps: the training steps at which episodes were claimed; just one if no step was trained
        meanwhile.
    :param tasks: in the given order, without tasks that have no ended episode.
    """

    pass_at: Mapping[int, float]
    pass_reward: float
    steps: Sequence[int]
    tasks: Sequence[TaskEvaluation]


def tagged(tasks: Sequence[str | Task], tag: str) -> list[Task]:
    """Return `tasks` with the tag of a task set; each keeps its tag if `tag` is empty."""
    return [replace(task, tag=tag or task.tag) for task in as_tasks(tasks)]


def evaluation_report(
    report: RunnerReport, tasks: Sequence[Task], config: EvaluationConfig
) -> EvaluationReport:
    """Build the report of an evaluation under `config`."""
    rewards: dict[str, list[float]] = {task.id: [] for task in tasks}
    for result in report.outcomes:
        rewards[result.task.id].append(result.outcome.reward)
    evaluations = [
        TaskEvaluation(
            task_id=task_id,
            episodes=len(own),
            passed=sum(reward >= config.pass_reward for reward in own),
            reward_mean=sum(own) / len(own),
        )
        for task_id, own in rewards.items()
        if own
    ]
    alike = Counter((task.episodes, task.passed) for task in evaluations)
    return EvaluationReport(
        outcomes=report.outcomes,
        failures=report.failures,
        elapsed=report.elapsed,
        pass_at=mean_pass_at(alike, config.pass_at),
        pass_reward=config.pass_reward,
        steps=sorted({result.episode.policy_version for result in report.outcomes}),
        tasks=evaluations,
    )
