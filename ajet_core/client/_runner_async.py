"""Many episodes at a time, agents in tasks of one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from ajet_core.client._episode import (
    Episode,
    EpisodeOutcome,
    EpisodeResult,
    RunnerReport,
    Task,
    abort_reason,
)
from ajet_core.client._flows import Kind
from ajet_core.client._runner import (
    Job,
    LeaseBook,
    Ledger,
    OnResult,
    check_concurrency,
    concerns_one_episode,
    make_jobs,
)
from ajet_core.errors import AjetError, EpisodeError

if TYPE_CHECKING:
    from ajet_core.client._async import AsyncSwarmClient

AsyncAgent = Callable[[Task, Episode], Awaitable[float | EpisodeOutcome]]

# Long enough to reach a living server, short enough for a person who pressed Ctrl-C.
_ABORT_SECONDS = 5.0


async def run_episodes(
    client: AsyncSwarmClient,
    tasks: Sequence[str | Task],
    agent: AsyncAgent,
    *,
    episodes_per_task: int,
    concurrency: int,
    kind: Kind,
    retries: int,
    lease_seconds: float,
    on_result: OnResult | None,
    clock: Callable[[], float],
) -> RunnerReport:
    """As `AsyncSwarmClient.run_episodes_until_all_complete`."""
    check_concurrency(concurrency)
    jobs = make_jobs(tasks, episodes_per_task)
    began = clock()
    ledger = Ledger(retries, on_result)
    runner = _Runner(
        client,
        agent,
        kind=kind,
        lease_seconds=lease_seconds,
        clock=clock,
        ledger=ledger,
        jobs=deque(jobs),
    )
    heart = asyncio.create_task(runner.keep_leases())
    workers = [asyncio.create_task(runner.work()) for _ in range(min(concurrency, len(jobs)))]
    try:
        if workers:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
    finally:
        # After an exception or a cancellation the workers abort their episodes, all at once.
        for running in (heart, *workers):
            running.cancel()
        await asyncio.gather(heart, *workers, return_exceptions=True)
    return ledger.report(clock() - began)


class _Runner:
    """The tasks of one call of `run_episodes`."""

    def __init__(
        self,
        client: AsyncSwarmClient,
        agent: AsyncAgent,
        *,
        kind: Kind,
        lease_seconds: float,
        clock: Callable[[], float],
        ledger: Ledger,
        jobs: deque[Job],
    ) -> None:
        self._client = client
        self._agent = agent
        self._kind: Kind = kind
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._ledger = ledger
        self._jobs = jobs
        self._leases = LeaseBook()
        self._opened = asyncio.Event()

    async def work(self) -> None:
        """Take jobs until there are none left."""
        while self._jobs:
            job = self._jobs.popleft()
            while await self._attempt(job):
                pass

    async def _attempt(self, job: Job) -> bool:
        """Roll out one episode; True if that failed and is to be tried again."""
        task = job.task
        try:
            episode = await self._client.begin_episode(
                task.id,
                group=task.group,
                kind=self._kind,
                tag=task.tag,
                lease_seconds=self._lease_seconds,
            )
        except AjetError as error:
            if not concerns_one_episode(error):
                raise
            return self._ledger.failed(job, error, None)
        self._leases.add(episode, self._clock())
        self._opened.set()
        try:
            return await self._roll_out(job, episode)
        finally:
            self._leases.remove([episode])

    async def _roll_out(self, job: Job, episode: Episode) -> bool:
        try:
            rolling = self._agent(job.task, episode)
            if not isinstance(rolling, Awaitable):
                raise TypeError(
                    "the agent is not async; declare it with `async def`, or use SwarmClient, which "
                    "runs agents in threads"
                )
            outcome = EpisodeOutcome.of(await rolling)
        except Exception as error:  # noqa: BLE001 - an agent may raise anything; it is reported
            await self._abort(episode, error)
            return self._ledger.failed(job, error, episode)
        except BaseException as error:
            await self._abort(episode, error)
            raise
        try:
            await self._client.end_episode(
                episode,
                outcome.reward,
                components=outcome.components,
                call_rewards=outcome.call_rewards,
                agent_rewards=outcome.agent_rewards,
                metadata=outcome.metadata,
            )
        except EpisodeError as error:
            return self._ledger.failed(job, error, episode)
        except BaseException as error:
            await self._abort(episode, error)
            if not concerns_one_episode(error):
                raise
            return self._ledger.failed(job, error, episode)
        self._ledger.ended(EpisodeResult(task=job.task, episode=episode, outcome=outcome))
        return False

    async def _abort(self, episode: Episode, error: BaseException) -> None:
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._client.abort_episode(episode, abort_reason(error, episode), retries=0)
        except (AjetError, TimeoutError) as second:
            # The lease ends it, if this did not.
            error.add_note(f"(aborting episode {episode.episode_id} failed too: {second})")

    async def keep_leases(self) -> None:
        """Renew the leases of all open episodes, until cancelled."""
        while True:
            wait = self._leases.wait(self._clock())
            self._opened.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._opened.wait()
            except TimeoutError:
                due = self._leases.take_due(self._clock())
                await asyncio.gather(*map(self._beat, due))

    async def _beat(self, episode: Episode) -> None:
        try:
            await self._client.heartbeat(episode, retries=0)
        except EpisodeError:
            # It is over: its agent hears so at its next model call.
            self._leases.remove([episode])
        except AjetError:
            # The next one may get through, long before the lease ends.
            return
