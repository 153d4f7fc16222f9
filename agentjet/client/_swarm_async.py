"""The asynchronous client of several servers: joint episodes end on all of them or on none.

The protocol is a two-phase commit. A joint episode has one *part* on each server. The server whose
role comes first alphabetically is the arbiter. The arbiter's part is claimed first and ended last.
Before it ends, every other part is *prepared*: its server stores the outcome durably but does not
apply it. When the arbiter's part ends, the joint episode has ended. The prepared parts are then
*committed* (ended) as soon as their servers can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from agentjet.client._async import IDS_AT_ONCE, LONG_POLL, AsyncSwarmClient
from agentjet.client._episode import (
    NO_REWARD,
    NO_RULES,
    ClaimOptions,
    EpisodeFailure,
    EpisodeResult,
    Kind,
    Resumption,
    RunnerReport,
    abort_cause,
    abort_reason,
    resumption,
)
from agentjet.client._groups import GroupReward, check_group_reward
from agentjet.client._joint import Rewards, SwarmEpisode, SwarmOutcome, check_configs
from agentjet.client._runner import (
    RUNNER_LEASE_SECONDS,
    Concurrency,
    as_tasks,
    check_concurrency,
    check_episodes_per_task,
    make_jobs,
)
from agentjet.client._runner_async import run_episodes
from agentjet.client._wire import DEFAULT_RETRIES, ApiRequest, build, episode_path
from ajet_core.errors import (
    AjetError,
    ConfigError,
    EpisodeClosedError,
    EpisodeError,
    RequestError,
    StateError,
)
from ajet_core.protocol import (
    AgentCause,
    CallRules,
    EpisodeStatus,
    JointOutcomes,
    JointOutcomesRequest,
    JointPart,
    Pace,
    PreparedPart,
    PreparedParts,
    RunConfig,
    RunStatus,
    ServerStatus,
)
from ajet_core.task import Task

if TYPE_CHECKING:
    import httpx2

# Seconds between a runner's searches for prepared parts that are not over yet, its own or those
# left by earlier programs.
RESOLVE_SECONDS = 5.0
# Number of polls per lease. Between polls, a claim that waits for one server renews the leases of
# its parts on the others.
_POLLS_PER_LEASE = 3

_log = logging.getLogger("ajet.client")

AsyncJointAgent = Callable[[Task, SwarmEpisode], Awaitable[Rewards]]


@dataclass(kw_only=True)
class AsyncScopedSwarmEpisode(SwarmEpisode):
    """The joint episode of a ``async with swarm.episode(...)`` block.

    :ivar rewards: set this, or call ``end``; a joint episode without rewards is aborted.
    :ivar closed: whether the episode was ended through this object.
    """

    swarm: AsyncSwarm = field(repr=False)
    rewards: Rewards | None = None
    closed: bool = False

    async def end(self, rewards: Rewards) -> dict[str, EpisodeStatus]:
        """Report the outcome now; see `AsyncSwarm.end_episode`."""
        self.closed = True
        try:
            return await self.swarm.end_episode(self, rewards)
        except (RequestError, TypeError):
            # The outcome cannot be reported, so the episode is still open.
            self.closed = False
            raise


class AsyncSwarm:
    """A client of several swarm servers, each with one model, that train on the same episodes.

    A joint episode has a part on each server. It ends on all of them or is aborted on all, even if
    programs or servers crash. The tasks of an event loop can share it; each loop has its own
    connections.

    :param servers: the URL of each server, by the role of its model. The server whose role comes
        first alphabetically is the arbiter: its outcome decides that of all.
    :param tokens: tokens by role; missing ones are looked up as by `AsyncSwarmClient`.
    :param retries: as for `AsyncSwarmClient`, as are the remaining parameters.
    :raises ConfigError: there is no server, or a URL is not valid.
    """

    def __init__(
        self,
        servers: Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        *,
        retries: int = DEFAULT_RETRIES,
        transport: httpx2.AsyncBaseTransport | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not servers:
            raise ConfigError("a swarm needs at least one server", param="servers")
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
        self._clock = clock
        # Run ids by role, once the runs are known to be compatible.
        self._runs: dict[str, str] = {}
        # Episodes that are being claimed or ended. While one server is unreachable, heartbeats must
        # keep the leases of the parts on the other servers.
        self._in_transition: dict[str, SwarmEpisode] = {}
        self._resolved_at: float | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the servers, in the order in which parts are claimed."""
        # The order is the same in all clients, which prevents deadlocks between claims.
        return tuple(self.clients)

    @property
    def arbiter(self) -> str:
        """The role whose part decides the outcome of the joint episode."""
        return self.roles[0]

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
        rules: CallRules = NO_RULES,
    ) -> SwarmEpisode:
        """Claim a part on each server, waiting until all have a slot.

        Parameters are as for `AsyncSwarmClient.begin_episode`.

        :raises ConfigError: the servers cannot be joined: their group sizes differ, or one is
            listed twice.
        """
        options = ClaimOptions(
            kind=kind,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            timeout=timeout,
            rules=rules,
        )
        return await self._claim(Task(task_id, group=group, tag=tag), options)

    async def _claim(self, task: Task, options: ClaimOptions) -> SwarmEpisode:
        """Claim all parts; if that fails, abort those already claimed."""
        episode = SwarmEpisode(task_id=task.id, joint_id=secrets.token_urlsafe(24))
        try:
            await self._claim_parts(episode, task, options)
        except BaseException as error:
            await self._abort_after(episode, error, "cancelled")
            raise
        return episode

    async def _claim_parts(self, episode: SwarmEpisode, task: Task, options: ClaimOptions) -> None:
        await self._join()
        deadline = None if options.timeout is None else self._clock() + options.timeout
        self._in_transition[episode.joint_id] = episode
        try:
            for role, client in self.clients.items():
                left = None if deadline is None else max(0.0, deadline - self._clock())
                joint = JointPart(
                    joint_id=episode.joint_id,
                    role=role,
                    arbiter=self.arbiter,
                    arbiter_run=self._runs[self.arbiter],
                )
                episode.parts[role] = await client._claim(
                    task,
                    replace(options, timeout=left),
                    joint=joint,
                    poll_seconds=min(LONG_POLL, options.lease_seconds / _POLLS_PER_LEASE),
                    meanwhile=lambda: self._keep(episode),
                )
        finally:
            del self._in_transition[episode.joint_id]

    async def _keep(self, episode: SwarmEpisode) -> None:
        """Renew the leases of the parts claimed so far.

        :raises EpisodeClosedError: a part is over.
        """
        for role, part in list(episode.parts.items()):
            over = await self.clients[role].heartbeats([part])
            if over:
                raise EpisodeClosedError(
                    f"the part at {role!r} ended while another part was waiting: "
                    f"{over[part.episode_id]}"
                )

    async def end_episode(
        self, episode: SwarmEpisode, rewards: Rewards
    ) -> dict[str, EpisodeStatus]:
        """Report the outcome of a joint episode, on all servers or on none.

        Once this returns, the episode has ended, which survives a crash of any server. A server
        that cannot be reached is notified later, and its part is still ``prepared`` in the returned
        statuses.

        :param rewards: by role; a single number is the reward of every role.
        :raises EpisodeClosedError: a part was aborted before, or its lease expired; all are then
            aborted.
        """
        return await self._end(episode, self._outcome(rewards))

    async def _end(self, episode: SwarmEpisode, outcome: SwarmOutcome) -> dict[str, EpisodeStatus]:
        """End all parts. The joint episode has ended once the arbiter's part has.

        A server that cannot be reached is notified later.

        :raises EpisodeError: a part was over before; the others are aborted.
        """
        statuses: dict[str, EpisodeStatus] = {}
        self._in_transition[episode.joint_id] = episode
        try:
            # The arbiter's part is claimed first and ended last.
            for role in reversed(self.roles):
                statuses[role] = await self.clients[role]._end(
                    episode[role], outcome.parts[role], prepare=role != self.arbiter
                )
        except EpisodeError as error:
            reason = f"a part of the joint episode was already over: {error.message}"
            await self.abort_episode(episode, reason, cause="cancelled")
            raise
        finally:
            del self._in_transition[episode.joint_id]
        committed = await self._commit(episode)
        return statuses | committed

    async def _commit(self, episode: SwarmEpisode) -> dict[str, EpisodeStatus]:
        """End the prepared parts."""
        statuses: dict[str, EpisodeStatus] = {}
        for role in self.roles[1:]:
            try:
                statuses[role] = await _commit_part(self.clients[role], episode[role].episode_id)
            except AjetError as error:
                _log_unreported(role, error)
        return statuses

    async def abort_episode(
        self,
        episode: SwarmEpisode,
        reason: str,
        *,
        cause: AgentCause = "error",
        final: bool = False,
        retries: int | None = None,
    ) -> dict[str, EpisodeStatus]:
        """Give up a joint episode on all servers, unless it has ended.

        Parameters are as for `AsyncSwarmClient.abort_episode`.
        """
        if self.arbiter not in episode.parts:
            return {}
        arbiters = await self.clients[self.arbiter].abort_episode(
            episode[self.arbiter], reason, cause=cause, final=final, retries=retries
        )
        statuses = {self.arbiter: arbiters}
        if arbiters.state == "ended":
            committed = await self._commit(episode)
            return statuses | committed
        for role, part in list(episode.parts.items())[1:]:
            try:
                statuses[role] = await self.clients[role]._abort(
                    part.episode_id,
                    reason,
                    cause=cause,
                    final=final,
                    retries=retries,
                    arbiter_aborted=True,
                )
            except AjetError as error:
                _log_unreported(role, error)
        return statuses

    async def heartbeats(self, episodes: Sequence[SwarmEpisode]) -> dict[str, str]:
        """Renew the leases of all parts of many joint episodes.

        :return: why each closed episode is over, keyed by the id of its arbiter's part.
        :raises AjetError: at least one server did not renew the leases. All servers were tried; the
            last error is raised.
        """
        closed: dict[str, str] = {}
        failed: AjetError | None = None
        # Include the episodes that are being claimed or ended.
        beating = [*episodes, *list(self._in_transition.values())]
        for role, client in self.clients.items():
            of_part = {e.parts[role].episode_id: e for e in beating if role in e.parts}
            try:
                over = await client.heartbeats([e.parts[role] for e in of_part.values()])
            except AjetError as error:
                failed = error
            else:
                closed |= {of_part[episode_id].episode_id: why for episode_id, why in over.items()}
        if self._resolved_at is not None and self._clock() - self._resolved_at > RESOLVE_SECONDS:
            await self.resolve()
        if failed is not None:
            raise failed
        return closed

    async def pace(self) -> Pace:
        """Return how the servers want this client to run episodes; runners ask regularly.

        :raises AjetError: a server did not answer.
        """
        paces = [await client.pace() for client in self.clients.values()]
        episodes = [pace.episodes for pace in paces if pace.episodes is not None]
        return Pace(
            in_order=any(pace.in_order for pace in paces), episodes=min(episodes, default=None)
        )

    async def resolve(self) -> int:
        """Finish the prepared parts that a crashed program left behind.

        Each is ended or aborted, as its arbiter decided. Only parts claimed with the same token are
        visible. Runners call this automatically. Servers that cannot be reached are left for the
        next call.

        :return: the number of parts that were ended or aborted.
        """
        # Raises the error of the arbiter's server if it has never been reached.
        await self.clients[self.arbiter]._connection.connect()
        self._resolved_at = self._clock()
        resolved = 0
        try:
            await self._join()
        except AjetError as error:
            _log.warning("skipped the search for undecided joint episodes: %s", error.message)
            return 0
        arbiter_clients = {run: self.clients[role] for role, run in self._runs.items()}
        for role, client in self.clients.items():
            try:
                # Not repeated: the next call of `resolve` may succeed.
                answer = await client._connection.perform(
                    ApiRequest("GET", "/v1/joint", PreparedParts), retries=0
                )
                for run in {part.arbiter_run for part in answer.prepared} & arbiter_clients.keys():
                    parts = [part for part in answer.prepared if part.arbiter_run == run]
                    resolved += await _resolve(
                        client, arbiter_clients[run], run, parts[:IDS_AT_ONCE]
                    )
            except AjetError as error:
                _log.warning("the parts at %r remain undecided for now: %s", role, error.message)
        return resolved

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
        rules: CallRules = NO_RULES,
    ) -> AsyncIterator[AsyncScopedSwarmEpisode]:
        """A joint episode for the length of a ``with`` block; parameters as `begin_episode`.

        Set ``ep.rewards`` or call ``ep.end(rewards)`` inside the block. If the block raises, or the
        rewards are refused, the episode is aborted with the exception as its reason; without
        rewards, it is aborted too.
        """
        options = ClaimOptions(kind=kind, lease_seconds=lease_seconds, timeout=timeout, rules=rules)
        claimed = await self._claim(Task(task_id, group=group, tag=tag), options)
        scoped = AsyncScopedSwarmEpisode(**vars(claimed), swarm=self)
        try:
            yield scoped
            if scoped.rewards is not None and not scoped.closed:
                await scoped.end(scoped.rewards)
        except BaseException as error:
            if not scoped.closed:
                await self._abort_after(scoped, error, abort_cause(error))
            raise
        if not scoped.closed:
            await self.abort_episode(scoped, NO_REWARD)

    async def run_episodes_until_all_complete(
        self,
        tasks: Sequence[str | Task],
        agent: AsyncJointAgent,
        *,
        episodes_per_task: int = 1,
        concurrency: Concurrency = "auto",
        kind: Kind = "train",
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        rules: CallRules = NO_RULES,
        resume: bool = False,
        group_reward: GroupReward | None = None,
        on_result: Callable[[EpisodeResult[SwarmEpisode, SwarmOutcome] | EpisodeFailure], object]
        | None = None,
    ) -> RunnerReport[SwarmEpisode, SwarmOutcome]:
        """Roll out many joint episodes, each agent in a task of the event loop.

        Works as `AsyncSwarmClient.run_episodes_until_all_complete`, except that the agent receives
        a `SwarmEpisode` and returns rewards by role.
        """
        check_concurrency(concurrency)
        check_episodes_per_task(episodes_per_task)
        check_group_reward(group_reward, episodes_per_task, concurrency)
        await self._join(again=True)
        await self.resolve()
        remaining = [(task, episodes_per_task) for task in as_tasks(tasks)]
        if resume:
            left = await self.resume(tasks, episodes_per_task=episodes_per_task, kind=kind)
            remaining = list(left.remaining)
        async with self.clients[self.arbiter]._paying():
            report = await run_episodes(
                self,
                make_jobs(remaining),
                agent,
                claim=self._claim,
                outcome_of=self._outcome,
                end=self._end,
                options=ClaimOptions(kind=kind, lease_seconds=lease_seconds, rules=rules),
                group_reward=group_reward,
                concurrency=concurrency,
                retries=retries,
                episode_timeout=episode_timeout,
                on_result=on_result,
                clock=self._clock,
            )
        await self.resolve()
        return report

    async def resume(
        self, tasks: Sequence[str | Task], *, episodes_per_task: int = 1, kind: Kind = "train"
    ) -> Resumption:
        """Return which tasks of a dataset are finished; see `AsyncSwarmClient.resume`.

        Parts in doubt are resolved first.
        """
        check_episodes_per_task(episodes_per_task)
        wanted = as_tasks(tasks)
        groups = list(dict.fromkeys(task.group or task.id for task in wanted))
        await self._join()
        await self.resolve()
        # The arbiter has a part of every joint episode.
        counts = await self.clients[self.arbiter]._group_counts(groups, kind)
        return resumption(wanted, episodes_per_task, counts)

    # --- Runs and servers -------------------------------------------------------------------------

    async def sync_train_config(self, configs: Mapping[str, RunConfig]) -> dict[str, RunStatus]:
        """Set what each server trains, by role.

        :raises ConfigError: runs with these configurations cannot be joined; nothing has changed
            then.
        """
        check_configs(self.roles, configs)
        # The servers may have different runs after this.
        self._runs = {}
        return {role: await c.sync_train_config(configs[role]) for role, c in self.clients.items()}

    async def start_engine(self, wait_seconds: float = 600.0) -> dict[str, RunStatus]:
        """Start all runs and wait until all servers have booted.

        See `AsyncSwarmClient.start_engine`.

        :raises ConfigError: the runs cannot be joined; none has started then.
        """
        await self._join(again=True)
        return {
            role: await client.start_engine(wait_seconds) for role, client in self.clients.items()
        }

    async def stop_engine(self, timeout: float = 600.0) -> dict[str, RunStatus]:
        """Stop all runs, after resolving parts in doubt; see `AsyncSwarmClient.stop_engine`."""
        await self.resolve()
        stopped = {role: await client.stop_engine(timeout) for role, client in self.clients.items()}
        # Stopping aborts the arbiter's open parts. Parts of the same joint episodes on other
        # servers may already be prepared.
        await self.resolve()
        return stopped

    async def status(self) -> dict[str, ServerStatus]:
        """Return the status of each server."""
        return {role: await client.status() for role, client in self.clients.items()}

    async def _join(self, *, again: bool = False) -> None:
        """Check that the servers' runs can be joined, unless that was done before.

        :param again: check again, because a run may have been configured since.
        :raises ConfigError: the runs cannot be joined.
        :raises StateError: a server has no run.
        """
        if self._runs and not again:
            return
        runs: dict[str, str] = {}
        configs: dict[str, RunConfig] = {}
        for role, client in self.clients.items():
            status = await client.run_status()
            runs[role], configs[role] = status.run_id, status.config
        for role, run in runs.items():
            first = next(other for other in self.roles if runs[other] == run)
            if first != role:
                raise ConfigError(
                    f"roles {first!r} and {role!r} point to the same server (run {run}); a joint "
                    "episode needs a different server for each role"
                )
        check_configs(self.roles, configs)
        self._runs = runs

    def _outcome(self, value: object) -> SwarmOutcome:
        return SwarmOutcome.of(value, self.roles)

    async def _abort_after(
        self, episode: SwarmEpisode, error: BaseException, cause: AgentCause
    ) -> None:
        """Abort the joint episode because of `error`.

        If the abort fails as well, add a note to `error` and do not raise.
        """
        if not episode.parts:
            return
        try:
            await self.abort_episode(episode, abort_reason(error, episode), cause=cause, retries=0)
        except AjetError as second:
            error.add_note(f"(aborting the joint episode failed too: {second.message})")


async def _commit_part(
    client: AsyncSwarmClient, episode_id: str, *, retries: int | None = None
) -> EpisodeStatus:
    request = ApiRequest("POST", episode_path(episode_id, "commit"), EpisodeStatus, waits=True)
    return await client._connection.perform(request, retries=retries)


async def _resolve(
    client: AsyncSwarmClient,
    arbiter_client: AsyncSwarmClient,
    run: str,
    parts: Sequence[PreparedPart],
) -> int:
    """End or abort prepared parts as their arbiter decided.

    :param arbiter_client: the client of the arbiter's server, whose run was `run`.
    :return: the number of parts that were ended or aborted.
    """
    body = build(JointOutcomesRequest, "resolve", joint_ids=[part.joint_id for part in parts])
    request = ApiRequest("POST", "/v1/joint/outcomes", JointOutcomes, body)
    answer = await arbiter_client._connection.perform(request, retries=0)
    if answer.run_id != run:
        serves = "no run" if answer.run_id is None else f"run {answer.run_id}"
        raise StateError(
            f"{arbiter_client.url} now serves {serves} instead of {run}; create a new Swarm"
        )
    resolved = 0
    for part in parts:
        outcome = answer.outcomes[part.joint_id]
        if outcome == "open":
            # Undecided: a live client will decide, or the lease of the arbiter's part will expire.
            continue
        resolved += 1
        if outcome == "ended":
            await _commit_part(client, part.episode_id, retries=0)
        else:
            await client._abort(
                part.episode_id,
                f"its joint episode was aborted: {part.arbiter!r} reported {outcome}",
                cause="cancelled",
                final=False,
                retries=0,
                arbiter_aborted=True,
            )
    return resolved


def _log_unreported(role: str, error: AjetError) -> None:
    """Log that a server does not know the outcome of a joint episode yet. The outcome stands."""
    _log.warning(
        "could not report the outcome of a joint episode to %r; it will be reported later: %s",
        role,
        error.message,
    )
