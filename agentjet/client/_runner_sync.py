"""Concurrent episodes with agents in threads."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol

from agentjet.client._episode import (
    ClaimOptions,
    Episode,
    EpisodeResult,
    EpisodeT,
    EpisodeT_contra,
    OutcomeT,
    RunnerReport,
    RunnerStoppedError,
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
from agentjet.client._tracing import rollout_span, trace_context, use_trace_context
from ajet_core.errors import AjetError, EpisodeError, ServerUnreachableError
from ajet_core.protocol import AgentCause, Pace
from ajet_core.task import Task

SyncAgent = Callable[[Task, Episode], Any]
"""Returns a reward or an `EpisodeOutcome`; with a group reward, what that takes."""

_ABORT_THREADS = 16
# A server that does not answer must not delay the end for long.
_LAST_BEAT_SECONDS = 5.0
_MOST_THREADS = 1024

_log = logging.getLogger("ajet.client")


class SyncServer(Protocol[EpisodeT_contra]):
    """The methods that a runner needs of a client of one server or several."""

    def abort_episode(
        self,
        episode: EpisodeT_contra,
        reason: str,
        *,
        cause: AgentCause,
        final: bool,
        retries: int | None,
    ) -> object:
        """Give up an episode."""

    def heartbeats(self, episodes: Sequence[EpisodeT_contra]) -> object:
        """Report that episodes are still running; called regularly even if there are none."""

    def pace(self) -> Pace:
        """Return how the server wants episodes to be run; called regularly."""


@dataclass(slots=True)
class _Attempt(Generic[EpisodeT, OutcomeT]):
    """The result of one attempt at a job.

    :param fatal: the error concerns all jobs.
    :param outage: the server was unreachable, so that the abort was not reported at once.
    :param again: whether the job is attempted again; None until the calling thread has decided.
    """

    job: Job
    episode: EpisodeT | None = None
    outcome: OutcomeT | None = None
    error: BaseException | None = None
    fatal: bool = False
    outage: bool = False
    again: bool | None = None


@dataclass(frozen=True, slots=True)
class _Rolling(Generic[EpisodeT]):
    """An episode whose agent is running.

    :param overdue_at: clock time at which the episode is given up; None means never.
    :param thread: id of the agent's thread.
    """

    job: Job
    episode: EpisodeT
    overdue_at: float | None
    thread: int


def run_episodes(
    client: SyncServer[EpisodeT],
    jobs: Sequence[Job],
    agent: Callable[[Task, EpisodeT], object],
    *,
    claim: Callable[[Task, ClaimOptions], EpisodeT],
    outcome_of: Callable[[object], OutcomeT],
    end: Callable[[EpisodeT, OutcomeT], object],
    options: ClaimOptions,
    group_reward: GroupReward | None,
    concurrency: Concurrency,
    retries: int,
    episode_timeout: float | None,
    on_result: OnResult[EpisodeT, OutcomeT] | None,
    clock: Callable[[], float],
) -> RunnerReport[EpisodeT, OutcomeT]:
    """Run episodes as described in `SwarmClient.run_episodes_until_all_complete`.

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
        ledger,
        claim=claim,
        outcome_of=outcome_of,
        end=end,
        options=options,
        episode_timeout=episode_timeout,
        clock=clock,
        groups=Groups(jobs),
        group_reward=group_reward,
        concurrency=concurrency,
    )
    try:
        runner.start(jobs)
        pending = len(jobs)
        while pending:
            attempt = runner.results.get()
            if attempt.fatal and attempt.error is not None:
                raise attempt.error
            if attempt.episode is not None and attempt.outcome is not None:
                ledger.ended(
                    EpisodeResult(
                        task=attempt.job.task, episode=attempt.episode, outcome=attempt.outcome
                    )
                )
            again = attempt.error is not None and ledger.failed(
                attempt.job, attempt.error, attempt.episode, outage=attempt.outage
            )
            runner.decide(attempt, again=again)
            if not again:
                pending -= 1
    finally:
        # After an exception (KeyboardInterrupt included) episodes are still open. Abort them, so
        # that their slots are not taken until their leases expire.
        runner.stop()
    return ledger.report(clock() - began)


class _Runner(Generic[EpisodeT, OutcomeT]):
    """The threads of one call of `run_episodes`.

    They are daemons, so that a hanging agent does not keep the interpreter from exiting.
    """

    def __init__(
        self,
        client: SyncServer[EpisodeT],
        agent: Callable[[Task, EpisodeT], object],
        ledger: Ledger[EpisodeT, OutcomeT],
        *,
        claim: Callable[[Task, ClaimOptions], EpisodeT],
        outcome_of: Callable[[object], OutcomeT],
        end: Callable[[EpisodeT, OutcomeT], object],
        options: ClaimOptions,
        episode_timeout: float | None,
        clock: Callable[[], float],
        groups: Groups,
        group_reward: GroupReward | None,
        concurrency: Concurrency,
    ) -> None:
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[_Attempt[EpisodeT, OutcomeT]] = queue.SimpleQueue()
        self._client = client
        self._agent = agent
        self._ledger = ledger
        self._claim = claim
        self._outcome_of = outcome_of
        self._end = end
        self._beat_seconds = heartbeat_seconds(options.lease_seconds)
        self._options = replace(options, heartbeat_seconds=self._beat_seconds)
        self._episode_timeout = episode_timeout
        self._clock = clock
        self._open: dict[str, _Rolling[EpisodeT]] = {}
        self._turns = Turns(in_order=options.kind == "train")
        self._changed = threading.Condition()
        self._groups = groups
        self._group_reward = group_reward
        self._stopping = False
        self._concurrency = concurrency
        self._pace: Pace | None = None
        self._trace = trace_context()
        self._at_once = 0
        self._workers = 0
        # Those that have not ended.
        self._staff = 0
        self._heart = threading.Thread(target=self._beat, name="ajet-heartbeat", daemon=True)

    def start(self, jobs: Sequence[Job]) -> None:
        """Queue all jobs and start the threads."""
        for job in jobs:
            self.jobs.put(job)
        self._keep_pace()
        self._heart.start()

    def stop(self) -> None:
        """End the idle threads, and abort the episodes that are still open."""
        with self._changed:
            self._stopping = True
            still_open = [rolling.episode for rolling in self._open.values()]
            self._open.clear()
            self._changed.notify_all()
        self._groups.stop(RunnerStoppedError("the runner was stopped"))
        for _ in range(self._workers):
            self.jobs.put(None)
        if still_open:
            stopped = RunnerStoppedError("the runner was stopped")
            with ThreadPoolExecutor(_ABORT_THREADS) as pool:
                list(pool.map(lambda episode: self._abort(episode, stopped), still_open))
        if self._heart.is_alive():
            # The caller may close the client next, under a heartbeat that is being sent.
            self._heart.join(_LAST_BEAT_SECONDS)

    def decide(self, attempt: _Attempt[EpisodeT, OutcomeT], *, again: bool) -> None:
        """Let the thread of an attempt continue."""
        if attempt.error is not None:
            complete = self._groups.failed(attempt.job, given_up=not again)
            if complete is not None:
                # The calling thread has other results to wait for.
                threading.Thread(target=self._reward, args=(complete,), daemon=True).start()
        with self._changed:
            attempt.again = again
            self._changed.notify_all()

    def _start_worker(self, after: _Attempt[EpisodeT, OutcomeT] | None = None) -> None:
        with self._changed:
            name = f"ajet-agent-{self._workers}"
            self._workers += 1
            self._staff += 1
        try:
            threading.Thread(target=self._work, args=(after,), name=name, daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._staff -= 1
            raise

    def _job_after(self, attempt: _Attempt[EpisodeT, OutcomeT] | None) -> Job | None:
        """Return the job of an attempt if it is attempted again, else the next one.

        At the end of the queue it would come long after its batch, which may wait for it while all
        threads wait for the next batch.

        :return: None if the thread is to end.
        """
        with self._changed:
            if attempt is not None and attempt.error is not None:
                self._changed.wait_for(lambda: self._stopping or attempt.again is not None)
                if attempt.again:
                    return attempt.job
            if self._stopping:
                return None
            if self._staff > self._at_once:
                self._staff -= 1
                return None
        return self.jobs.get()

    def _work(self, attempt: _Attempt[EpisodeT, OutcomeT] | None) -> None:
        """Attempt jobs until there are none left, or too many threads.

        :param attempt: the one that comes before.
        """
        use_trace_context(self._trace)
        while (job := self._job_after(attempt)) is not None and not self._stopping:
            try:
                attempt = self._attempt(job)
            # Report any error: if the thread ended silently, the caller would wait forever.
            except BaseException as error:  # noqa: BLE001 - it is raised again in the calling thread
                attempt = _Attempt(job, error=error, fatal=True)
            if attempt is None:
                # The agent took so long that another thread has taken this one's place.
                return
            self.results.put(attempt)

    def _attempt(self, job: Job) -> _Attempt[EpisodeT, OutcomeT] | None:
        """Attempt a job; return None if its episode was given up meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._turns.may_claim(job))
            if self._stopping:
                return _Attempt(job, error=RunnerStoppedError("the runner was stopped"))
        try:
            episode = self._claim(job.task, self._options)
        except Exception as error:  # noqa: BLE001 - it is raised again in the calling thread
            self._next(job)
            return _Attempt(job, error=error, fatal=not concerns_one_episode(error))
        self._next(job)
        if not self._opened(job, episode):
            stopped = RunnerStoppedError("the runner was stopped")
            self._abort(episode, stopped)
            return _Attempt(job, episode, error=stopped)
        return self._roll_out(job, episode)

    def _next(self, job: Job) -> None:
        """Let other claims follow that of a job."""
        with self._changed:
            if self._turns.note(job):
                self._changed.notify_all()

    def _keep_pace(self) -> None:
        """Ask the server how to run episodes, and have as many threads as it wants."""
        if self._options.kind == "train":
            # The next time may succeed if this one does not.
            with contextlib.suppress(AjetError):
                pace = self._client.pace()
                with self._changed:
                    self._pace = pace
                    self._turns.in_order = pace.in_order
                    self._changed.notify_all()
        self._at_once = episodes_at_once(self._concurrency, self._pace)
        if self._concurrency == "auto":
            self._at_once = min(self._at_once, _MOST_THREADS)
        try:
            for _ in range(min(self._at_once - self._staff, self.jobs.qsize())):
                self._start_worker()
        except RuntimeError as error:
            if not self._staff:
                raise
            _log.warning("%d episodes run at once, and no more can: %s", self._staff, error)

    def _roll_out(self, job: Job, episode: EpisodeT) -> _Attempt[EpisodeT, OutcomeT] | None:
        try:
            with rollout_span(episode.episode_id):
                result = self._agent(job.task, episode)
            if self._group_reward is not None and self._waits(episode):
                result = self._rewarded(job, result)
            outcome = self._outcome_of(result)
        except BaseException as error:  # noqa: BLE001 - an agent may raise anything; it is reported
            if not self._finished(episode):
                return None
            reached = self._abort_surely(episode, error, final=self._ledger.is_last(job))
            # Do not retry after an exception such as SystemExit.
            fatal = not isinstance(error, Exception)
            return _Attempt(job, episode, error=error, fatal=fatal, outage=not reached)
        if not self._finished(episode):
            return None
        try:
            self._end(episode, outcome)
        except Exception as error:  # noqa: BLE001 - it is raised again in the calling thread
            fatal = not concerns_one_episode(error)
            final = not fatal and self._ledger.is_last(job)
            # A closed episode needs no abort, but the server must learn that the task is not
            # retried.
            if final or not isinstance(error, EpisodeError):
                self._abort(episode, error, final=final)
            return _Attempt(job, episode, error=error, fatal=fatal)
        return _Attempt(job, episode, outcome)

    def _opened(self, job: Job, episode: EpisodeT) -> bool:
        """Start renewing an episode's lease; return False if the runner has stopped meanwhile."""
        limit = self._episode_timeout
        overdue_at = None if limit is None else self._clock() + limit
        with self._changed:
            if self._stopping:
                return False
            self._open[episode.episode_id] = _Rolling(
                job, episode, overdue_at, threading.get_ident()
            )
            self._changed.notify_all()
            return True

    def _waits(self, episode: EpisodeT) -> bool:
        """End the time limit of an episode; return False if it was already given up."""
        with self._changed:
            rolling = self._open.get(episode.episode_id)
            if rolling is None:
                return False
            self._open[episode.episode_id] = replace(rolling, overdue_at=None)
            return True

    def _rewarded(self, job: Job, result: object) -> object:
        """Return the outcome of an episode, once all episodes of its task have a result."""
        outcome, complete = self._groups.join(job, result)
        if complete is not None:
            self._reward(complete)
        return outcome.result()

    def _reward(self, group: CompleteGroup) -> None:
        assert self._group_reward is not None
        try:
            group.outcomes(self._group_reward(group.task, group.results))
        except BaseException as error:  # noqa: BLE001 - it is the error of all open episodes
            group.failed(error)

    def _finished(self, episode: EpisodeT) -> bool:
        """Mark an episode as finished; return False if it was already given up elsewhere."""
        with self._changed:
            return self._open.pop(episode.episode_id, None) is not None

    def _abort_surely(self, episode: EpisodeT, error: BaseException, *, final: bool) -> bool:
        """Abort an episode; if the server is unreachable, wait for it, and return False.

        The job's next claim would wait too, and until the server knows of the abort, the episode
        keeps its slot.
        """
        if self._abort(episode, error, final=final):
            return True
        if not final and not self._stopping:
            with contextlib.suppress(AjetError):
                self._client.abort_episode(
                    episode,
                    abort_reason(error, episode),
                    cause="cancelled",
                    final=False,
                    retries=None,
                )
        return False

    def _abort(self, episode: EpisodeT, error: BaseException, *, final: bool = False) -> bool:
        """Abort an episode because of `error`; return False if the server is unreachable.

        :param final: this was the last attempt, so that it is worth waiting until the server
            receives the abort.
        """
        try:
            self._client.abort_episode(
                episode,
                abort_reason(error, episode),
                cause=abort_cause(error),
                final=final,
                retries=None if final else 0,
            )
        except AjetError as second:
            # If the abort failed, the expiry of the lease ends the episode.
            error.add_note(f"(aborting episode {episode.episode_id} failed too: {second.message})")
            return not isinstance(second, ServerUnreachableError)
        return True

    def _beat(self) -> None:
        """Send heartbeats for the open episodes until the runner stops."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, timeout=self._beat_seconds)
                if self._stopping:
                    return
                now = self._clock()
                overdue = [
                    rolling
                    for rolling in self._open.values()
                    if rolling.overdue_at is not None and rolling.overdue_at <= now
                ]
                for rolling in overdue:
                    del self._open[rolling.episode.episode_id]
                beating = [rolling.episode for rolling in self._open.values()]
            for rolling in overdue:
                # In another thread, so that a server that does not answer cannot delay the
                # heartbeats.
                threading.Thread(target=self._give_up, args=(rolling,), daemon=True).start()
            # Agents of closed episodes get an error at their next model call; and if this heartbeat
            # fails, the next one may succeed, long before the lease expires.
            with contextlib.suppress(AjetError):
                self._client.heartbeats(beating)
            self._keep_pace()

    def _give_up(self, rolling: _Rolling[EpisodeT]) -> None:
        """Abort an episode whose agent takes too long.

        Its thread cannot be stopped. Another thread replaces it, and the agent's next model call
        will fail.
        """
        error = TimeoutError(f"the agent did not finish within {self._episode_timeout:g} s")
        if (frame := sys._current_frames().get(rolling.thread)) is not None:
            error.add_note("It was here:\n" + "".join(traceback.format_stack(frame)).rstrip())
        reached = True
        try:
            final = self._ledger.is_last(rolling.job)
            reached = self._abort_surely(rolling.episode, error, final=final)
        finally:
            attempt: _Attempt[EpisodeT, OutcomeT] = _Attempt(
                rolling.job, rolling.episode, error=error, outage=not reached
            )
            self.results.put(attempt)
            with self._changed:
                self._staff -= 1
            self._start_worker(attempt)
