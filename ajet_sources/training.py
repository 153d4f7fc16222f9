"""Training on the tasks of a source."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentjet import AsyncSwarmClient, Curriculum, Episode
from agentjet.agents import AsyncTrainable, train_async
from agentjet.agents.options import TrainableOptions
from agentjet.client import EpisodeFailure, EpisodeResult, RunnerReport
from ajet_core.errors import AjetError, ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_core.protocol import CallRules, RunConfig


def chosen_tasks(source: TaskSource, split: str | None, limit: int | None = None) -> list[Task]:
    """Return the first tasks of a split.

    :param split: None is the first one of the source.
    :raises ConfigError: there is no such split, it has no tasks, or two have the same id.
    """
    splits = list(source.splits())
    split = splits[0] if split is None else split
    if split not in splits:
        raise ConfigError(
            f"the source has no split {split!r}; it has {', '.join(splits)}", param="split"
        )
    tasks = list(source.tasks(split))
    if not tasks:
        raise ConfigError(f"the split {split!r} of the source has no tasks", param="split")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise ConfigError(f"two tasks of the source have the id {task.id!r}", param="source")
        seen.add(task.id)
    return tasks[:limit]


async def train_source(
    source: TaskSource,
    *,
    client: AsyncSwarmClient,
    config: RunConfig | None = None,
    split: str | None = None,
    limit: int | None = None,
    epochs: int = 1,
    episodes_per_task: int | None = None,
    concurrency: int | None = None,
    retries: int = 1,
    episode_timeout: float | None = None,
    resume: bool = False,
    shuffle: int | None = None,
    curriculum: Curriculum | None = None,
    sampling: Mapping[str, Any] | None = None,
    rules: CallRules | None = None,
    progress: bool | None = None,
    on_result: Callable[[EpisodeResult | EpisodeFailure], object] | None = None,
) -> RunnerReport:
    """Roll out the tasks of an open source on a swarm server, which trains on them.

    An episode whose environment failed is aborted, and retried with a new one.

    :param split: None is the first one of the source; of it, the first `limit` tasks.
    :param concurrency: episodes at once; never more than the source takes.
    :param sampling: parameters that the source sends with each model call.
    :param rules: limits of an episode's model calls, and parameters that the server replaces.

    The other parameters are those of `agentjet.train`.

    :raises ConfigError: the split is wrong, or a group is larger than what the source takes.
    :raises AjetError: as for `agentjet.train`.
    """
    tasks = chosen_tasks(source, split, limit)
    capacity = source.capacity()
    if source.in_groups and capacity is not None:
        run = config or (await client.run_status()).config
        size = episodes_per_task or run.batch.episodes_per_task
        if capacity < size:
            raise ConfigError(
                f"the source takes {capacity} episodes at a time, but a group has {size}: use "
                f"groups of at most {capacity}, or let the environment take more",
                param="episodes_per_task",
            )
    if curriculum is not None and curriculum.rewards is None:
        curriculum = dataclasses.replace(curriculum, rewards=source.reward_range)
    program = SourceProgram(source, client, sampling or {}, rules or CallRules())
    at_once: Any = concurrency or "auto"
    if capacity is not None:
        at_once = min(concurrency or capacity, capacity)
    return await train_async(
        program,
        tasks,
        client=client,
        config=config,
        epochs=epochs,
        episodes_per_task=episodes_per_task,
        concurrency=at_once,
        retries=retries,
        episode_timeout=episode_timeout,
        resume=resume,
        shuffle=shuffle,
        curriculum=curriculum,
        progress=progress,
        on_result=on_result,
    )


class SourceProgram(AsyncTrainable[EpisodeOutcome]):
    """A source as an agent of the client's runners.

    :param sampling: parameters that the source sends with each model call.
    """

    def __init__(
        self,
        source: TaskSource,
        client: AsyncSwarmClient,
        sampling: Mapping[str, Any],
        rules: CallRules,
    ) -> None:
        async def run(task: Any) -> EpisodeOutcome:
            raise TypeError(f"task {task!r}: a source needs an episode to roll it out in")

        group_reward = source.score_group if source.in_groups else None
        super().__init__(run, TrainableOptions(rules=rules, group_reward=group_reward), client)
        self._source = source
        self._sampling = sampling

    def through(self, client: Any) -> SourceProgram:
        """Extend the base class: the copy has the same source."""
        other = copy.copy(self)
        other.client = client
        return other

    async def agent(self, task: Task, episode: Any) -> Any:
        """Roll out an episode, and return its outcome.

        :raises EnvironmentFailedError: the environment failed, or gave something else than rewards.
        """
        return checked_outcome(task, await self.rollout(task, episode))

    async def rollout(self, task: Task, episode: Any) -> Any:
        """Roll out an episode, and return what the source did.

        :raises EnvironmentFailedError: the environment failed.
        """
        return await self._source.roll_out(task, endpoint_of(episode, self._sampling))

    def group_outcomes(self, task: Task, results: Sequence[Any]) -> Any:
        """Extend the base class: a source takes the task itself, not its payload."""
        return scored_group(self._source, task, results)


def endpoint_of(episode: Episode, sampling: Mapping[str, Any]) -> ModelEndpoint:
    """Return the endpoint of a claimed episode."""
    root = episode.base_url.removesuffix("/v1")
    return ModelEndpoint(
        base_url=episode.base_url,
        api_key=episode.api_key,
        model=episode.model,
        episode_id=episode.episode_id,
        path_url=f"{root}/e/{episode.api_key}/v1",
        sampling=sampling,
    )


async def scored_group(
    source: TaskSource, task: Task, results: Sequence[Any]
) -> Sequence[EpisodeOutcome]:
    """Score a group.

    :raises EnvironmentFailedError: the grader failed, a reward is not a finite number, or there are
        more or fewer outcomes than episodes.
    """
    outcomes = list(await source.score_group(task, results))
    if len(outcomes) != len(results):
        raise EnvironmentFailedError(
            f"the source returned {len(outcomes)} outcomes for {len(results)} episodes of task "
            f"{task.id!r}"
        )
    return [checked_outcome(task, outcome) for outcome in outcomes]


def checked_outcome(task: Task, outcome: object) -> EpisodeOutcome:
    """Return what a source returned as an outcome.

    :raises EnvironmentFailedError: its reward is not a finite number.
    """
    try:
        episode_outcome = EpisodeOutcome.of(outcome)
        finite = math.isfinite(episode_outcome.reward)
    except (AjetError, TypeError, ValueError) as error:
        raise EnvironmentFailedError(f"task {task.id!r} has no reward: {error}") from error
    if not finite:
        raise EnvironmentFailedError(f"task {task.id!r} has the reward {episode_outcome.reward}")
    return episode_outcome
