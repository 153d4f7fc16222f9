"""The asynchronous client of several servers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

from agentjet.client._async import AsyncSwarmClient
from agentjet.client._episode import (
    NO_REWARD,
    EpisodeFailure,
    EpisodeResult,
    Resumption,
    RunnerReport,
    Task,
    abort_cause,
    abort_reason,
    resumption,
)
from agentjet.client._flows import Flow, Kind
from agentjet.client._joint import ClaimTerms, JointFlows, Rewards, SwarmEpisode, SwarmOutcome
from agentjet.client._runner import (
    RUNNER_LEASE_SECONDS,
    as_tasks,
    check_concurrency,
    check_episodes_per_task,
    make_jobs,
)
from agentjet.client._runner_async import run_episodes
from agentjet.client._transport import AsyncDriver
from agentjet.client._wire import DEFAULT_RETRIES
from ajet_core.errors import AjetError
from ajet_core.protocol import AgentCause, EpisodeStatus, RunConfig, RunStatus, ServerStatus

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

AsyncJointAgent = Callable[[Task, SwarmEpisode], Awaitable[Rewards]]


@dataclass(kw_only=True)
class AsyncScopedSwarmEpisode(SwarmEpisode):
    """The joint episode of a ``async with swarm.episode(...)`` block.

    :ivar rewards: set it, or call ``end``; a joint episode without rewards is aborted.
    :ivar closed: whether it was ended through this object.
    """

    swarm: AsyncSwarm = field(repr=False)
    rewards: Rewards | None = None
    closed: bool = False

    async def end(self, rewards: Rewards) -> dict[str, EpisodeStatus]:
        """Report the outcome now; see `AsyncSwarm.end_episode`."""
        self.closed = True
        return await self.swarm.end_episode(self, rewards)


class AsyncSwarm:
    """A client of several swarm servers, each with a model of its own, that train on the same episodes.

    A joint episode has a part on each server. It is ended on all of them or aborted on all, whatever dies meanwhile.
    To be shared by the tasks of an event loop; each loop has connections of its own.

    :param servers: the URL of each server, by the role of its model. The role that comes first in the alphabet is the
        arbiter's: its outcome is that of all.
    :param tokens: by role; what is missing is found as `AsyncSwarmClient` finds it.
    :param retries: as of `AsyncSwarmClient`, and so are the others.
    :raises ConfigError: there is no server, or a URL is none.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        *,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clients = {
            role: AsyncSwarmClient(
                url,
                (tokens or {}).get(role),
                retries=retries,
                transport=transport,
                rng=rng,
                sleep=sleep,
                clock=clock,
            )
            for role, url in sorted(servers.items())
        }
        self._flows = JointFlows({role: c._flows for role, c in self.clients.items()})
        self._clock = clock
        self._driver = AsyncDriver(self[self.arbiter]._flows, transport, sleep)

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the servers, in the order in which parts are claimed."""
        return self._flows.roles

    @property
    def arbiter(self) -> str:
        """The role whose outcome is that of all."""
        return self._flows.arbiter

    def __getitem__(self, role: str) -> AsyncSwarmClient:
        return self.clients[role]

    def __repr__(self) -> str:
        servers = ", ".join(f"{role!r}: {c.url!r}" for role, c in self.clients.items())
        return f"AsyncSwarm({{{servers}}})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; the swarm cannot be used afterwards."""
        await self._driver.close()
        for client in self.clients.values():
            await client.close()

    # --- Joint episodes ---------------------------------------------------------------------------

    async def begin_episode(
        self,
        task_id: str,
        *,
        group: str | None = None,
        kind: Kind = "train",
        tag: str = "",
        lease_seconds: float = 600.0,
        heartbeat_seconds: float | None = None,
        timeout: float | None = None,
    ) -> SwarmEpisode:
        """Claim a part on each server; waits until all have a place. Parameters as `AsyncSwarmClient.begin_episode`.

        :raises ConfigError: the servers cannot be joined: they have unequal group sizes, or one is named twice.
        """
        terms = ClaimTerms(group, kind, tag, lease_seconds, heartbeat_seconds, timeout)
        episode = self._flows.new(task_id)
        try:
            await self._run(self._flows.claim(episode, terms))
        except BaseException as error:
            await self._abort_after(episode, error, "cancelled")
            raise
        return episode

    async def end_episode(
        self, episode: SwarmEpisode, rewards: Rewards
    ) -> dict[str, EpisodeStatus]:
        """Report the outcome of a joint episode, on all servers or on none.

        Once this returns it has ended, and that survives a crash of any server; one that cannot be reached hears of it
        later, and its part is still ``prepared`` in the answer.

        :param rewards: by role; one number is the reward of every role.
        :raises EpisodeClosedError: a part was aborted before, or its lease ran out; all are then aborted.
        """
        return await self._end(episode, self._outcome(rewards))

    async def abort_episode(
        self,
        episode: SwarmEpisode,
        reason: str,
        *,
        cause: AgentCause = "error",
        final: bool = False,
        retries: int | None = None,
    ) -> dict[str, EpisodeStatus]:
        """Give a joint episode up on all servers, unless it has ended; parameters as `AsyncSwarmClient.abort_episode`."""
        return await self._run(
            self._flows.abort(episode, reason, cause=cause, final=final, retries=retries)
        )

    async def heartbeats(self, episodes: Sequence[SwarmEpisode]) -> dict[str, str]:
        """Renew the leases of all parts of many joint episodes.

        :return: why those that are over are, by the id of their arbiter's part.
        """
        return await self._run(self._flows.heartbeats(episodes))

    async def resolve(self) -> int:
        """End or abort parts that a program of the same token left prepared when it died, as their arbiter decided.

        Runners do it by themselves.

        :return: how many there were.
        """
        return await self._run(self._flows.resolve())

    @contextlib.asynccontextmanager
    async def episode(
        self,
        task_id: str,
        *,
        group: str | None = None,
        kind: Kind = "train",
        tag: str = "",
        lease_seconds: float = 600.0,
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncScopedSwarmEpisode]:
        """A joint episode for the length of a ``with`` block; parameters as `begin_episode`.

        Set ``ep.rewards`` or call ``ep.end(rewards)`` inside. Leaving by an exception aborts it with that reason,
        leaving without rewards aborts it too.
        """
        claimed = await self.begin_episode(
            task_id, group=group, kind=kind, tag=tag, lease_seconds=lease_seconds, timeout=timeout
        )
        scoped = AsyncScopedSwarmEpisode(**vars(claimed), swarm=self)
        try:
            yield scoped
        except BaseException as error:
            if not scoped.closed:
                await self._abort_after(scoped, error, abort_cause(error))
            raise
        if scoped.closed:
            return
        if scoped.rewards is None:
            await self.abort_episode(scoped, NO_REWARD)
        else:
            await scoped.end(scoped.rewards)

    async def run_episodes_until_all_complete(
        self,
        tasks: Sequence[str | Task],
        agent: AsyncJointAgent,
        *,
        episodes_per_task: int = 1,
        concurrency: int = 64,
        kind: Kind = "train",
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        resume: bool = False,
        on_result: Callable[[EpisodeResult[SwarmEpisode, SwarmOutcome] | EpisodeFailure], object]
        | None = None,
    ) -> RunnerReport[SwarmEpisode, SwarmOutcome]:
        """Roll out many joint episodes, each agent in a task of the event loop.

        As `AsyncSwarmClient.run_episodes_until_all_complete`, but that the agent is given a `SwarmEpisode` and returns
        rewards by role.
        """
        check_concurrency(concurrency)
        check_episodes_per_task(episodes_per_task)
        await self._run(self._flows.join(again=True))
        await self.resolve()
        remaining = [(task, episodes_per_task) for task in as_tasks(tasks)]
        if resume:
            found = await self.resume(tasks, episodes_per_task=episodes_per_task, kind=kind)
            remaining = list(found.remaining)
        report = await run_episodes(
            self,
            make_jobs(remaining),
            agent,
            outcome_of=self._outcome,
            end=self._end,
            concurrency=concurrency,
            kind=kind,
            retries=retries,
            lease_seconds=lease_seconds,
            episode_timeout=episode_timeout,
            on_result=on_result,
            clock=self._clock,
        )
        await self.resolve()
        return report

    async def resume(
        self, tasks: Sequence[str | Task], *, episodes_per_task: int = 1, kind: Kind = "train"
    ) -> Resumption:
        """What of a dataset is finished; see `AsyncSwarmClient.resume`. What is in doubt is resolved first."""
        check_episodes_per_task(episodes_per_task)
        wanted = as_tasks(tasks)
        groups = list(dict.fromkeys(task.group or task.id for task in wanted))
        counts = await self._run(self._flows.group_counts(groups, kind))
        return resumption(wanted, episodes_per_task, counts)

    # --- Runs and servers -------------------------------------------------------------------------

    async def sync_train_config(self, configs: Mapping[str, RunConfig]) -> dict[str, RunStatus]:
        """Set what each server trains, by role.

        :raises ConfigError: runs of these configurations cannot be joined; nothing has changed then.
        """
        self._flows.check_configs(configs)
        self._flows.leave()
        return {role: await c.sync_train_config(configs[role]) for role, c in self.clients.items()}

    async def start_engine(self, wait_seconds: float = 600.0) -> dict[str, RunStatus]:
        """Start all runs and wait until all servers have booted; see `AsyncSwarmClient.start_engine`.

        :raises ConfigError: the runs cannot be joined; none has started then.
        """
        await self._run(self._flows.join(again=True))
        return {
            role: await client.start_engine(wait_seconds) for role, client in self.clients.items()
        }

    async def stop_engine(self, timeout: float = 600.0) -> dict[str, RunStatus]:
        """Stop all runs, after what is in doubt was resolved; see `AsyncSwarmClient.stop_engine`."""
        await self.resolve()
        stopped = {role: await client.stop_engine(timeout) for role, client in self.clients.items()}
        # What was open at the arbiter is aborted by now, also where its other parts were prepared.
        await self.resolve()
        return stopped

    async def status(self) -> dict[str, ServerStatus]:
        """What the servers are doing."""
        return {role: await client.status() for role, client in self.clients.items()}

    def _outcome(self, value: object) -> SwarmOutcome:
        return SwarmOutcome.of(value, self.roles)

    async def _end(self, episode: SwarmEpisode, outcome: SwarmOutcome) -> dict[str, EpisodeStatus]:
        return await self._run(self._flows.end(episode, outcome))

    async def _abort_after(
        self, episode: SwarmEpisode, error: BaseException, cause: AgentCause
    ) -> None:
        """Abort because of `error`, which matters more than whether that works."""
        if not episode.parts:
            return
        try:
            await self.abort_episode(episode, abort_reason(error, episode), cause=cause, retries=0)
        except AjetError as second:
            error.add_note(f"(aborting the joint episode failed too: {second.message})")

    async def _run(self, flow: Flow[R]) -> R:
        return await self._driver.run(flow)
