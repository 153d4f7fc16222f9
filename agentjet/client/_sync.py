# Generated from _async.py by scripts/unasync.py. Edit that file, and run `make generate`.
"""The synchronous client."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from agentjet.client._connection_sync import Connection
from agentjet.client._episode import (
    MAX_REASON,
    NO_REWARD,
    ClaimTerms,
    Episode,
    EpisodeFailure,
    EpisodeOutcome,
    EpisodeResult,
    Kind,
    PendingEpisode,
    Resumption,
    RunnerReport,
    Task,
    abort_cause,
    abort_reason,
    resumption,
)
from agentjet.client._evaluation import EvaluationReport, evaluation_report, tagged
from agentjet.client._runner import (
    RUNNER_LEASE_SECONDS,
    as_tasks,
    check_concurrency,
    check_episodes_per_task,
    make_jobs,
)
from agentjet.client._runner_sync import SyncAgent, run_episodes
from agentjet.client._wire import DEFAULT_RETRIES, READ_TIMEOUT, Call, build, episode_path
from ajet_core.errors import (
    AjetError,
    BatchStarvedError,
    DeadlineError,
    EpisodeClosedError,
    EpisodeNotFoundError,
    ServerUnreachableError,
    StateError,
    error_from_payload,
)
from ajet_core.protocol import (
    AbortRequest,
    AgentCause,
    ClaimRequest,
    EndRequest,
    EpisodeGrant,
    EpisodeStatus,
    Evaluation,
    EvaluationList,
    Event,
    GroupCounts,
    GroupCountsAnswer,
    GroupCountsRequest,
    Heartbeats,
    HeartbeatsRequest,
    JointPart,
    MixtureConfig,
    MixtureStatus,
    PauseRequest,
    ResumeRequest,
    RunConfig,
    RunStatus,
    ServerState,
    ServerStatus,
    StartRequest,
)

if TYPE_CHECKING:
    import httpx

LONG_POLL = 30.0
MAX_START_WAIT = 600.0
BOOT_POLL = 0.5
IDS_AT_ONCE = 1000
STEP_POLL = 0.5
# What the server says when nothing fills its batch any more.
STARVED = frozenset({"no_client", "incomplete_tasks", "no_signal"})


@dataclass(kw_only=True)
class ScopedEpisode(PendingEpisode):
    """The episode of a ``with client.episode(...)`` block."""

    client: SwarmClient = field(repr=False)

    def end(
        self,
        reward: float,
        *,
        components: Mapping[str, float] | None = None,
        call_rewards: Mapping[str, float] | None = None,
        agent_rewards: Mapping[str, float] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> EpisodeStatus:
        """Report the outcome now; see `SwarmClient.end_episode`."""
        self.closed = True
        return self.client.end_episode(
            self,
            reward,
            components=components,
            call_rewards=call_rewards,
            agent_rewards=agent_rewards,
            metadata=metadata,
        )


class SwarmClient:
    """A client of one swarm server. Safe to share between threads, and usable after a fork.

    Requests are repeated, with growing pauses, where that is safe; ``retry_after`` of the server is
    honoured. Errors are those of `ajet_core.errors`, of the class they had on the server.

    :param url: default ``AJET_URL``, else ``http://127.0.0.1:8642``.
    :param token: default ``AJET_TOKEN``, else the token that a server of this user on this machine left.
    :param retries: how often a request is repeated before `ServerUnreachableError`.
    :param transport: an `httpx.BaseTransport` to use instead of the network.
    :param rng: source of the jitter.
    :param sleep: waits some seconds.
    :param clock: monotonic seconds.
    :raises ConfigError: `url` is none.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = Connection(
            url, token, retries=retries, transport=transport, rng=rng, sleep=sleep, clock=clock
        )

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._connection.endpoint.url

    def __repr__(self) -> str:
        return f"SwarmClient(url={self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        self._connection.close()

    # --- Episodes ---------------------------------------------------------------------------------

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
    ) -> Episode:
        """Claim an episode; waits until the server has a place for it.

        :param group: episodes of one group share a baseline; by default those of one task.
        :param kind: ``eval`` episodes are never trained on.
        :param tag: which part of a mixture the task belongs to.
        :param lease_seconds: without a model call or heartbeat for so long the server aborts it.
        :param heartbeat_seconds: a promise to make a model call or send a heartbeat at least so often. If it is
            broken three times in a row, the place in the batch is given to others long before the lease ends.
        :param timeout: seconds to wait for a place; None waits as long as the server says it may help.
        :raises DeadlineError: no place within `timeout`.
        :raises NotRollingError: no run is active.
        :raises EpisodeError: the task is set aside, because all its episodes fail.
        """
        terms = ClaimTerms(
            kind=kind,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            timeout=timeout,
        )
        return self._claim(Task(task_id, group=group, tag=tag), terms)

    def _claim(
        self,
        task: Task,
        terms: ClaimTerms,
        *,
        joint: JointPart | None = None,
        poll_seconds: float = LONG_POLL,
        meanwhile: Callable[[], None] | None = None,
    ) -> Episode:
        """Claim an episode, asking again for as long as the server says that it may help.

        An answer that was lost is asked for again under the same claim id: if it was a grant, the server gives the
        same episode, even if it was killed and started again in between.

        :param joint: the joint episode that it is a part of.
        :param poll_seconds: longest time of one request.
        :param meanwhile: done between two requests.
        """
        connection = self._connection
        # The time to agree on a protocol version does not count.
        connection.connect()
        claim_id = secrets.token_urlsafe(24)
        began = connection.clock()
        deadline = None if terms.timeout is None else began + terms.timeout
        what = f"begin_episode({task.id!r})"
        while True:
            left = LONG_POLL if deadline is None else max(0.0, deadline - connection.clock())
            wait = min(poll_seconds, left)
            body = build(
                ClaimRequest,
                what,
                task_id=task.id,
                group=task.group,
                kind=terms.kind,
                tag=task.tag,
                lease_seconds=terms.lease_seconds,
                heartbeat_seconds=terms.heartbeat_seconds,
                wait_seconds=wait,
                claim_id=claim_id,
                joint=joint,
            )
            call = Call(
                "POST",
                "/v1/episodes",
                EpisodeGrant,
                body,
                read_timeout=wait + READ_TIMEOUT,
                # How long to go on asking is said by `timeout`.
                final=True,
            )
            try:
                return Episode.from_grant(connection.perform(call))
            except AjetError as error:
                if error.retry_after is None or error.status not in {429, 503}:
                    raise
                pause = connection.backoff.honour(error.retry_after, failures=1)
                if deadline is not None and connection.clock() + pause >= deadline:
                    raise DeadlineError(
                        f"{what}: no episode within {terms.timeout:g} s: {error.message}"
                    ) from error
                connection.log_wait(what, began, error.message)
                connection.sleep(pause)
            if meanwhile is not None:
                meanwhile()

    def end_episode(
        self,
        episode: Episode,
        reward: float,
        *,
        components: Mapping[str, float] | None = None,
        call_rewards: Mapping[str, float] | None = None,
        agent_rewards: Mapping[str, float] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> EpisodeStatus:
        """Report the outcome of an episode. Once this returns it survives a crash of the server.

        A repeat changes nothing: the first outcome stands and is what the answer shows.

        :param components: named parts of the reward, for the logs.
        :param call_rewards: rewards of single calls, by the id of their chat completion.
        :param agent_rewards: rewards by agent name; for the calls of these agents they take the place of
            the episode's.
        :raises EpisodeClosedError: it was aborted before, or its lease ran out.
        """
        outcome = EpisodeOutcome(
            reward=reward,
            components=components or {},
            call_rewards=call_rewards or {},
            agent_rewards=agent_rewards or {},
            metadata=metadata or {},
        )
        return self._end(episode, outcome)

    def _end(
        self, episode: Episode, outcome: EpisodeOutcome, *, prepare: bool = False
    ) -> EpisodeStatus:
        """Report the outcome of an episode.

        :param prepare: only until the arbiter of its joint episode has decided.
        """
        body = build(
            EndRequest,
            f"end_episode({episode.episode_id!r})",
            reward=outcome.reward,
            # An agent's outcome may hold None instead of an empty mapping.
            components=dict(outcome.components or {}),
            call_rewards=dict(outcome.call_rewards or {}),
            agent_rewards=dict(outcome.agent_rewards or {}),
            metadata=dict(outcome.metadata or {}),
        )
        path = episode_path(episode.episode_id, "prepare" if prepare else "end")
        return self._connection.perform(Call("POST", path, EpisodeStatus, body))

    def abort_episode(
        self,
        episode: Episode,
        reason: str,
        *,
        cause: AgentCause = "error",
        final: bool = False,
        retries: int | None = None,
    ) -> EpisodeStatus:
        """Give an episode up; its place in the batch becomes free.

        :param cause: the kind of `reason`, by which failures are counted; ``cancelled`` is none.
        :param final: nobody will try it again, so that its batch goes on with the task's episodes that succeed.
        :param retries: overrides the client's.
        """
        return self._abort(episode.episode_id, reason, cause=cause, final=final, retries=retries)

    def _abort(
        self,
        episode_id: str,
        reason: str,
        *,
        cause: AgentCause,
        final: bool,
        retries: int | None,
        arbiter_aborted: bool = False,
    ) -> EpisodeStatus:
        body = build(
            AbortRequest,
            f"abort_episode({episode_id!r})",
            reason=reason[:MAX_REASON],
            cause=cause,
            final=final,
            arbiter_aborted=arbiter_aborted,
        )
        call = Call("POST", episode_path(episode_id, "abort"), EpisodeStatus, body)
        return self._connection.perform(call, retries=retries)

    def heartbeat(self, episode: Episode, *, retries: int | None = None) -> EpisodeStatus:
        """Renew the lease of an episode that makes no model calls for long.

        :param retries: overrides the client's.
        :raises EpisodeClosedError: it is over.
        """
        call = Call("POST", episode_path(episode.episode_id, "heartbeat"), EpisodeStatus)
        return self._connection.perform(call, retries=retries)

    def heartbeats(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """Renew the leases of many episodes by one request.

        :return: why those that are over are, by their id.
        """
        closed: dict[str, str] = {}
        for start in range(0, len(episodes), IDS_AT_ONCE):
            ids = [episode.episode_id for episode in episodes[start : start + IDS_AT_ONCE]]
            body = build(HeartbeatsRequest, "heartbeats", episode_ids=ids)
            call = Call("POST", "/v1/heartbeats", Heartbeats, body)
            # The next heartbeat may get through if this one does not.
            answer = self._connection.perform(call, retries=0)
            closed |= answer.closed
        return closed

    def episode_status(self, episode: Episode) -> EpisodeStatus:
        """How an episode stands."""
        call = Call("GET", episode_path(episode.episode_id), EpisodeStatus)
        return self._connection.perform(call)

    def can_continue_episode(self, episode: Episode) -> bool:
        """Whether an episode is still open, so that going on with it makes sense."""
        try:
            status = self.episode_status(episode)
        except (EpisodeNotFoundError, EpisodeClosedError):
            return False
        return status.state == "open"

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
    ) -> Iterator[ScopedEpisode]:
        """An episode for the length of a ``with`` block; parameters as `begin_episode`.

        Set ``ep.reward`` or call ``ep.end(reward)`` inside. Leaving by an exception aborts the episode
        with that reason, leaving without a reward aborts it too.
        """
        terms = ClaimTerms(kind=kind, lease_seconds=lease_seconds, timeout=timeout)
        claimed = self._claim(Task(task_id, group=group, tag=tag), terms)
        scoped = ScopedEpisode(**vars(claimed), client=self)
        try:
            yield scoped
        except BaseException as error:
            if not scoped.closed:
                scoped.closed = True
                self._abort_after(scoped, error)
            raise
        if scoped.closed:
            return
        if scoped.reward is None:
            self.abort_episode(scoped, NO_REWARD)
        else:
            scoped.end(
                scoped.reward,
                components=scoped.components,
                call_rewards=scoped.call_rewards,
                agent_rewards=scoped.agent_rewards,
                metadata=scoped.metadata,
            )

    def _abort_after(self, episode: Episode, error: BaseException) -> None:
        """Abort because of `error`, which matters more than whether that works."""
        try:
            self.abort_episode(
                episode, abort_reason(error, episode), cause=abort_cause(error), retries=0
            )
        except AjetError as second:
            error.add_note(f"(aborting episode {episode.episode_id} failed too: {second.message})")

    def run_episodes_until_all_complete(
        self,
        tasks: Sequence[str | Task],
        agent: SyncAgent,
        *,
        episodes_per_task: int = 1,
        concurrency: int = 64,
        kind: Kind = "train",
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        resume: bool = False,
        on_result: Callable[[EpisodeResult | EpisodeFailure], object] | None = None,
    ) -> RunnerReport:
        """Roll out many episodes, `concurrency` at a time, each agent in a thread of its own.

        An exception in an agent aborts its episode, and the task is tried again with a new one, up to
        `retries` times. Leases are renewed meanwhile. What concerns all episodes (no server, a wrong
        token, no run) ends the whole and is raised, and so is KeyboardInterrupt: open episodes are
        aborted first.

        :param tasks: task ids, or `Task` objects where the agent needs more than the id.
        :param agent: called with the task and its episode; returns the reward or an `EpisodeOutcome`.
        :param lease_seconds: how long the episodes stay open if this program dies; their places are given to others
            within two seconds.
        :param episode_timeout: seconds after which an agent that has not finished is given up, which counts as a failed
            attempt.
        :param resume: leave out episodes that have ended before, also those of another program or an earlier run of
            this one; see `resume`.
        :param on_result: called in the calling thread after each episode that ended or was given up.
        """
        check_concurrency(concurrency)
        check_episodes_per_task(episodes_per_task)
        remaining = [(task, episodes_per_task) for task in as_tasks(tasks)]
        if resume:
            found = self.resume(tasks, episodes_per_task=episodes_per_task, kind=kind)
            remaining = list(found.remaining)
        return run_episodes(
            self,
            make_jobs(remaining),
            agent,
            claim=self._claim,
            outcome_of=EpisodeOutcome.of,
            end=self._end,
            terms=ClaimTerms(kind=kind, lease_seconds=lease_seconds),
            concurrency=concurrency,
            retries=retries,
            episode_timeout=episode_timeout,
            on_result=on_result,
            clock=self._connection.clock,
        )

    def evaluate(
        self,
        tasks: Sequence[str | Task],
        agent: SyncAgent,
        *,
        episodes_per_task: int = 1,
        tag: str = "",
        concurrency: int = 64,
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        on_result: Callable[[EpisodeResult | EpisodeFailure], object] | None = None,
    ) -> EvaluationReport:
        """Roll out evaluation episodes, which are never trained on, and score them as the run says.

        How they are sampled, which reward passes and for which k pass@k is reported is the run's `EvaluationConfig`.
        Parameters not named here are as for `run_episodes_until_all_complete`.

        :param episodes_per_task: pass@k needs at least k.
        :param tag: the task set, under which the server counts them too; each task's own by default.
        """
        wanted = tagged(tasks, tag)
        run = self.run_status()
        config = run.config.evaluation
        report = self.run_episodes_until_all_complete(
            wanted,
            agent,
            episodes_per_task=episodes_per_task,
            concurrency=concurrency,
            kind="eval",
            retries=retries,
            lease_seconds=lease_seconds,
            episode_timeout=episode_timeout,
            on_result=on_result,
        )
        return evaluation_report(report, wanted, config)

    def resume(
        self, tasks: Sequence[str | Task], *, episodes_per_task: int = 1, kind: Kind = "train"
    ) -> Resumption:
        """What of a dataset is finished: what this client's token has ended, in whatever process.

        Episodes are counted by group (by default the task's id), so that each pass over a dataset needs groups of
        its own, such as ``Task("t1", group="t1@2")``.
        """
        check_episodes_per_task(episodes_per_task)
        wanted = as_tasks(tasks)
        groups = list(dict.fromkeys(task.group or task.id for task in wanted))
        counts = self._group_counts(groups, kind)
        return resumption(wanted, episodes_per_task, counts)

    def _group_counts(self, groups: Sequence[str], kind: Kind) -> dict[str, GroupCounts]:
        """How many episodes of each group there are."""
        found: dict[str, GroupCounts] = {}
        for start in range(0, len(groups), IDS_AT_ONCE):
            some = list(groups[start : start + IDS_AT_ONCE])
            body = build(GroupCountsRequest, "resume", groups=some, kind=kind)
            call = Call("POST", "/v1/groups", GroupCountsAnswer, body)
            answer = self._connection.perform(call)
            found |= answer.groups
        return found

    # --- Run and server ---------------------------------------------------------------------------

    def sync_train_config(self, config: RunConfig) -> RunStatus:
        """Set what the server trains and how; needs a control token.

        A program that is started again may say the same again while the run is active.

        :raises StateError: a run with another configuration is active.
        :raises ConfigError: the server cannot use it; nothing has changed then.
        """
        return self._connection.perform(Call("PUT", "/v1/run", RunStatus, config))

    def start_engine(self, wait_seconds: float = 600.0) -> RunStatus:
        """Start the configured run and wait until the server has booted.

        A run that is active already is joined, not started twice.

        :raises DeadlineError: still booting after `wait_seconds`.
        :raises AjetError: what made the boot fail, as the class it was on the server.
        """
        connection = self._connection
        # The time to agree on a protocol version does not count.
        connection.connect()
        deadline = connection.clock() + wait_seconds
        wait = min(MAX_START_WAIT, max(0.0, wait_seconds))
        body = build(StartRequest, "start_engine", wait_seconds=wait)
        call = Call("POST", "/v1/run/start", RunStatus, body, read_timeout=wait + READ_TIMEOUT)
        try:
            started = connection.perform(call, until=deadline)
        except ServerUnreachableError as error:
            if connection.clock() < deadline:
                raise
            raise DeadlineError(
                f"the server has not started the run within {wait_seconds:g} s: {error.message}"
            ) from error
        state = started.state
        while state is ServerState.BOOTING:
            if connection.clock() >= deadline:
                raise DeadlineError(
                    f"the server is still booting after {wait_seconds:g} s; it continues, and calling "
                    "start_engine again continues the wait"
                )
            connection.sleep(BOOT_POLL)
            status = self.status()
            state = status.state
            if state is ServerState.OFFLINE:
                if status.error is not None:
                    raise error_from_payload(status.error.model_dump())
                raise StateError("the server went offline while it was booting; its log says why")
        return self.run_status()

    def stop_engine(self, timeout: float = 600.0) -> RunStatus:
        """Stop the run after the step in progress; the answer's `export_dir` is the trained model.

        :param timeout: seconds to wait for the answer.
        :raises DeadlineError: not stopped within `timeout`; the server continues to stop it.
        :raises StateError: no run is active.
        """
        connection = self._connection
        # The time to agree on a protocol version does not count.
        connection.connect()
        deadline = connection.clock() + timeout
        call = Call("POST", "/v1/run/stop", RunStatus, read_timeout=timeout)
        try:
            return connection.perform(call, until=deadline)
        except ServerUnreachableError as error:
            if connection.clock() < deadline:
                raise
            raise DeadlineError(
                f"the run has not stopped within {timeout:g} s; it is still being stopped, and calling stop_engine "
                f"again continues the wait ({error.message})"
            ) from error
        except StateError as error:
            # Once it is stopped a repeat gives the same answer.
            status = self.run_status()
            if status.state is not ServerState.OFFLINE or status.export_dir is None:
                raise error from None
            return status

    def mixture(self) -> MixtureStatus:
        """The mixture of tags that batches are made of.

        :raises StateError: no run is configured.
        """
        return self._connection.perform(Call("GET", "/v1/mixture", MixtureStatus))

    def set_mixture(self, mixture: MixtureConfig | Mapping[str, float]) -> MixtureStatus:
        """Change the mixture from the next batch on; needs a control token.

        :param mixture: ratios by tag, which sum to 1, or a whole configuration with a schedule.
        :raises StateError: no run is configured.
        :raises RequestError: the ratios make no whole.
        """
        if isinstance(mixture, MixtureConfig):
            body = mixture
        else:
            # Bare ratios keep the rest of it, but for its schedule.
            before = self.mixture()
            kept = {} if before.config is None else {"grace_seconds": before.config.grace_seconds}
            body = build(MixtureConfig, "set_mixture", ratios=dict(mixture), **kept)
        return self._connection.perform(Call("PUT", "/v1/mixture", MixtureStatus, body))

    def pause_engine(self, reason: str = "paused by hand") -> RunStatus:
        """Let no episode begin and train no batch until `resume_engine`; open episodes go on.

        :raises StateError: no run is active.
        """
        body = build(PauseRequest, "pause_engine", reason=reason)
        return self._connection.perform(Call("POST", "/v1/run/pause", RunStatus, body))

    def preflight(self) -> RunStatus:
        """Try the next batch before it is trained; starts the run unless it is active. Needs a control token.

        `ServerStatus.preflight` has the report once the batch is full. If a check fails, the run pauses.

        :raises StateError: no run is configured.
        """
        return self._connection.perform(Call("POST", "/v1/run/preflight", RunStatus))

    def resume_engine(self, from_step: int | None = None, *, retrain: bool = False) -> RunStatus:
        """Resume a paused run, and retry tasks that were set aside.

        :param from_step: go back to the checkpoint of this step first; 0 is the model that the run began with.
        :param retrain: train the batches after that step again. Otherwise they are kept for inspection, open train
            episodes are aborted, and all further batches are rolled out anew.
        :raises StateError: no run is active, or there is no such checkpoint; the message names those that exist.
        """
        body = None
        if from_step is not None or retrain:
            body = build(ResumeRequest, "resume_engine", from_step=from_step, retrain=retrain)
        return self._connection.perform(Call("POST", "/v1/run/resume", RunStatus, body))

    def run_status(self) -> RunStatus:
        """The configured run.

        :raises StateError: there is none.
        """
        return self._connection.perform(Call("GET", "/v1/run", RunStatus))

    def status(self) -> ServerStatus:
        """What the server is doing."""
        return self._connection.perform(Call("GET", "/v1/status", ServerStatus))

    def wait_for_step(self, step: int, *, timeout: float | None = None) -> ServerStatus:
        """Wait until the served weights have been trained for `step` steps.

        :param timeout: seconds; None waits until one of the errors below, however long the run is PAUSED: the log says
            so, and only its operator can resume it.
        :raises BatchStarvedError: the batch lacks episodes, and no client is rolling any out: roll out more tasks.
        :raises DeadlineError: not trained within `timeout`.
        :raises StateError: no run is active.
        :raises AjetError: what ended the run, as the class it was on the server.
        """
        connection = self._connection
        # The time to agree on a protocol version does not count.
        connection.connect()
        began = connection.clock()
        what = f"wait_for_step({step})"
        while True:
            status = self.status()
            if status.step >= step:
                return status
            if status.state is ServerState.OFFLINE:
                if status.error is not None:
                    raise error_from_payload(status.error.model_dump())
                raise StateError(
                    f"{what}: no run is active, and the last one ended at step {status.step}"
                )
            for finding in status.findings:
                if finding.code in STARVED:
                    raise BatchStarvedError(
                        f"{what}: step {status.step + 1} lacks episodes: {finding.message}"
                    )
            why = f"the server is {status.state} at step {status.step}"
            if status.state is ServerState.PAUSED:
                why += (
                    f": {status.paused or 'no reason was given'} (`ajet status` shows it to the operator, and `ajet resume` "
                    "continues the run)"
                )
            if timeout is not None and connection.clock() - began + STEP_POLL >= timeout:
                raise DeadlineError(f"{what}: not trained within {timeout:g} s: {why}")
            connection.log_wait(what, began, why)
            connection.sleep(STEP_POLL)

    def evaluations(self) -> list[Evaluation]:
        """What this client's evaluation episodes came to, by task set and step; a control token sees everybody's."""
        call = Call("GET", "/v1/evaluations", EvaluationList)
        found = self._connection.perform(call)
        return found.evaluations

    def events(self, since: int | None = None) -> Iterator[Event]:
        """What happens on the server, as it happens; connects again by itself.

        :param since: id of the last event already seen; None starts with the next one.
        :raises ServerUnreachableError: the server is gone.
        """
        return self._connection.events(since)
