# Generated from programs_async.py by scripts/unasync.py. Edit that, and run `make generate`.
"""Sync programs: each call rolls out an episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from agentjet.agents.options import TrainableOptions, only_outcome, score
from agentjet.agents.route import Route, routed
from agentjet.agents.running.programs import (
    EpisodeRun,
    R,
    SyncClient,
    Trainable,
    rewarded_sync,
    run_sync,
)
from agentjet.agents.tasks import item_of
from agentjet.client import Episode, Swarm, SwarmClient, SwarmEpisode, Task


class SyncTrainable(Trainable[R]):
    """A trainable function that is not async; hundreds of calls may run at once, in threads."""

    def __init__(
        self,
        plain: Callable[..., R],
        options: TrainableOptions,
        client: SyncClient | None = None,
    ) -> None:
        super().__init__(plain, options)
        self.client = client

    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Run the program, as an episode if there is a client; the task is its first argument.

        :raises AjetError: no episode could be claimed.
        """
        if self.client is None:
            result: R = self.plain(*args, **kwargs)
            return result
        run = self.episode(*args, **kwargs)
        return run.result

    def episode(self, /, *args: Any, **kwargs: Any) -> EpisodeRun[R]:
        """Run the program as an episode, and return the episode and the outcome with the result."""
        if self.client is None:
            raise TypeError("there is no client to claim an episode with: pass one")
        task, args, kwargs = self._task_of(args, kwargs)
        self.prepare()
        named_task, options = self.options.task(task), self.options
        with self.client.episode(
            named_task.id,
            group=named_task.group,
            tag=named_task.tag,
            lease_seconds=options.lease_seconds,
            timeout=options.timeout,
            rules=options.rules,
        ) as scoped:
            result, outcome = self._play(named_task, scoped, args, kwargs)
            score(scoped, outcome)
        return EpisodeRun(episode=scoped, result=result, outcome=outcome)

    def agent(self, task: Task, episode: Any) -> Any:
        """Run the program as an agent of a runner of `SwarmClient` or `Swarm`.

        :raises TypeError: it has a group reward.
        """
        self._refuse_group_reward()
        _, outcome = self._play(task, episode, (), {})
        return outcome

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
            statuses = [client[role].episode_status(part) for role, part in parts]
        elif isinstance(client, SwarmClient) and isinstance(episode, Episode):
            statuses = [client.episode_status(episode)]
        else:
            statuses = []
        if not any(status.calls for status in statuses):
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
            outcomes = rewarded_sync(self.group_outcomes(task, [result]))
            return result, only_outcome(outcomes)
        if reward is None:
            return result, result
        return result, rewarded_sync(reward(item_of(task), result))

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
                result: R = run_sync(self.plain, item, *args, **kwargs)
        finally:
            route.finish()
            route.connections.close()
        self._check(route, episode)
        return result
