"""The source ``verifiers``, for both generations of the library."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from ajet_core.errors import ConfigError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskSource
from ajet_sources_verifiers.settings import VerifiersSettings
from ajet_sources_verifiers.worlds import VerifiersWorld

_LEGACY, _TASKSETS = "0.1", "0.4"
_MODULES = {
    _LEGACY: "ajet_sources_verifiers.legacy",
    _TASKSETS: "ajet_sources_verifiers.tasksets",
}


class VerifiersSource(TaskSource[VerifiersSettings]):
    """An environment (verifiers 0.1) or a taskset (0.4) by the name of its module."""

    def __init__(self, settings: VerifiersSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self.reward_range = (settings.min_reward, settings.max_reward)
        self._world: VerifiersWorld | None = None
        self._splits: Mapping[str, Sequence[Task]] = {}

    async def open(self) -> None:
        """Load the environment.

        :raises ConfigError: it cannot be loaded, or verifiers has a version that is not supported.
        """
        if not self.argument:
            raise ConfigError("name the module of the environment: verifiers:MODULE")
        installed = version("verifiers")
        generation = ".".join(re.split(r"\D+", installed)[:2])
        if generation not in _MODULES:
            raise ConfigError(
                f"verifiers {installed} is installed; the source verifiers works with "
                f"{_LEGACY} (environments) and {_TASKSETS} (tasksets): pip install "
                f"'verifiers=={_LEGACY}.*' or 'verifiers=={_TASKSETS}.*'"
            )
        # The library takes seconds to import.
        module = await asyncio.to_thread(importlib.import_module, _MODULES[generation])
        self._world = world = await module.load(self.argument, self.settings)
        self.in_groups = world.in_groups
        self._splits = await asyncio.to_thread(world.splits)
        await world.open()

    async def close(self) -> None:
        """End what verifiers has started."""
        if self._world is not None:
            await self._world.close()

    def splits(self) -> Sequence[str]:
        """Return ``train``, and ``eval`` if an environment of 0.1 has other tasks for it."""
        return tuple(self._splits)

    def tasks(self, split: str) -> Sequence[Task]:
        return self._splits[split]

    def capacity(self) -> int | None:
        return self.settings.max_episodes

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        """Roll out an episode with the environment's own loop and rewards.

        :raises EnvironmentFailedError: a reward function, the endpoint, a tool or a harness failed.
        """
        return await self._opened().roll_out(task, episode)

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        """Score episodes whose rewards compare them, as group rewards of rubrics do."""
        return await self._opened().score_group(task, results)

    def _opened(self) -> VerifiersWorld:
        if self._world is None:
            raise ConfigError("the source is not open")
        return self._world
