"""Tasksets of verifiers 0.4, with a harness in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task
from ajet_sources_verifiers.settings import VerifiersSettings
from ajet_sources_verifiers.worlds import (
    KEY_VARIABLE,
    VerifiersWorld,
    digest,
    outcome,
    path_url,
    unique,
)

_HARNESS = "ajet_sources_verifiers"


async def load(name: str, settings: VerifiersSettings) -> VerifiersWorld:
    """Load a taskset."""
    return await asyncio.to_thread(TasksetWorld, name, settings)


class TasksetWorld(VerifiersWorld):
    """A taskset and its environment.

    :raises ConfigError: it cannot be loaded.
    """

    def __init__(self, name: str, settings: VerifiersSettings) -> None:
        self._settings = settings
        agent: dict[str, Any] = {
            "harness": {"id": _HARNESS},
            "runtime": {"type": "subprocess"},
        }
        if settings.max_turns is not None:
            agent["max_turns"] = settings.max_turns
        config = {"taskset": {"id": name, **settings.options}, "agent": agent, **settings.env}
        try:
            self._env = vf.load_environment(vf.resolve_env_config(config))
        # A module of others is run here.
        except Exception as error:
            raise ConfigError(f"verifiers cannot load the taskset {name!r}: {error}") from error
        self._serving: Any = None

    def splits(self) -> Mapping[str, Sequence[Task]]:
        tasks = list(self._env.taskset)
        names = unique([_name(task) for task in tasks])
        return {
            "train": [Task(name, payload=task) for name, task in zip(names, tasks, strict=True)]
        }

    async def open(self) -> None:
        self._serving = self._env.serving()
        await self._serving.__aenter__()

    async def close(self) -> None:
        if self._serving is not None:
            serving, self._serving = self._serving, None
            await serving.__aexit__(None, None, None)

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        sampling = {**self._settings.sampling, **episode.sampling}
        context = vf.ModelContext(
            model=episode.model,
            client=EvalClientConfig(base_url=path_url(episode), api_key_var=KEY_VARIABLE),
            sampling=vf.SamplingConfig(**sampling),
        )
        try:
            (slot,) = self._env.slots(task.payload)
            done = await self._env.run_slot(slot, context)
        # Environments are others' code; what verifiers catches itself is in the result.
        except Exception as error:
            raise EnvironmentFailedError(f"{task.id}: {type(error).__name__}: {error}") from error
        if not done.ok:
            errors = [*done.errors, *(error for trace in done.traces for error in trace.errors)]
            raise EnvironmentFailedError(f"{task.id}: {str(errors[0])[-600:] if errors else done}")
        trace = done.traces[0]
        return outcome(trace.reward, _parts(trace), task)


def _name(task: Any) -> str:
    name = getattr(task.data, "name", None)
    return str(name) if name else digest(task.data.model_dump(mode="json"))


def _parts(trace: Any) -> dict[str, Any]:
    rewards = {name: getattr(one, "value", one) for name, one in trace.rewards.items()}
    return {**rewards, **trace.metrics}
