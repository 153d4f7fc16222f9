"""Joint episodes as callers see them, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentjet.client._episode import Episode
from ajet_core.errors import ConfigError, RequestError
from ajet_core.protocol import RunConfig
from ajet_core.task import EpisodeOutcome


@dataclass(kw_only=True)
class SwarmEpisode:
    """A joint episode: one part on each server, accessed by role: ``episode["planner"].base_url``.

    :ivar parts: parts in the order of their claims, the arbiter's first.
    """

    task_id: str
    joint_id: str = field(repr=False)
    parts: dict[str, Episode] = field(default_factory=dict)

    def __getitem__(self, role: str) -> Episode:
        return self.parts[role]

    @property
    def episode_id(self) -> str:
        """The id of the arbiter's part."""
        return next(iter(self.parts.values())).episode_id

    def redact(self, text: str) -> str:
        """Return `text` without the keys of all parts."""
        for part in self.parts.values():
            text = part.redact(text)
        return text


@dataclass(frozen=True, kw_only=True)
class SwarmOutcome:
    """An outcome for each role, which an agent may return for a joint episode."""

    parts: Mapping[str, EpisodeOutcome]

    @property
    def reward(self) -> float:
        """The mean reward over the roles."""
        return sum(part.reward for part in self.parts.values()) / len(self.parts)

    @classmethod
    def of(cls, value: object, roles: Sequence[str]) -> SwarmOutcome:
        """Convert an agent's return value to an outcome.

        A single number is the reward of every role.

        :raises TypeError: the value is not a number, an outcome or a mapping of these.
        :raises RequestError: the roles of a mapping differ from `roles`.
        """
        if isinstance(value, SwarmOutcome):
            value = value.parts
        if not isinstance(value, Mapping):
            return cls(parts=dict.fromkeys(roles, EpisodeOutcome.of(value)))
        if set(value) != set(roles):
            raise RequestError(
                f"got rewards for {', '.join(map(repr, value))}, but the roles of this swarm "
                f"are {', '.join(map(repr, roles))}, and each needs one"
            )
        return cls(parts={role: EpisodeOutcome.of(value[role]) for role in roles})


Rewards = float | EpisodeOutcome | Mapping[str, float | EpisodeOutcome] | SwarmOutcome
"""An agent's result for a joint episode: a reward or an outcome for each role, or one for all."""


def check_configs(roles: Sequence[str], configs: Mapping[str, RunConfig]) -> None:
    """Check that runs with these configurations can be joined.

    :raises ConfigError: they cannot, or a configuration is missing.
    """
    if set(configs) != set(roles):
        raise ConfigError(
            f"got configurations for {', '.join(sorted(configs))}, but the roles of this "
            f"swarm are {', '.join(roles)}"
        )
    sizes = {role: configs[role].batch.episodes_per_task for role in roles}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} at {role!r}" for role, size in sizes.items())
        raise ConfigError(
            f"batch.episodes_per_task differs ({listed}): a joint episode belongs to the group "
            "of its task on every server, so all groups must have the same size",
            param="batch.episodes_per_task",
        )
