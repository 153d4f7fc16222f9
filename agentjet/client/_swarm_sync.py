# Generated from _swarm_async.py by scripts/unasync.py. Edit that file, and run `make generate`.
"""The synchronous client of several servers."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeVar

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
from agentjet.client._runner_sync import run_episodes
from agentjet.client._sync import SwarmClient
from agentjet.client._transport import SyncDriver
from agentjet.client._wire import DEFAULT_RETRIES
from ajet_core.errors import AjetError
from ajet_core.protocol import AgentCause, EpisodeStatus, RunConfig, RunStatus, ServerStatus

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")

JointAgent = Callable[[Task, SwarmEpisode], Rewards]


@dataclass(kw_only=True)
class ScopedSwarmEpisode(SwarmEpisode):
    """The joint episode of a ``with swarm.episode(...)`` block.

    :ivar rewards: set it, or call ``end``; a joint episode without rewards is aborted.
    :ivar closed: whether it was ended through this object.
    """

    swarm: Swarm = field(repr=False)
    rewards: Rewards | None = None
    closed: bool = False

    def end(self, rewards: Rewards) -> dict[str, EpisodeStatus]:
        """Report the outcome now; see `Swarm.end_episode`."""
        self.closed = True
        return self.swarm.end_episode(self, rewards)


class Swarm:
    """A client of several swarm servers, each with a model of its own, that train on the same episodes.

    A joint episode has a part on each server. It is ended on all of them or aborted on all, whatever dies meanwhile.
    Safe to share between threads.

    :param servers: the URL of each server, by the role of its model. The role that comes first in the alphabet is the
        arbiter's: its outcome is that of all.
    :param tokens: by role; what is missing is found as `SwarmClient` finds it.
    :param retries: as of `SwarmClient`, and so are the others.
    :raises ConfigError: there is no server, or a URL is none.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        *,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clients = {
            role: SwarmClient(
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
        self._driver = SyncDriver(self[self.arbiter]._flows, transport, sleep)

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the servers, in the order in which parts are claimed."""
        return self._flows.roles

    @property
    def arbiter(self) -> str:
        """The role whose outcome is that of all."""
        return self._flows.arbiter

    def __getitem__(self, role: str) -> SwarmClient:
        return self.clients[role]

    def __repr__(self) -> str:
        servers = ", ".join(f"{role!r}: {c.url!r}" for role, c in self.clients.items())
        return f"Swarm({{{servers}}})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the swarm cannot be used afterwards."""
        self._driver.close()
        for client in self.clients.values():
            client.close()

    # --- Joint episodes ---------------------------------------------------------------------------

    def begin_episode(
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
        """Claim a part on each server; waits until all have a place. Parameters as `SwarmClient.begin_episode`.

        :raises ConfigError: the servers cannot be joined: they have unequal group sizes, or one is named twice.
        """
        terms = ClaimTerms(group, kind, tag, lease_seconds, heartbeat_seconds, timeout)
        episode = self._flows.new(task_id)
        try:
            self._run(self._flows.claim(episode, terms))
        except BaseException as error:
            self._abort_after(episode, error, "cancelled")
            raise
        return episode

    def end_episode(self, episode: SwarmEpisode, rewards: Rewards) -> dict[str, EpisodeStatus]:
        """Report the outcome of a joint episode, on all servers or on none.

        Once this returns it has ended, and that survives a crash of any server; one that cannot be reached hears of it
        later, and its part is still ``prepared`` in the answer.

        :param rewards: by role; one number is the reward of every role.
        :raises EpisodeClosedError: a part was aborted before, or its lease ran out; all are then aborted.
        """
        return self._end(episode, self._outcome(rewards))

    def abort_episode(
        self,
        episode: SwarmEpisode,
        reason: str,
        *,
        cause: AgentCause = "error",
        final: bool = False,
        retries: int | None = None,
    ) -> dict[str, EpisodeStatus]:
        """Give a joint episode up on all servers, unless it has ended; parameters as `SwarmClient.abort_episode`."""
        return self._run(
            self._flows.abort(episode, reason, cause=cause, final=final, retries=retries)
        )

    def heartbeats(self, episodes: Sequence[SwarmEpisode]) -> dict[str, str]:
        """Renew the leases of all parts of many joint episodes.

        :return: why those that are over are, by the id of their arbiter's part.
        """
        return self._run(self._flows.heartbeats(episodes))

    def resolve(self) -> int:
        """End or abort parts that a program of the same token left prepared when it died, as their arbiter decided.

        Runners do it by themselves.

        :return: how many there were.
        """
        return self._run(self._flows.resolve())

    @contextlib.contextmanager
    def episode(
        self,
        task_id: str,
        *,
        group: str | None = None,
        kind: Kind = "train",
        tag: str = "",
        lease_seconds: float = 600.0,
        timeout: float | None = None,
    ) -> Iterator[ScopedSwarmEpisode]:
        """A joint episode for the length of a ``with`` block; parameters as `begin_episode`.

        Set ``ep.rewards`` or call ``ep.end(rewards)`` inside. Leaving by an exception aborts it with that reason,
        leaving without rewards aborts it too.
        """
        claimed = self.begin_episode(
            task_id, group=group, kind=kind, tag=tag, lease_seconds=lease_seconds, timeout=timeout
        )
        scoped = ScopedSwarmEpisode(**vars(claimed), swarm=self)
        try:
            yield scoped
        except BaseException as error:
            if not scoped.closed:
                self._abort_after(scoped, error, abort_cause(error))
            raise
        if scoped.closed:
            return
        if scoped.rewards is None:
            self.abort_episode(scoped, NO_REWARD)
        else:
            scoped.end(scoped.rewards)

    def run_episodes_until_all_complete(
        self,
        tasks: Sequence[str | Task],
        agent: JointAgent,
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
        """Roll out many joint episodes, each agent in a thread of its own.

        As `SwarmClient.run_episodes_until_all_complete`, but that the agent is given a `SwarmEpisode` and returns
        rewards by role.
        """
        check_concurrency(concurrency)
        check_episodes_per_task(episodes_per_task)
        self._run(self._flows.join(again=True))
        self.resolve()
        remaining = [(task, episodes_per_task) for task in as_tasks(tasks)]
        if resume:
            found = self.resume(tasks, episodes_per_task=episodes_per_task, kind=kind)
            remaining = list(found.remaining)
        report = run_episodes(
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
        self.resolve()
        return report

    def resume(
        self, tasks: Sequence[str | Task], *, episodes_per_task: int = 1, kind: Kind = "train"
    ) -> Resumption:
        """What of a dataset is finished; see `SwarmClient.resume`. What is in doubt is resolved first."""
        check_episodes_per_task(episodes_per_task)
        wanted = as_tasks(tasks)
        groups = list(dict.fromkeys(task.group or task.id for task in wanted))
        counts = self._run(self._flows.group_counts(groups, kind))
        return resumption(wanted, episodes_per_task, counts)

    # --- Runs and servers -------------------------------------------------------------------------

    def sync_train_config(self, configs: Mapping[str, RunConfig]) -> dict[str, RunStatus]:
        """Set what each server trains, by role.

        :raises ConfigError: runs of these configurations cannot be joined; nothing has changed then.
        """
        self._flows.check_configs(configs)
        self._flows.leave()
        return {role: c.sync_train_config(configs[role]) for role, c in self.clients.items()}

    def start_engine(self, wait_seconds: float = 600.0) -> dict[str, RunStatus]:
        """Start all runs and wait until all servers have booted; see `SwarmClient.start_engine`.

        :raises ConfigError: the runs cannot be joined; none has started then.
        """
        self._run(self._flows.join(again=True))
        return {role: client.start_engine(wait_seconds) for role, client in self.clients.items()}

    def stop_engine(self, timeout: float = 600.0) -> dict[str, RunStatus]:
        """Stop all runs, after what is in doubt was resolved; see `SwarmClient.stop_engine`."""
        self.resolve()
        stopped = {role: client.stop_engine(timeout) for role, client in self.clients.items()}
        # What was open at the arbiter is aborted by now, also where its other parts were prepared.
        self.resolve()
        return stopped

    def status(self) -> dict[str, ServerStatus]:
        """What the servers are doing."""
        return {role: client.status() for role, client in self.clients.items()}

    def _outcome(self, value: object) -> SwarmOutcome:
        return SwarmOutcome.of(value, self.roles)

    def _end(self, episode: SwarmEpisode, outcome: SwarmOutcome) -> dict[str, EpisodeStatus]:
        return self._run(self._flows.end(episode, outcome))

    def _abort_after(self, episode: SwarmEpisode, error: BaseException, cause: AgentCause) -> None:
        """Abort because of `error`, which matters more than whether that works."""
        if not episode.parts:
            return
        try:
            self.abort_episode(episode, abort_reason(error, episode), cause=cause, retries=0)
        except AjetError as second:
            error.add_note(f"(aborting the joint episode failed too: {second.message})")

    def _run(self, flow: Flow[R]) -> R:
        return self._driver.run(flow)
