"""Async programs: each call rolls out an episode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from agentjet.agents.options import TrainableOptions, only_outcome, score
from agentjet.agents.route import Route, routed
from agentjet.agents.running.programs import (
    AsyncClient,
    EpisodeRun,
    R,
    Trainable,
    rewarded_async,
    run_async,
)
from agentjet.agents.tasks import item_of
from agentjet.client import AsyncSwarm, AsyncSwarmClient, Episode, SwarmEpisode, Task


class AsyncTrainable(Trainable[R]):
    """A trainable async function; hundreds of calls may run at once, in asyncio tasks."""

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
            result: R = await self.plain(*args, **kwargs)
            return result
        run = await self.episode(*args, **kwargs)
        return run.result

    async def episode(self, /, *args: Any, **kwargs: Any) -> EpisodeRun[R]:
        """Run the program as an episode, and return the episode and the outcome with the result."""
        if self.client is None:
            raise TypeError("there is no client to claim an episode with: pass one")
        task, args, kwargs = self._task_of(args, kwargs)
        self.prepare()
        named_task, options = self.options.task(task), self.options
        async with self.client.episode(
            named_task.id,
            group=named_task.group,
            tag=named_task.tag,
            lease_seconds=options.lease_seconds,
            timeout=options.timeout,
            rules=options.rules,
        ) as scoped:
            result, outcome = await self._play(named_task, scoped, args, kwargs)
            score(scoped, outcome)
        return EpisodeRun(episode=scoped, result=result, outcome=outcome)

    async def agent(self, task: Task, episode: Any) -> Any:
        """Run the program as an agent of a runner of `AsyncSwarmClient` or `AsyncSwarm`.

        :raises TypeError: it has a group reward.
        """
        self._refuse_group_reward()
        _, outcome = await self._play(task, episode, (), {})
        return outcome

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
            statuses = [await client[role].episode_status(part) for role, part in parts]
        elif isinstance(client, AsyncSwarmClient) and isinstance(episode, Episode):
            statuses = [await client.episode_status(episode)]
        else:
            statuses = []
        if not any(status.calls for status in statuses):
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
            outcomes = await rewarded_async(self.group_outcomes(task, [result]))
            return result, only_outcome(outcomes)
        if reward is None:
            return result, result
        return result, await rewarded_async(reward(item_of(task), result))

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
                result: R = await run_async(self.plain, item, *args, **kwargs)
        finally:
            route.finish()
            await route.connections.aclose()
        await self._check(route, episode)
        return result
