"""Programs that roll out an episode on each call."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

from agentjet.agents.adapters import installed_adapters
from agentjet.agents.options import TrainableOptions, only_outcome, score
from agentjet.agents.route import STRANGE, Route, routed
from agentjet.agents.sending import instrument
from agentjet.agents.tasks import item_of
from agentjet.client import (
    AsyncSwarm,
    AsyncSwarmClient,
    Episode,
    Swarm,
    SwarmClient,
    SwarmEpisode,
    Task,
)
from ajet_core.errors import RoutingError

R = TypeVar("R")

SyncClient = SwarmClient | Swarm
AsyncClient = AsyncSwarmClient | AsyncSwarm
Client = SyncClient | AsyncClient


@dataclass(frozen=True, kw_only=True)
class EpisodeRun(Generic[R]):
    """The result of one call.

    :param result: the program's return value.
    :param outcome: its reward, or rewards by role.
    """

    episode: Episode | SwarmEpisode
    result: R
    outcome: Any


class Trainable(ABC, Generic[R]):
    """A program that rolls out an episode on each call; created by `trainable`.

    Without a client, calls run the program unchanged; `train` or a client's runner can train it.

    :ivar plain: the unchanged program.
    """

    def __init__(self, plain: Callable[..., Any], options: TrainableOptions) -> None:
        # Attributes of the program are not copied: their names may be those of attributes here.
        functools.update_wrapper(cast("Callable[..., Any]", self), plain, updated=())
        self.plain = plain
        self.options = options

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        """Bind a method, so that the task is the argument after `self`."""
        if instance is None:
            return self
        return self._of(self.plain.__get__(instance, owner))

    @abstractmethod
    def _of(self, plain: Callable[..., Any]) -> Self:
        """Return a copy for another program."""

    def _task_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Split a call's arguments into the task, which may be a keyword argument, and the others.

        :raises TypeError: the first argument is missing.
        """
        if args:
            return args[0], args[1:], kwargs
        try:
            names = list(inspect.signature(self.plain).parameters)
        except ValueError:
            names = []
        if not (names and names[0] in kwargs):
            name = getattr(self.plain, "__qualname__", self.plain)
            raise TypeError(
                f"{name!s}() was called without a task: pass the task as its first argument"
            )
        others = dict(kwargs)
        return others.pop(names[0]), (), others

    def group_outcomes(self, task: Task, results: Sequence[R]) -> Any:
        """Reward all episodes of a task, as `group_reward` of a runner; may return an awaitable."""
        assert self.options.group_reward is not None
        return self.options.group_reward(item_of(task), results)

    def _refuse_group_reward(self) -> None:
        """:raises TypeError: episodes cannot be rewarded one by one."""
        if self.options.group_reward is not None:
            name = getattr(self.plain, "__qualname__", self.plain)
            raise TypeError(
                f"{name!s} has a group reward: use `train`, or give a runner `{name!s}.rollout` "
                f"and group_reward={name!s}.group_outcomes"
            )

    def prepare(self) -> None:
        """Load the adapters of the frameworks in use, before an episode is claimed.

        The first time may take seconds, in which no heartbeat is sent.
        """
        instrument()
        installed_adapters().prepare()

    def _begin(self, episode: Episode | SwarmEpisode) -> Route:
        self.prepare()
        return self.options.route(episode)

    def _why_no_calls(self, route: Route) -> RoutingError:
        """Return the error for an episode without a model call."""
        name = getattr(self.plain, "__qualname__", self.plain)
        if route.sent:
            return RoutingError(
                f"{name!s} returned, but none of its {route.sent} model calls succeeded: it "
                "must have caught the errors"
            )
        if route.strange:
            return RoutingError(
                f"{name!s} called only models at {', '.join(sorted(route.strange))}: {STRANGE}"
            )
        return RoutingError(
            f"{name!s} made no model call that could be trained: it calls its model without "
            "httpx and httpx2, or from a thread that lacks the context (run the thread's "
            "function with contextvars.copy_context().run)"
        )


class SyncTrainable(Trainable[R]):
    """A trainable function; hundreds of calls may run at once, in threads."""

    def __init__(
        self, plain: Callable[..., R], options: TrainableOptions, client: SyncClient | None = None
    ) -> None:
        super().__init__(plain, options)
        self.client = client

    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Run the program, as an episode if there is a client; the task is its first argument.

        :raises AjetError: no episode could be claimed.
        """
        if self.client is None:
            its: R = self.plain(*args, **kwargs)
            return its
        return self.episode(*args, **kwargs).result

    def episode(self, /, *args: Any, **kwargs: Any) -> EpisodeRun[R]:
        """Run the program as an episode, and return the episode and the outcome with the result."""
        if self.client is None:
            raise TypeError("there is no client to claim an episode with: pass one")
        task, args, kwargs = self._task_of(args, kwargs)
        self.prepare()
        its, options = self.options.task(task), self.options
        with self.client.episode(
            its.id,
            group=its.group,
            tag=its.tag,
            lease_seconds=options.lease_seconds,
            timeout=options.timeout,
            rules=options.rules,
        ) as scoped:
            result, outcome = self._play(its, scoped, args, kwargs)
            score(scoped, outcome)
        return EpisodeRun(episode=scoped, result=result, outcome=outcome)

    def agent(self, task: Task, episode: Any) -> Any:
        """Run the program as an agent of a runner of `SwarmClient` or `Swarm`.

        :raises TypeError: it has a group reward.
        """
        self._refuse_group_reward()
        return self._play(task, episode, (), {})[1]

    def rollout(self, task: Task, episode: Any) -> R:
        """Run the program as `agent` does, but return its result, for a group reward."""
        return self._result_of_plain(task, episode, (), {})

    def through(self, client: SyncClient) -> Self:
        """Return a copy that claims its episodes with another client."""
        return type(self)(self.plain, self.options, client)

    def _of(self, plain: Callable[..., Any]) -> Self:
        return type(self)(plain, self.options, self.client)

    def _check(self, route: Route, episode: Episode | SwarmEpisode) -> None:
        """:raises RoutingError: the server has recorded no call of the episode."""
        client = self.client
        if route.answered:
            return
        # Calls by other ways than httpx are only known to the server.
        if isinstance(client, Swarm) and isinstance(episode, SwarmEpisode):
            parts = episode.parts.items()
            calls = [client[role].episode_status(part).calls for role, part in parts]
        elif isinstance(client, SwarmClient) and isinstance(episode, Episode):
            calls = [client.episode_status(episode).calls]
        else:
            calls = []
        if not any(calls):
            raise self._why_no_calls(route)

    def _play(
        self,
        task: Task,
        episode: Episode | SwarmEpisode,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[R, Any]:
        result = self._result_of_plain(task, episode, args, kwargs)
        reward = self.options.reward
        if self.options.group_reward is not None:
            return result, only_outcome(self.group_outcomes(task, [result]))
        return result, (result if reward is None else reward(item_of(task), result))

    def _result_of_plain(
        self,
        task: Task,
        episode: Episode | SwarmEpisode,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> R:
        route = self._begin(episode)
        item = item_of(task)
        try:
            with routed(route):
                result: R = self.plain(item, *args, **kwargs)
        finally:
            route.finish()
            route.connections.close()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(
                f"{getattr(self.plain, '__qualname__', self.plain)!s} returned an awaitable: "
                "declare it with `async def`"
            )
        self._check(route, episode)
        return result


class AsyncTrainable(Trainable[R]):
    """A trainable coroutine function; hundreds of calls may run at once, in asyncio tasks."""

    def __init__(
        self,
        plain: Callable[..., Awaitable[R]],
        options: TrainableOptions,
        client: AsyncClient | None = None,
    ) -> None:
        super().__init__(plain, options)
        self.client = client

    async def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Run the program, as an episode if there is a client; the task is its first argument.

        :raises AjetError: no episode could be claimed.
        """
        if self.client is None:
            its: R = await self.plain(*args, **kwargs)
            return its
        return (await self.episode(*args, **kwargs)).result

    async def episode(self, /, *args: Any, **kwargs: Any) -> EpisodeRun[R]:
        """Run the program as an episode, and return the episode and the outcome with the result."""
        if self.client is None:
            raise TypeError("there is no client to claim an episode with: pass one")
        task, args, kwargs = self._task_of(args, kwargs)
        self.prepare()
        its, options = self.options.task(task), self.options
        async with self.client.episode(
            its.id,
            group=its.group,
            tag=its.tag,
            lease_seconds=options.lease_seconds,
            timeout=options.timeout,
            rules=options.rules,
        ) as scoped:
            result, outcome = await self._play(its, scoped, args, kwargs)
            score(scoped, outcome)
        return EpisodeRun(episode=scoped, result=result, outcome=outcome)

    async def agent(self, task: Task, episode: Any) -> Any:
        """Run the program as an agent of a runner of `AsyncSwarmClient` or `AsyncSwarm`.

        :raises TypeError: it has a group reward.
        """
        self._refuse_group_reward()
        return (await self._play(task, episode, (), {}))[1]

    async def rollout(self, task: Task, episode: Any) -> R:
        """Run the program as `agent` does, but return its result, for a group reward."""
        return await self._result_of_plain(task, episode, (), {})

    def through(self, client: AsyncClient) -> Self:
        """Return a copy that claims its episodes with another client."""
        return type(self)(self.plain, self.options, client)

    def _of(self, plain: Callable[..., Any]) -> Self:
        return type(self)(plain, self.options, self.client)

    async def _check(self, route: Route, episode: Episode | SwarmEpisode) -> None:
        """:raises RoutingError: the server has recorded no call of the episode."""
        client = self.client
        if route.answered:
            return
        # Calls by other ways than httpx are only known to the server.
        if isinstance(client, AsyncSwarm) and isinstance(episode, SwarmEpisode):
            parts = episode.parts.items()
            calls = [(await client[role].episode_status(part)).calls for role, part in parts]
        elif isinstance(client, AsyncSwarmClient) and isinstance(episode, Episode):
            calls = [(await client.episode_status(episode)).calls]
        else:
            calls = []
        if not any(calls):
            raise self._why_no_calls(route)

    async def _play(
        self,
        task: Task,
        episode: Episode | SwarmEpisode,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[R, Any]:
        result = await self._result_of_plain(task, episode, args, kwargs)
        reward = self.options.reward
        if self.options.group_reward is not None:
            outcomes = self.group_outcomes(task, [result])
            outcomes = await outcomes if inspect.isawaitable(outcomes) else outcomes
            return result, only_outcome(outcomes)
        if reward is None:
            return result, result
        outcome = reward(item_of(task), result)
        return result, (await outcome if inspect.isawaitable(outcome) else outcome)

    async def _result_of_plain(
        self,
        task: Task,
        episode: Episode | SwarmEpisode,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> R:
        route = self._begin(episode)
        item = item_of(task)
        try:
            with routed(route):
                result: R = await self.plain(item, *args, **kwargs)
        finally:
            route.finish()
            await route.connections.aclose()
        await self._check(route, episode)
        return result
