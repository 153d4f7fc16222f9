"""`trainable`: make existing functions and agents trainable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from agentjet.agents.adapters import installed_adapters
from agentjet.agents.options import GroupScore, Reward, TrainableOptions
from agentjet.agents.registered import load_judge
from agentjet.agents.running.programs import AsyncClient, Client, SyncClient, Trainable
from agentjet.agents.running.programs_async import AsyncTrainable
from agentjet.agents.running.programs_sync import SyncTrainable
from agentjet.agents.tasks import TaskId
from agentjet.client import AsyncSwarm, AsyncSwarmClient, Swarm, SwarmClient
from ajet_core.protocol import CallRules, CallSampling

Models = Mapping[str, str | SwarmClient | AsyncSwarmClient]
"""Servers by the role of their model."""


def trainable(
    target: Any = None,
    client: Client | None = None,
    *,
    reward: Reward | str | None = None,
    group_reward: GroupScore | None = None,
    models: Models | None = None,
    roles: Mapping[str, str] | None = None,
    passthrough: Collection[str] = (),
    agents: Mapping[str, str] | None = None,
    sampling: Mapping[str, Any] | None = None,
    max_calls: int | None = None,
    max_tokens: int | None = None,
    task_id: TaskId | None = None,
    tag: str = "",
    lease_seconds: float = 600.0,
    timeout: float | None = None,
) -> Any:
    """Make an existing program trainable: each call is an episode.

    ```python
    @trainable(client, reward=score)
    async def solve(task): ...

    agent = trainable(agent, client, reward=score)
    ```

    Each call claims an episode and sends the program's model calls to that episode's endpoint,
    whichever HTTP client makes them. The episode ends with the reward, or is aborted with the
    reason if the program raises. The call returns what the program returns. Without a client, calls
    run the program unchanged, and `train` can train it.

    :param target: the client (when used as a decorator), a function, or an agent of a framework
        whose adapter is installed.
    :param client: `AsyncSwarmClient` or `AsyncSwarm` for async functions, `SwarmClient` or `Swarm`
        for other functions. An agent runs in the mode of its client.
    :param reward: called with the task and the program's return value; returns the reward, an
        `EpisodeOutcome`, or, with several models, a mapping of these by role. Or the name of a
        judge; see `load_judge`. None if the program itself returns the reward. Model calls that
        `reward` makes are not part of the episode.
    :param group_reward: called with a task and a list of what the program returned in each of its
        episodes; returns a list of as many rewards, for rankings and other comparisons. `train`
        waits for all episodes of a task. A direct call is a group of one.
    :param models: servers by role (their URLs, or clients of them), instead of a client, if several
        models are trained together.
    :param roles: the role of each model call, by the name of the calling agent or of the requested
        model. Names that are roles need not be listed.
    :param passthrough: names of models whose calls are not rerouted, such as that of a judge.
    :param agents: agent names, each with a text that the agent's system prompt contains; for
        frameworks without an adapter, whose calls do not otherwise identify the agent.
    :param sampling: overrides parameters of all model calls of episodes, such as
        ``{"temperature": 1.0}``, where the program's own leave nothing to learn from; None removes
        a parameter. The server applies ``temperature``, ``top_p``, ``top_k`` and ``max_tokens``,
        so that these also hold for calls that are not rerouted.
    :param max_calls: most model calls of an episode. The server refuses further ones in a way that
        ends loops of programs.
    :param max_tokens: most tokens that are sampled for an episode, likewise.
    :param task_id: returns the id of a task; see `task_of`.
    :param tag: the part of a mixture that tasks belong to if they have no tag.
    :param lease_seconds: the server aborts the episode of a direct call after this time without a
        model call.
    :param timeout: seconds that a direct call waits for an episode.
    :return: a decorator if `target` is None or a client, else an `AsyncTrainable` or a
        `SyncTrainable`.
    :raises TypeError: client and program do not match.
    :raises ConfigError: no adapter accepts the agent, or the settings of the judge are invalid.
    :raises PluginError: no usable plugin has the judge, or the adapter of the agent's framework
        cannot be used.
    """
    if target is None or isinstance(target, Client):
        if target is not None and client is not None:
            raise TypeError("two clients were given: pass one")
        return partial(
            trainable,
            client=target if client is None else client,
            reward=reward,
            group_reward=group_reward,
            models=models,
            roles=roles,
            passthrough=passthrough,
            agents=agents,
            sampling=sampling,
            max_calls=max_calls,
            max_tokens=max_tokens,
            task_id=task_id,
            tag=tag,
            lease_seconds=lease_seconds,
            timeout=timeout,
        )
    if isinstance(reward, str):
        reward = load_judge(reward)
    if reward is not None and group_reward is not None:
        raise TypeError("reward= and group_reward= were given: pass one")
    for name, score in {"reward": reward, "group_reward": group_reward}.items():
        if not (score is None or callable(score)):
            raise TypeError(f"{name}= must be a function, or None: got {score!r}")
    if models is not None and client is not None:
        raise TypeError("models= already names the servers: do not pass a client as well")
    options = TrainableOptions(
        reward=reward,
        group_reward=group_reward,
        roles=dict(roles or {}),
        passthrough=frozenset(passthrough),
        agents=dict(agents or {}),
        sampling=dict(sampling or {}),
        rules=CallRules(
            sampling=CallSampling.model_validate(
                {
                    name: value
                    for name, value in (sampling or {}).items()
                    if name in CallSampling.model_fields and value is not None
                }
            ),
            max_calls=max_calls,
            max_tokens=max_tokens,
        ),
        task_id=task_id,
        tag=tag,
        lease_seconds=lease_seconds,
        timeout=timeout,
    )
    if isinstance(target, Trainable):
        raise TypeError(
            "the agent is already trainable: pass all parameters in one call, or use its `plain`"
        )
    _refuse_generators(target)
    if is_program(target):
        if is_async(target):
            return AsyncTrainable(target, options, _async_client(client, models))
        _refuse_async_reward(reward or group_reward)
        return SyncTrainable(target, options, _sync_client(client, models))
    return _of_agent(target, client, models, options)


def is_program(target: object) -> bool:
    """Return whether `target` is called directly rather than run by an adapter.

    :raises PluginError: it is an agent of a framework whose adapter cannot be used.
    :raises ConfigError: it is an agent of a framework whose adapter is not installed.
    """
    if inspect.isroutine(target) or isinstance(target, partial):
        return True
    return callable(target) and installed_adapters().find(target) is None


def is_async(program: Any) -> bool:
    """Return whether calls of a program must be awaited."""
    if isinstance(program, partial):
        return is_async(program.func)
    return inspect.iscoroutinefunction(program) or inspect.iscoroutinefunction(
        getattr(program, "__call__", None)  # noqa: B004 - of objects with an async __call__
    )


def _refuse_generators(target: Any) -> None:
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise TypeError(
            f"{target.__qualname__} is a generator, which has no result to reward: decorate "
            "a function that returns"
        )


def _refuse_async_reward(reward: Callable[..., Any] | None) -> None:
    if reward is not None and is_async(reward):
        raise TypeError("the reward function is async, which requires an async program")


def _of_agent(
    agent: object, client: Client | None, models: Models | None, options: TrainableOptions
) -> AsyncTrainable[Any] | SyncTrainable[Any]:
    adapter = installed_adapters().of(agent)
    if isinstance(client, SyncClient):
        _refuse_async_reward(options.reward or options.group_reward)

        def run_sync(task: Any) -> Any:
            return adapter.run_sync(adapter.fresh(agent), task)

        return SyncTrainable(run_sync, options, client)

    async def run(task: Any) -> Any:
        return await adapter.run(adapter.fresh(agent), task)

    return AsyncTrainable(run, options, _async_client(client, models))


def _async_client(client: Client | None, models: Models | None) -> AsyncClient | None:
    if isinstance(client, SyncClient):
        raise TypeError(
            "an async function requires AsyncSwarmClient or AsyncSwarm, not "
            f"{type(client).__name__}"
        )
    return AsyncSwarm(*_servers_of(models)) if models is not None else client


def _sync_client(client: Client | None, models: Models | None) -> SyncClient | None:
    if isinstance(client, AsyncSwarmClient | AsyncSwarm):
        raise TypeError(
            "a function that is not async requires SwarmClient or Swarm, not "
            f"{type(client).__name__}"
        )
    return Swarm(*_servers_of(models)) if models is not None else client


def _servers_of(
    models: Mapping[str, str | SwarmClient | AsyncSwarmClient],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return URLs and known tokens by role, as `Swarm` takes them."""
    urls: dict[str, str] = {}
    tokens: dict[str, str] = {}
    for role, model in models.items():
        if isinstance(model, str):
            urls[role] = model
            continue
        urls[role] = model.url
        if (token := model._connection.endpoint.token) is not None:
            tokens[role] = token
    return urls, tokens
