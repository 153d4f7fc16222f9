"""Concurrent episodes with agents in tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, cast

from agentjet.client._episode import (
    ClaimOptions,
    Episode,
    EpisodeResult,
    EpisodeT,
    EpisodeT_contra,
    OutcomeT,
    RunnerReport,
    abort_cause,
    abort_reason,
)
from agentjet.client._groups import CompleteGroup, GroupReward, Groups
from agentjet.client._runner import (
    Concurrency,
    Job,
    Ledger,
    OnResult,
    Turns,
    concerns_one_episode,
    episodes_at_once,
    heartbeat_seconds,
)
from agentjet.client._tracing import rollout_span
from ajet_core.errors import AjetError, EpisodeError, ServerUnreachableError
from ajet_core.protocol import AgentCause, Pace
from ajet_core.task import Task

T = TypeVar("T")

AsyncAgent = Callable[[Task, Episode], Awaitable[Any]]
"""Returns a reward or an `EpisodeOutcome`; with a group reward, what that takes."""

# Long enough to reach a live server, short enough for a user who pressed Ctrl-C.
_ABORT_SECONDS = 5.0


class AsyncServer(Protocol[EpisodeT_contra]):
    """The methods that a runner needs of a client of one server or several."""

    async def abort_episode(
        self,
        episode: EpisodeT_contra,
        reason: str,
        *,
        cause: AgentCause,
        final: bool,
        retries: int | None,
    ) -> object:
        """Give up an episode."""

    async def heartbeats(self, episodes: Sequence[EpisodeT_contra]) -> object:
        """Report that episodes are still running; called regularly even if there are none."""

    async def pace(self) -> Pace:
        """Return how the server wants episodes to be run; called regularly."""


async def run_episodes(
    client: AsyncServer[EpisodeT],
    jobs: Sequence[Job],
    agent: Callable[[Task, EpisodeT], Awaitable[object]],
    *,
    claim: Callable[[Task, ClaimOptions], Awaitable[EpisodeT]],
    outcome_of: Callable[[object], OutcomeT],
    end: Callable[[EpisodeT, OutcomeT], Awaitable[object]],
    options: ClaimOptions,
    group_reward: GroupReward | None,
    concurrency: Concurrency,
    retries: int,
    episode_timeout: float | None,
    on_result: OnResult[EpisodeT, OutcomeT] | None,
    clock: Callable[[], float],
) -> RunnerReport[EpisodeT, OutcomeT]:
    """Run episodes as described in `AsyncSwarmClient.run_episodes_until_all_complete`.

    :param claim: claims an episode.
    :param outcome_of: converts an agent's return value to an outcome.
    :param end: reports an outcome to the server.
    :param group_reward: None if agents return outcomes.
    :param options: those of all claims, without `heartbeat_seconds`, which the runner sets.
    """
    began = clock()
    ledger = Ledger(retries, on_result)
    runner = _Runner(
        client,
        agent,
        claim=claim,
        outcome_of=outcome_of,
        end=end,
        options=options,
        episode_timeout=episode_timeout,
        ledger=ledger,
        jobs=deque(jobs),
        group_reward=group_reward,
        concurrency=concurrency,
    )
    await runner.keep_pace()
    heart = asyncio.create_task(runner.beat())
    try:
        if jobs:
            await runner.over
    finally:
        # After an exception or a cancellation the workers abort their episodes concurrently.
        running = (heart, *runner.workers)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return ledger.report(clock() - began)


class _Runner(Generic[EpisodeT, OutcomeT]):
    """The tasks of one call of `run_episodes`.

    :ivar workers: tasks that work on one job after the other.
    :ivar over: done when there are no jobs left, or with the exception of a worker.
    """

    def __init__(
        self,
        client: AsyncServer[EpisodeT],
        agent: Callable[[Task, EpisodeT], Awaitable[object]],
        *,
        claim: Callable[[Task, ClaimOptions], Awaitable[EpisodeT]],
        outcome_of: Callable[[object], OutcomeT],
        end: Callable[[EpisodeT, OutcomeT], Awaitable[object]],
        options: ClaimOptions,
        episode_timeout: float | None,
        ledger: Ledger[EpisodeT, OutcomeT],
        jobs: deque[Job],
        group_reward: GroupReward | None,
        concurrency: Concurrency,
    ) -> None:
        self._client = client
        self._agent = agent
        self._beat_seconds = heartbeat_seconds(options.lease_seconds)
        self._options = replace(options, heartbeat_seconds=self._beat_seconds)
        self._episode_timeout = episode_timeout
        self._ledger = ledger
        self._claim = claim
        self._outcome_of = outcome_of
        self._end = end
        self._jobs = jobs
        self._group_reward = group_reward
        self._groups = Groups(jobs)
        self._turns = Turns(in_order=options.kind == "train")
        self._turn = asyncio.Condition()
        self._open: dict[str, EpisodeT] = {}
        self._concurrency = concurrency
        self._pace: Pace | None = None
        self._at_once = 0
        self.workers: set[asyncio.Task[None]] = set()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _hire(self) -> None:
        """Start workers until there are as many as episodes that may run at once."""
        for _ in range(min(self._at_once - len(self.workers), len(self._jobs))):
            worker = asyncio.create_task(self._work())
            self.workers.add(worker)
            worker.add_done_callback(self._left)

    def _left(self, worker: asyncio.Task[None]) -> None:
        self.workers.discard(worker)
        error = None if worker.cancelled() else worker.exception()
        if self.over.done():
            return
        if worker.cancelled():
            self.over.cancel()
        elif error is not None:
            self.over.set_exception(error)
        elif not self.workers:
            self.over.set_result(None)

    async def _work(self) -> None:
        """Take jobs until there are none left, or too many workers."""
        while self._jobs:
            if len(self.workers) > self._at_once:
                # Not only when the task is done: others would leave for the same reason.
                self.workers.discard(cast("asyncio.Task[None]", asyncio.current_task()))
                return
            job = self._jobs.popleft()
            while await self._attempt(job):
                pass

    async def _attempt(self, job: Job) -> bool:
        """Roll out one episode; return True if that failed and is to be retried."""
        if not self._turns.may_claim(job):
            async with self._turn:
                await self._turn.wait_for(lambda: self._turns.may_claim(job))
        try:
            episode = await self._claim(job.task, self._options)
        except AjetError as error:
            await self._next(job)
            if not concerns_one_episode(error):
                raise
            return await self._failed(job, error, None)
        await self._next(job)
        self._open[episode.episode_id] = episode
        try:
            return await self._roll_out(job, episode)
        finally:
            del self._open[episode.episode_id]

    async def _next(self, job: Job) -> None:
        """Let other claims follow that of a job."""
        if self._turns.note(job):
            async with self._turn:
                self._turn.notify_all()

    async def keep_pace(self) -> None:
        """Ask the server how to run episodes, and have as many workers as it wants."""
        if self._options.kind == "train":
            # The next time may succeed if this one does not.
            with contextlib.suppress(AjetError):
                self._pace = await self._client.pace()
                self._turns.in_order = self._pace.in_order
            if not self._turns.in_order:
                async with self._turn:
                    self._turn.notify_all()
        self._at_once = episodes_at_once(self._concurrency, self._pace)
        self._hire()

    async def _roll_out(self, job: Job, episode: EpisodeT) -> bool:
        try:
            with rollout_span(episode.episode_id):
                rolling = self._agent(job.task, episode)
                if not isinstance(rolling, Awaitable):
                    raise TypeError(
                        "the agent is not async; declare it with `async def`, or use SwarmClient, "
                        "which runs agents in threads"
                    )
                result = await self._in_time(rolling)
            if self._group_reward is not None:
                result = await self._rewarded(job, result)
            outcome = self._outcome_of(result)
        except Exception as error:  # noqa: BLE001 - an agent may raise anything; it is reported
            final = self._ledger.is_last(job)
            reached = await self._abort_surely(episode, error, final=final)
            return await self._failed(job, error, episode, outage=not reached)
        except BaseException as error:
            await self._abort(episode, error)
            raise
        try:
            await self._end(episode, outcome)
        except BaseException as error:
            fatal = not concerns_one_episode(error)
            final = not fatal and self._ledger.is_last(job)
            # A closed episode needs no abort, but the server must learn that the task is not
            # retried.
            if final or not isinstance(error, EpisodeError):
                await self._abort(episode, error, final=final)
            if fatal:
                raise
            return await self._failed(job, error, episode)
        self._ledger.ended(EpisodeResult(task=job.task, episode=episode, outcome=outcome))
        return False

    async def _failed(
        self, job: Job, error: BaseException, episode: EpisodeT | None, *, outage: bool = False
    ) -> bool:
        """Record a failed attempt; return True if the job is to be retried."""
        again = self._ledger.failed(job, error, episode, outage=outage)
        complete = self._groups.failed(job, given_up=not again)
        if complete is not None:
            await self._reward(complete)
        return again

    async def _rewarded(self, job: Job, result: object) -> object:
        """Return the outcome of an episode, once all episodes of its task have a result."""
        outcome, complete = self._groups.join(job, result)
        if complete is not None:
            await self._reward(complete)
        return await asyncio.wrap_future(outcome)

    async def _reward(self, group: CompleteGroup) -> None:
        assert self._group_reward is not None
        try:
            rewards = self._group_reward(group.task, group.results)
            group.outcomes(await rewards if inspect.isawaitable(rewards) else rewards)
        except BaseException as error:
            group.failed(error)
            if not isinstance(error, Exception):
                raise

    async def _in_time(self, rolling: Awaitable[T]) -> T:
        """Return the agent's result.

        :raises TimeoutError: the agent took too long, and was cancelled.
        """
        limit = asyncio.timeout(self._episode_timeout)
        try:
            async with limit:
                return await rolling
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(
                    f"the agent did not finish within {self._episode_timeout:g} s"
                ) from error
            raise

    async def _abort_surely(self, episode: EpisodeT, error: BaseException, *, final: bool) -> bool:
        """Abort an episode; if the server is unreachable, wait for it, and return False.

        The job's next claim would wait too, and until the server knows of the abort, the episode
        keeps its slot.
        """
        if await self._abort(episode, error, final=final):
            return True
        if not final:
            with contextlib.suppress(AjetError):
                await self._client.abort_episode(
                    episode,
                    abort_reason(error, episode),
                    cause="cancelled",
                    final=False,
                    retries=None,
                )
        return False

    async def _abort(self, episode: EpisodeT, error: BaseException, *, final: bool = False) -> bool:
        """Abort an episode because of `error`; return False if the server is unreachable.

        :param final: this was the last attempt, so that it is worth waiting until the server
            receives the abort.
        """
        try:
            async with asyncio.timeout(None if final else _ABORT_SECONDS):
                await self._client.abort_episode(
                    episode,
                    abort_reason(error, episode),
                    cause=abort_cause(error),
                    final=final,
                    retries=None if final else 0,
                )
        except (AjetError, TimeoutError) as second:
            # If the abort failed, the expiry of the lease ends the episode.
            error.add_note(f"(aborting episode {episode.episode_id} failed too: {second})")
            answered = isinstance(second, AjetError)
            return answered and not isinstance(second, ServerUnreachableError)
        return True

    async def beat(self) -> None:
        """Send heartbeats for the open episodes until cancelled."""
        while True:
            await asyncio.sleep(self._beat_seconds)
            # Agents of closed episodes get an error at their next model call; and if this heartbeat
            # fails, the next one may succeed, long before the lease expires.
            with contextlib.suppress(AjetError):
                await self._client.heartbeats(list(self._open.values()))
            await self.keep_pace()
