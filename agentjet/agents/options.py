"""The options of `trainable`: how calls of a program become episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from ajet_core.protocol import CallRules

Scoped = ScopedEpisode | ScopedSwarmEpisode | AsyncScopedEpisode | AsyncScopedSwarmEpisode

Reward = Callable[[Any, Any], Any]
"""Maps a task and the program's result to a reward, as agents of the client's runners return it."""

GroupScore = Callable[[Any, Sequence[Any]], Any]
"""Maps a task and the program's results in all of its episodes to as many rewards."""


@dataclass(frozen=True, kw_only=True)
class TrainableOptions:
    """Settings of the episodes that a program's calls become.

    :param reward: None if the program returns its reward, or `group_reward` rewards it.
    :param group_reward: rewards all episodes of a task together.
    :param roles: the role of a call, by the name of the calling agent or of the requested model.
    :param passthrough: models whose calls are not trained and not rerouted.
    :param agents: texts that the agents' system prompts contain, by agent name.
    :param sampling: overrides of parameters in the bodies of model calls, such as
        ``{"temperature": 1.0}``; None removes a parameter.
    :param rules: what the server applies to the model calls of an episode.
    :param tag: the part of a mixture that tasks belong to if they have no tag.
    :param lease_seconds: as for `SwarmClient.begin_episode`, as is `timeout`.
    """

    reward: Reward | None = None
    group_reward: GroupScore | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    passthrough: frozenset[str] = frozenset()
    agents: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    rules: CallRules = field(default_factory=CallRules)
    task_id: TaskId | None = None
    tag: str = ""
    lease_seconds: float = 600.0
    timeout: float | None = None

    def route(self, episode: Episode | SwarmEpisode) -> Route:
        """Return the route for the model calls of an episode."""
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
        """Convert an item of a dataset to a task."""
        task = task_of(item, self.task_id)
        return task if task.tag or not self.tag else replace(task, tag=self.tag)


def only_outcome(outcomes: Any) -> Any:
    """Return the outcome in a group of one.

    :raises ValueError: there is not exactly one.
    """
    if not isinstance(outcomes, Sequence) or isinstance(outcomes, str) or len(outcomes) != 1:
        raise ValueError(f"the group reward must return a list with one outcome, not {outcomes!r}")
    return outcomes[0]


def score(scoped: Scoped, outcome: Any) -> None:
    """Set the outcome with which a scoped episode will be ended.

    :raises TypeError: `outcome` is not a valid reward.
    """
    if isinstance(scoped, ScopedSwarmEpisode | AsyncScopedSwarmEpisode):
        scoped.rewards = outcome
        return
    episode_outcome = EpisodeOutcome.of(outcome)
    scoped.reward = episode_outcome.reward
    scoped.components = dict(episode_outcome.components)
    scoped.call_rewards = dict(episode_outcome.call_rewards)
    scoped.agent_rewards = dict(episode_outcome.agent_rewards)
    scoped.metadata = dict(episode_outcome.metadata)
    scoped.allow_no_calls = episode_outcome.allow_no_calls
