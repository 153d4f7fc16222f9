"""What both generations of verifiers have in common."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ajet_core.errors import EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task

KEY_VARIABLE = "AJET_KEY_IS_IN_THE_PATH"
"""verifiers reads keys from variables of the process alone. No variable has this name."""


class VerifiersWorld(ABC):
    """An environment of one generation of verifiers.

    :ivar in_groups: whether its rewards compare the episodes of a task; `roll_out` then returns
        what `score_group` takes.
    """

    in_groups = False

    @abstractmethod
    def splits(self) -> Mapping[str, Sequence[Task]]:
        """Return the tasks by split."""

    async def open(self) -> None:
        """Start what it needs."""
        return

    async def close(self) -> None:
        """End what was started."""
        return

    @abstractmethod
    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        """Roll out an episode."""

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        """Score the episodes of a group, if its rewards compare them."""
        raise NotImplementedError


def path_url(episode: ModelEndpoint) -> str:
    """Return the URL of an endpoint with its key in it."""
    if episode.path_url:
        return episode.path_url
    return f"{episode.base_url.removesuffix('/v1')}/e/{episode.api_key}/v1"


def digest(value: object) -> str:
    """Return an id of data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def unique(names: Sequence[str]) -> list[str]:
    """Return names with a number for those that occur again."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        count = counts[name] = counts.get(name, 0) + 1
        result.append(name if count == 1 else f"{name}-{count}")
    return result


def outcome(reward: object, components: Mapping[str, Any], task: Task) -> EpisodeOutcome:
    """Return an outcome.

    :raises EnvironmentFailedError: there is no finite reward.
    """
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        raise EnvironmentFailedError(f"{task.id}: the environment gave the reward {reward!r}")
    numbers = {
        name: float(value)
        for name, value in components.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return EpisodeOutcome(reward=float(reward), components=numbers)
