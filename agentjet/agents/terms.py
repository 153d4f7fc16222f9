"""How the calls of a program become episodes, and what they are ended with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentjet.agents.route import SINGLE, Route
from agentjet.agents.tasks import TaskId, task_of
from agentjet.client import (
    AsyncScopedEpisode,
    AsyncScopedSwarmEpisode,
    Episode,
    EpisodeOutcome,
    ScopedEpisode,
    ScopedSwarmEpisode,
    SwarmEpisode,
    Task,
)
from ajet_core.interfaces import ModelEndpoint

Scoped = ScopedEpisode | ScopedSwarmEpisode | AsyncScopedEpisode | AsyncScopedSwarmEpisode

Reward = Callable[[Any, Any], Any]
"""Says of a task and what the program made of it how good that is: as agents of the client's runners say it."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How a program's calls become episodes.

    :param reward: None if what the program returns is its reward.
    :param roles: the role of the calls that an agent makes, or that ask for a model, by the name of either.
    :param passthrough: models whose calls are not trained and go where they would go otherwise.
    :param agents: what the system prompts of agents contain, by their names.
    :param sampling: what the bodies of model calls are overridden with, such as ``{"temperature": 1.0}``; None takes a
        parameter out.
    :param tag: which part of a mixture the tasks belong to, unless they say so themselves.
    :param lease_seconds: as of `SwarmClient.begin_episode`, and so is `timeout`.
    """

    reward: Reward | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    passthrough: frozenset[str] = frozenset()
    agents: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    task_id: TaskId | None = None
    tag: str = ""
    lease_seconds: float = 600.0
    timeout: float | None = None

    def route(self, episode: Episode | SwarmEpisode) -> Route:
        """Where the model calls of an episode go."""
        parts = episode.parts if isinstance(episode, SwarmEpisode) else {SINGLE: episode}
        endpoints = {
            role: ModelEndpoint(part.base_url, part.api_key, part.model)
            for role, part in parts.items()
        }
        return Route(
            endpoints,
            roles=self.roles,
            passthrough=self.passthrough,
            agents=self.agents,
            sampling=self.sampling,
        )

    def task(self, item: object) -> Task:
        """The task that an item of a dataset is."""
        task = task_of(item, self.task_id)
        return task if task.tag or not self.tag else replace(task, tag=self.tag)


def score(scoped: Scoped, outcome: Any) -> None:
    """Note in a scoped episode what it shall be ended with.

    :raises TypeError: `outcome` is no reward.
    """
    if isinstance(scoped, ScopedSwarmEpisode | AsyncScopedSwarmEpisode):
        scoped.rewards = outcome
        return
    its = EpisodeOutcome.of(outcome)
    scoped.reward = its.reward
    scoped.components = dict(its.components)
    scoped.call_rewards = dict(its.call_rewards)
    scoped.agent_rewards = dict(its.agent_rewards)
    scoped.metadata = dict(its.metadata)
