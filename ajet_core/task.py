"""Tasks, and outcomes of their episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """A task to roll out.

    :param id: episodes with the same id share a baseline, unless `group` is set.
    :param payload: any data that the agent needs; it is not sent to the server.
    :param tag: the part of a mixture that the task belongs to.
    :param difficulty: from 0 (easy) to 1, if it is known.
    """

    id: str
    payload: Any = None
    group: str | None = None
    tag: str = ""
    difficulty: float | None = None


@dataclass(frozen=True, kw_only=True)
class EpisodeOutcome:
    """An outcome, which an agent may return instead of a bare reward.

    :param components: named parts of the reward, for the logs.
    :param call_rewards: rewards of single calls, by the id of their chat completion.
    :param agent_rewards: rewards by agent name; they replace the episode's reward for the calls of
        these agents.
    :param allow_no_calls: as for `SwarmClient.end_episode`.
    :param answer: the text that was rewarded, if there is one; it is not sent to the server.
    """

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)
    call_rewards: Mapping[str, float] = field(default_factory=dict)
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    allow_no_calls: bool = False
    answer: str | None = None

    @classmethod
    def of(cls, value: object) -> EpisodeOutcome:
        """Convert an agent's return value to an outcome.

        :raises TypeError: the value is neither a number nor an outcome.
        """
        if isinstance(value, EpisodeOutcome):
            return value
        if hasattr(value, "__float__") and not isinstance(value, str):  # also scalars of torch
            return cls(reward=float(value))
        hint = " (async agents need AsyncSwarmClient)" if hasattr(value, "__await__") else ""
        raise TypeError(
            f"the agent returned {type(value).__name__}; return the reward as a number, "
            f"or an EpisodeOutcome{hint}"
        )
