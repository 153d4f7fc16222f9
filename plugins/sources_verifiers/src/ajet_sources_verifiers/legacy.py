"""Environments of verifiers 0.1: `load_environment`, rubrics, tools, several turns."""

from __future__ import annotations

import contextvars
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import verifiers as vf
from verifiers.clients import resolve_client

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

_failures: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
    "reward_failures", default=None
)


async def load(name: str, settings: VerifiersSettings) -> VerifiersWorld:
    """Load an environment. It may replace handlers of signals, which only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("environments of verifiers 0.1 can only be opened in the main thread")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return LegacyEnvironment(name, settings)
    finally:
        # Its own would end the process without closing anything else.
        for number, handler in handlers.items():
            signal.signal(number, handler)


class LegacyEnvironment(VerifiersWorld):
    """An environment that `load_environment` of a module returns.

    :raises ConfigError: it cannot be loaded.
    """

    def __init__(self, name: str, settings: VerifiersSettings) -> None:
        self._settings = settings
        try:
            self._env = vf.load_environment(name, **settings.options)
        # A module of others is run here.
        except Exception as error:
            raise ConfigError(f"verifiers cannot load {name!r}: {error}") from error
        rubrics = list(_rubrics(self._env.rubric))
        for rubric in rubrics:
            rubric.funcs = [_reporting(func) for func in rubric.funcs]
        self.in_groups = any(rubric.has_group_rewards for rubric in rubrics)

    def splits(self) -> Mapping[str, Sequence[Task]]:
        splits = {"train": list(self._env.get_dataset())}
        self._env.build_eval_dataset()
        if self._env.eval_dataset is not None:
            splits["eval"] = list(self._env.get_eval_dataset())
        seen: dict[str, Sequence[Task]] = {}
        for split, rows in splits.items():
            names = [_name(row) for row in rows]
            marked = names if split == "train" else [f"{split}-{name}" for name in names]
            seen[split] = [
                Task(name, payload=row) for name, row in zip(unique(marked), rows, strict=True)
            ]
        return seen

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> Any:
        if self.in_groups:
            return await self._state(task, episode)
        failures: list[str] = []
        _failures.set(failures)
        try:
            result = await self._env.run_rollout(
                task.payload, _client(episode), episode.model, self._sampling(episode)
            )
        # Environments are others' code; what they catch themselves is in the result.
        except Exception as error:
            raise _failed(task, error) from error
        return _judged(task, result, failures)

    async def _state(self, task: Task, episode: ModelEndpoint) -> Any:
        """Roll out an episode that is scored later.

        :raises EnvironmentFailedError: the environment or the endpoint failed.
        """
        try:
            state = await self._env.rollout(
                dict(task.payload),
                resolve_client(_client(episode)),
                episode.model,
                self._sampling(episode),
            )
        except Exception as error:
            raise _failed(task, error) from error
        if failure := state.get("error"):
            raise EnvironmentFailedError(f"{task.id}: {failure!r}")
        return state

    async def score_group(self, task: Task, results: Sequence[Any]) -> Sequence[EpisodeOutcome]:
        failures: list[str] = []
        _failures.set(failures)
        states, rubric = list(results), self._env.rubric
        try:
            await rubric.score_group(states)
            for state in states:
                await rubric.cleanup(state)
        except Exception as error:
            raise _failed(task, error) from error
        return [_judged(task, state, failures) for state in states]

    def _sampling(self, episode: ModelEndpoint) -> dict[str, Any]:
        return {**self._settings.sampling, **episode.sampling}


def _client(episode: ModelEndpoint) -> vf.ClientConfig:
    return vf.ClientConfig(
        client_type="openai_chat_completions",
        api_base_url=path_url(episode),
        api_key_var=KEY_VARIABLE,
        max_retries=2,
    )


def _name(row: Mapping[str, Any]) -> str:
    for key in ("id", "task_id"):
        if row.get(key) not in {None, ""}:
            return str(row[key])
    # `example_id` is the position.
    return digest({key: value for key, value in row.items() if key != "example_id"})


def _rubrics(rubric: Any) -> Iterator[Any]:
    inner = getattr(rubric, "rubrics", None)
    if inner is None:
        yield rubric
    else:
        for one in inner:
            yield from _rubrics(one)


def _reporting(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function whose failures are noted: rubrics make them a reward of 0."""

    @functools.wraps(func)
    async def reporting(*args: Any, **kwargs: Any) -> Any:
        try:
            result = func(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            noted = _failures.get()
            if noted is not None:
                noted.append(f"{getattr(func, '__name__', func)}: {type(error).__name__}: {error}")
            raise

    return reporting


def _judged(task: Task, result: Mapping[str, Any], failures: Sequence[str]) -> EpisodeOutcome:
    if failures:
        raise EnvironmentFailedError(f"{task.id}: a reward function failed: {failures[0]}")
    if error := result.get("error"):
        raise EnvironmentFailedError(f"{task.id}: {error!r}")
    return outcome(result.get("reward"), result.get("metrics") or {}, task)


def _failed(task: Task, error: Exception) -> EnvironmentFailedError:
    return EnvironmentFailedError(f"{task.id}: {type(error).__name__}: {error}")
