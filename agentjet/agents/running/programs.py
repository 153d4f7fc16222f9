"""What sync and async programs that roll out an episode on each call have in common."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

from agentjet.agents.adapters import installed_adapters
from agentjet.agents.options import TrainableOptions
from agentjet.agents.route import STRANGE, Route
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


async def run_async(plain: Callable[..., Awaitable[R]], /, *args: Any, **kwargs: Any) -> R:
    """Return the result of an async program."""
    return await plain(*args, **kwargs)


def run_sync(plain: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
    """Return the result of a program that is not async.

    :raises TypeError: the result is an awaitable.
    """
    result = plain(*args, **kwargs)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{getattr(plain, '__qualname__', plain)!s} returned an awaitable: "
            "declare it with `async def`"
        )
    return result


async def rewarded_async(outcome: Any) -> Any:
    """Return what a reward function returned, which may be async."""
    return await outcome if inspect.isawaitable(outcome) else outcome


def rewarded_sync(outcome: Any) -> Any:
    """Return what a reward function returned: `trainable` refuses async ones."""
    return outcome
