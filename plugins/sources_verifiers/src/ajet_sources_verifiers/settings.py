"""Settings of the source ``verifiers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ajet_core.interfaces import ComponentSettings


class VerifiersSettings(ComponentSettings):
    """:param options: arguments of `load_environment` (0.1), or fields of the taskset (0.4).

    :param env: more of the environment's configuration, as in a TOML file of verifiers; 0.4 alone.
    :param max_turns: most turns of an episode; 0.4 alone, None is the environment's.
    :param sampling: sent with each call, below the parameters of the episode.
    :param max_reward: the greatest reward of a task, for checks; the least is `min_reward`.
    :param max_episodes: how many episodes there are at a time; None does not limit them.
    """

    options: Mapping[str, Any] = Field(default_factory=dict)
    env: Mapping[str, Any] = Field(default_factory=dict)
    max_turns: int | None = Field(default=None, ge=1)
    sampling: Mapping[str, Any] = Field(default_factory=dict)
    min_reward: float = 0.0
    max_reward: float = 1.0
    max_episodes: int | None = Field(default=None, ge=1)
