# Generated from _async.py by scripts/unasync.py. Edit that, and run `make generate`.
"""The synchronous client."""

from __future__ import annotations

import contextlib
import logging
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
    NO_RULES,
    ClaimOptions,
    Episode,
    EpisodeFailure,
    EpisodeResult,
    Kind,
    PendingEpisode,
    Resumption,
    RunnerReport,
    abort_cause,
    abort_reason,
    resumption,
)
from agentjet.client._evaluation import EvaluationReport, evaluation_report, tagged
from agentjet.client._groups import GroupReward, check_group_reward
from agentjet.client._paid import PAID_TOKENS
from agentjet.client._runner import (
    RUNNER_LEASE_SECONDS,
    Concurrency,
    as_tasks,
    check_concurrency,
    check_episodes_per_task,
    make_jobs,
)
from agentjet.client._runner_sync import SyncAgent, run_episodes
from agentjet.client._wire import (
    DEFAULT_RETRIES,
    READ_TIMEOUT,
    A,
    ApiRequest,
    TrainingProgress,
    build,
    episode_path,
    why_paused,
)
from ajet_core.errors import (
    AjetError,
    AuthError,
    BatchStarvedError,
    DeadlineError,
    EpisodeClosedError,
    EpisodeNotFoundError,
    RequestError,
    ServerUnreachableError,
    StateError,
    error_from_payload,
)
from ajet_core.protocol import (
    AbortRequest,
    AgentCause,
    BudgetConfig,
    CallRules,
    ClaimRequest,
    EndRequest,
    EngineServer,
    EngineServers,
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
    Pace,
    PauseRequest,
    ResumeRequest,
    RunConfig,
    RunStatus,
    ServerState,
    ServerStatus,
    SpendingReceipt,
    SpendingReport,
    StartRequest,
)
from ajet_core.task import EpisodeOutcome, Task

if TYPE_CHECKING:
    import httpx2

LONG_POLL = 30.0
MAX_START_WAIT = 600.0
BOOT_POLL = 0.5
IDS_AT_ONCE = 1000
STEP_POLL = 0.5
SHORTEST_POLL = 0.05
# Codes of the findings that the server reports when no more episodes arrive for its batch.
STARVED = frozenset({"no_client", "incomplete_tasks", "no_signal"})

_SERVERS = "/v1/engine/servers"

_log = logging.getLogger("ajet.client")


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
        allow_no_calls: bool = False,
    ) -> EpisodeStatus:
        """Report the outcome now; see `SwarmClient.end_episode`."""
        self.closed = True
        try:
            return self.client.end_episode(
                self,
                reward,
                components=components,
                call_rewards=call_rewards,
                agent_rewards=agent_rewards,
                metadata=metadata,
                allow_no_calls=allow_no_calls,
            )
        except RequestError:
            # The outcome cannot be reported, so the episode is still open.
            self.closed = False
            raise


class SwarmClient:
    """A client of one swarm server.

    Threads can share it, and it can be used after a fork.

    Requests are repeated with exponential backoff where that is safe, and the server's
    ``retry_after`` is respected. Errors have the classes in `ajet_core.errors` that they had on the
    server.

    :param url: default ``AJET_URL``, else ``http://127.0.0.1:8642``.
    :param token: default ``AJET_TOKEN``, else the token file of a server of this user on this
        machine.
    :param retries: how often a request is repeated before `ServerUnreachableError`.
    :param transport: an `httpx2.BaseTransport` to use instead of the network.
    :param rng: the source of randomness for the jitter.
    :param sleep: function that waits the given number of seconds.
    :param clock: function that returns monotonic seconds.
    :raises ConfigError: `url` is not a valid URL.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = DEFAULT_RETRIES,
        transport: httpx2.BaseTransport | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = Connection(
            url, token, retries=retries, transport=transport, rng=rng, sleep=sleep, clock=clock
        )
        # Kept until the server confirms them, so that a repeated report has the same id.
        self._unreported: list[SpendingReport] = []

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
        rules: CallRules = NO_RULES,
    ) -> Episode:
        """Claim an episode, waiting until the server has a slot for it.

        :param group: episodes of one group share a baseline; by default those of one task.
        :param kind: ``eval`` episodes are never trained on.
        :param tag: the part of a mixture that the task belongs to.
        :param lease_seconds: the server aborts the episode after this time without a model call or
            heartbeat.
        :param heartbeat_seconds: a promise to make a model call or send a heartbeat at least this
            often. If three in a row are missed, the slot in the batch is freed long before the
            lease ends.
        :param timeout: seconds to wait for a slot; None waits as long as the server says that
            waiting may help.
        :param rules: rules for the model calls of this episode, in place of the run's rules.
        :raises DeadlineError: no slot became free within `timeout`.
        :raises NotRollingError: no run is active.
        :raises EpisodeError: the task is quarantined because all its episodes fail.
        """
        options = ClaimOptions(
            kind=kind,
            lease_seconds=lease_seconds,
            heartbeat_seconds=heartbeat_seconds,
            timeout=timeout,
            rules=rules,
        )
        return self._claim(Task(task_id, group=group, tag=tag), options)

    def _claim(
        self,
        task: Task,
        options: ClaimOptions,
        *,
        joint: JointPart | None = None,
        poll_seconds: float = LONG_POLL,
        meanwhile: Callable[[], None] | None = None,
    ) -> Episode:
        """Claim an episode, retrying for as long as the server says that retrying may help.

        A claim whose response was lost is repeated with the same claim id: if it had been granted,
        the server returns the same episode, even if it was killed and restarted in between.

        :param joint: the joint episode that the episode is a part of.
        :param poll_seconds: longest duration of one request.
        :param meanwhile: called between two requests.
        """
        connection = self._connection
        # Agreeing on a protocol version does not count towards the timeout.
        connection.connect()
        claim_id = secrets.token_urlsafe(24)
        began = connection.clock()
        deadline = None if options.timeout is None else began + options.timeout
        what = f"begin_episode({task.id!r})"
        while True:
            left = LONG_POLL if deadline is None else max(0.0, deadline - connection.clock())
            wait = min(poll_seconds, left)
            body = build(
                ClaimRequest,
                what,
                task_id=task.id,
                group=task.group,
                kind=options.kind,
                tag=task.tag,
                lease_seconds=options.lease_seconds,
                heartbeat_seconds=options.heartbeat_seconds,
                wait_seconds=wait,
                claim_id=claim_id,
                joint=joint,
                # Only the rules that are set: earlier servers refuse these fields.
                **options.rules.model_dump(exclude_defaults=True),
            )
            request = ApiRequest(
                "POST",
                "/v1/episodes",
                EpisodeGrant,
                body,
                read_timeout=wait + READ_TIMEOUT,
                # `timeout` decides how long to retry.
                final=True,
            )
            try:
                granted = Episode.from_grant(connection.perform(request))
                connection.note_rolling()
                return granted
            except AjetError as error:
                if error.retry_after is None or error.status not in {429, 503, 507}:
                    raise
                why = error.message
                # The error has no code for a pause; its message contains the state.
                if ServerState.PAUSED in error.message:
                    if connection.may_ask_why():
                        with contextlib.suppress(AjetError):
                            connection.log_pause(what, began, self.status())
                    if connection.why_paused:
                        why = f"the run is paused{connection.why_paused}"
                pause = connection.backoff.honour(error.retry_after, failures=1)
                if deadline is not None and connection.clock() + pause >= deadline:
                    raise DeadlineError(
                        f"{what}: no episode within {options.timeout:g} s: {error.message}"
                    ) from error
                connection.log_wait(what, began, why)
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
        allow_no_calls: bool = False,
    ) -> EpisodeStatus:
        """Report the outcome of an episode. Once this returns, it survives a crash of the server.

        Repeats change nothing: the first outcome counts and is returned.

        :param reward: a finite number.
        :param components: named parts of the reward, for the logs.
        :param call_rewards: rewards of single calls, by the id of their chat completion.
        :param agent_rewards: rewards by agent name; they replace the episode's reward for the calls
            of these agents.
        :param allow_no_calls: accept the reward if no model call was answered, or if the server
            failed to answer the last one. Without it, the server aborts such an episode.
        :raises EpisodeClosedError: the episode was aborted, or its lease expired.
        """
        outcome = EpisodeOutcome(
            reward=reward,
            components=components or {},
            call_rewards=call_rewards or {},
            agent_rewards=agent_rewards or {},
            metadata=metadata or {},
            allow_no_calls=allow_no_calls,
        )
        return self._end(episode, outcome)

    def _end(
        self, episode: Episode, outcome: EpisodeOutcome, *, prepare: bool = False
    ) -> EpisodeStatus:
        """Report the outcome of an episode.

        :param prepare: prepare the end only, until the arbiter of the joint episode has decided.
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
            **({"allow_no_calls": True} if outcome.allow_no_calls else {}),
        )
        path = episode_path(episode.episode_id, "prepare" if prepare else "end")
        request = ApiRequest("POST", path, EpisodeStatus, body, waits=True)
        return self._connection.perform(request)

    def abort_episode(
        self,
        episode: Episode,
        reason: str,
        *,
        cause: AgentCause = "error",
        final: bool = False,
        retries: int | None = None,
    ) -> EpisodeStatus:
        """Give up an episode; its slot in the batch becomes free.

        :param cause: the kind of failure, by which failures are counted; ``cancelled`` does not
            count as one.
        :param final: the task will not be retried, so that its batch continues with those of the
            task's episodes that succeed.
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
        path = episode_path(episode_id, "abort")
        request = ApiRequest("POST", path, EpisodeStatus, body, waits=True)
        return self._connection.perform(request, retries=retries)

    def heartbeat(self, episode: Episode, *, retries: int | None = None) -> EpisodeStatus:
        """Renew the lease of an episode that makes no model calls for a long time.

        :param retries: overrides the client's.
        :raises EpisodeClosedError: the episode is over.
        """
        request = ApiRequest("POST", episode_path(episode.episode_id, "heartbeat"), EpisodeStatus)
        return self._connection.perform(request, retries=retries)

    def heartbeats(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """Renew the leases of many episodes with one request, and report what judges have paid.

        :return: why each closed episode is over, by episode id.
        """
        closed: dict[str, str] = {}
        for start in range(0, len(episodes), IDS_AT_ONCE):
            ids = [episode.episode_id for episode in episodes[start : start + IDS_AT_ONCE]]
            body = build(HeartbeatsRequest, "heartbeats", episode_ids=ids)
            request = ApiRequest("POST", "/v1/heartbeats", Heartbeats, body)
            # The next heartbeat may get through if this one does not.
            answer = self._connection.perform(request, retries=0)
            closed |= answer.closed
        self.report_paid_tokens(retries=0)
        return closed

    def pace(self) -> Pace:
        """Return how many episodes this client should run, and how; runners ask regularly."""
        # The next request may get through if this one does not.
        return self._connection.perform(ApiRequest("GET", "/v1/pace", Pace), retries=0)

    def episode_status(self, episode: Episode) -> EpisodeStatus:
        """Return the status of an episode."""
        request = ApiRequest("GET", episode_path(episode.episode_id), EpisodeStatus)
        return self._connection.perform(request)

    def end_calls(self, episode: Episode) -> EpisodeStatus:
        """Have the server refuse further model calls of an open episode, and return its status.

        Its key is then no longer valid, so that nothing that determines its reward can use it. A
        server that restarts accepts it again until the episode ends.
        """
        path = episode_path(episode.episode_id, "end_calls")
        return self._connection.perform(ApiRequest("POST", path, EpisodeStatus))

    def can_continue_episode(self, episode: Episode) -> bool:
        """Return whether an episode is still open, so that it makes sense to continue it."""
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
        rules: CallRules = NO_RULES,
    ) -> Iterator[ScopedEpisode]:
        """An episode for the length of a ``with`` block; parameters as `begin_episode`.

        Set ``ep.reward`` or call ``ep.end(reward)`` inside the block. If the block raises, or
        the reward is refused (it is not finite or too large), the episode is aborted with the
        exception as its reason; without a reward, it is aborted too.
        """
        options = ClaimOptions(kind=kind, lease_seconds=lease_seconds, timeout=timeout, rules=rules)
        claimed = self._claim(Task(task_id, group=group, tag=tag), options)
        scoped = ScopedEpisode(**vars(claimed), client=self)
        try:
            yield scoped
            if scoped.reward is not None and not scoped.closed:
                scoped.end(
                    scoped.reward,
                    components=scoped.components,
                    call_rewards=scoped.call_rewards,
                    agent_rewards=scoped.agent_rewards,
                    metadata=scoped.metadata,
                    allow_no_calls=scoped.allow_no_calls,
                )
        except BaseException as error:
            if not scoped.closed:
                scoped.closed = True
                self._abort_after(scoped, error)
            raise
        if not scoped.closed:
            self.abort_episode(scoped, NO_REWARD)

    def _abort_after(self, episode: Episode, error: BaseException) -> None:
        """Abort because of `error`. If that fails too, only add a note to `error`."""
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
        concurrency: Concurrency = "auto",
        kind: Kind = "train",
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        rules: CallRules = NO_RULES,
        resume: bool = False,
        group_reward: GroupReward | None = None,
        on_result: Callable[[EpisodeResult | EpisodeFailure], object] | None = None,
    ) -> RunnerReport:
        """Roll out many episodes, several at a time, each agent in a thread of its own.

        An exception in an agent aborts its episode, and the task is retried with a new episode, up
        to `retries` times. Leases are renewed meanwhile. An error that concerns all episodes (no
        server, a wrong token, no run) stops the runner and is raised,
        and so is KeyboardInterrupt: open episodes are aborted first.

        :param tasks: task ids, or `Task` objects where the agent needs more than the id.
        :param agent: called with the task and its episode; returns the reward or an
            `EpisodeOutcome`.
        :param concurrency: how many episodes run at once. ``auto``: as many as the server asks for,
            or 64 for evaluation.
        :param lease_seconds: how long the episodes stay open after this program dies. Their slots
            in the batch are freed earlier, within two seconds.
        :param episode_timeout: seconds after which an agent that has not finished is given up,
            which counts as a failed attempt.
        :param rules: as for `begin_episode`.
        :param resume: skip episodes that have already ended, also those of another program or an
            earlier run of this one; see `resume`.
        :param group_reward: rewards all episodes of a task together. It is called with the task and
            what the agent returned in each episode, and returns as many rewards or
            `EpisodeOutcome` objects, in the same order. Episodes stay open until then.
            Episodes that are given up are left out; if it raises, all of them are retried.
        :param on_result: called in the calling thread after each episode that ends or is given up.
        """
        check_concurrency(concurrency)
        check_episodes_per_task(episodes_per_task)
        check_group_reward(group_reward, episodes_per_task, concurrency)
        remaining = [(task, episodes_per_task) for task in as_tasks(tasks)]
        if resume:
            left = self.resume(tasks, episodes_per_task=episodes_per_task, kind=kind)
            remaining = list(left.remaining)
        with self._paying():
            return run_episodes(
                self,
                make_jobs(remaining),
                agent,
                claim=self._claim,
                outcome_of=EpisodeOutcome.of,
                end=self._end,
                options=ClaimOptions(kind=kind, lease_seconds=lease_seconds, rules=rules),
                group_reward=group_reward,
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
        concurrency: Concurrency = "auto",
        retries: int = 1,
        lease_seconds: float = RUNNER_LEASE_SECONDS,
        episode_timeout: float | None = None,
        rules: CallRules = NO_RULES,
        group_reward: GroupReward | None = None,
        on_result: Callable[[EpisodeResult | EpisodeFailure], object] | None = None,
    ) -> EvaluationReport:
        """Roll out evaluation episodes, which are never trained on, and score them.

        The run's `EvaluationConfig` sets the sampling parameters, the reward that counts as passed,
        and the values of k for pass@k. Other parameters are as for
        `run_episodes_until_all_complete`.

        :param episodes_per_task: pass@k needs at least k.
        :param tag: the task set, by which the server counts the episodes too; by default each
            task's tag.
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
            rules=rules,
            group_reward=group_reward,
            on_result=on_result,
        )
        return evaluation_report(report, wanted, config)

    def resume(
        self, tasks: Sequence[str | Task], *, episodes_per_task: int = 1, kind: Kind = "train"
    ) -> Resumption:
        """Return which tasks of a dataset are finished.

        Episodes that ended with this client's token count, whichever process ran them. They are
        counted by group (by default the task's id), so that each pass over a dataset needs separate
        groups, such as ``Task("t1", group="t1@2")``.
        """
        check_episodes_per_task(episodes_per_task)
        wanted = as_tasks(tasks)
        groups = list(dict.fromkeys(task.group or task.id for task in wanted))
        counts = self._group_counts(groups, kind)
        return resumption(wanted, episodes_per_task, counts)

    def _group_counts(self, groups: Sequence[str], kind: Kind) -> dict[str, GroupCounts]:
        """Return the numbers of episodes of each group."""
        counts: dict[str, GroupCounts] = {}
        for start in range(0, len(groups), IDS_AT_ONCE):
            some = list(groups[start : start + IDS_AT_ONCE])
            body = build(GroupCountsRequest, "resume", groups=some, kind=kind)
            request = ApiRequest("POST", "/v1/groups", GroupCountsAnswer, body)
            answer = self._connection.perform(request)
            counts |= answer.groups
        return counts

    # --- Run and server ---------------------------------------------------------------------------

    def sync_train_config(self, config: RunConfig | Mapping[str, object]) -> RunStatus:
        """Set what the server trains and how; needs a control token.

        Repeating the call with the same configuration is allowed while the run is active, for
        programs that are restarted.

        :param config: a `RunConfig`, or its values by name.
        :raises RequestError: the values are not the configuration of a run.
        :raises StateError: a run with another configuration is active.
        :raises ConfigError: the server cannot use the configuration; nothing has changed then.
        """
        valid = (
            config
            if isinstance(config, RunConfig)
            else build(RunConfig, "sync_train_config", **config)
        )
        return self._connection.perform(ApiRequest("PUT", "/v1/run", RunStatus, valid))

    def start_engine(self, wait_seconds: float = 600.0) -> RunStatus:
        """Start the configured run and wait until the server has booted.

        If the run is already active, only wait.

        :raises DeadlineError: the server is still booting after `wait_seconds`.
        :raises AjetError: the boot failed; the error has the class it had on the server.
        """
        connection = self._connection
        # Agreeing on a protocol version does not count towards the timeout.
        connection.connect()
        deadline = connection.clock() + wait_seconds
        wait = min(MAX_START_WAIT, max(0.0, wait_seconds))
        body = build(StartRequest, "start_engine", wait_seconds=wait)
        request = ApiRequest(
            "POST", "/v1/run/start", RunStatus, body, read_timeout=wait + READ_TIMEOUT
        )
        try:
            started = connection.perform(request, until=deadline)
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
                    f"the server is still booting after {wait_seconds:g} s; it continues, and "
                    "calling start_engine again continues the wait"
                )
            connection.sleep(BOOT_POLL)
            status = self.status()
            state = status.state
            if state is ServerState.OFFLINE:
                if status.error is not None:
                    raise error_from_payload(status.error.model_dump())
                raise StateError(
                    "the server went offline while it was booting; see its log for the reason"
                )
        return self.run_status()

    def stop_engine(self, timeout: float = 600.0) -> RunStatus:
        """Stop the run after the step in progress; the returned `export_dir` has the trained model.

        :param timeout: seconds to wait for the run to stop.
        :raises DeadlineError: the run has not stopped within `timeout`; the server continues to
            stop it.
        :raises StateError: no run is active.
        """
        connection = self._connection
        # Agreeing on a protocol version does not count towards the timeout.
        connection.connect()
        deadline = connection.clock() + timeout
        request = ApiRequest("POST", "/v1/run/stop", RunStatus, read_timeout=timeout)
        try:
            return connection.perform(request, until=deadline)
        except ServerUnreachableError as error:
            if connection.clock() < deadline:
                raise
            raise DeadlineError(
                f"the run has not stopped within {timeout:g} s; the server continues to stop "
                f"it, and calling stop_engine again continues the wait ({error.message})"
            ) from error
        except StateError as error:
            # If the run has stopped, repeating the request returns the same status.
            status = self.run_status()
            if status.state is not ServerState.OFFLINE or status.export_dir is None:
                raise error from None
            return status

    def engine_servers(self) -> EngineServers:
        """Return the model servers behind the engine; needs a control token.

        :raises StateError: no run is active.
        :raises EngineError: the engine has none.
        """
        return self._connection.perform(ApiRequest("GET", _SERVERS, EngineServers))

    def add_engine_server(self, url: str) -> EngineServers:
        """Add a running model server to the engine; needs a control token.

        It gets the latest weights before its first request, in the background.

        :raises StateError: no run is active.
        :raises EngineError: the engine has no model servers.
        :raises RequestError: the URL cannot be used.
        """
        body = build(EngineServer, "add_engine_server", url=url)
        return self._connection.perform(ApiRequest("POST", f"{_SERVERS}/add", EngineServers, body))

    def remove_engine_server(self, url: str) -> EngineServers:
        """Remove a model server that was started elsewhere from the engine; needs a control token.

        Its requests continue on the other servers.

        :raises StateError: no run is active.
        :raises RequestError: the engine has no such server, or no other one is up.
        """
        body = build(EngineServer, "remove_engine_server", url=url)
        return self._connection.perform(
            ApiRequest("POST", f"{_SERVERS}/remove", EngineServers, body)
        )

    def mixture(self) -> MixtureStatus:
        """Return the mixture of tags in batches.

        :raises StateError: no run is configured.
        """
        return self._connection.perform(ApiRequest("GET", "/v1/mixture", MixtureStatus))

    def set_mixture(self, mixture: MixtureConfig | Mapping[str, float]) -> MixtureStatus:
        """Change the mixture, starting with the next batch; needs a control token.

        :param mixture: ratios by tag, which sum to 1, or a whole configuration with a schedule.
        :raises StateError: no run is configured.
        :raises RequestError: the ratios do not sum to 1.
        """
        if isinstance(mixture, MixtureConfig):
            body = mixture
        else:
            # Bare ratios keep the grace period but drop the schedule.
            before = self.mixture()
            kept = {} if before.config is None else {"grace_seconds": before.config.grace_seconds}
            body = build(MixtureConfig, "set_mixture", ratios=dict(mixture), **kept)
        return self._connection.perform(ApiRequest("PUT", "/v1/mixture", MixtureStatus, body))

    def report_spending(
        self,
        usd: float | None = None,
        *,
        model: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        source: str = "client",
        episode: Episode | None = None,
        report_id: str | None = None,
    ) -> bool:
        """Report what this program paid to another service, for the costs of the run.

        Give either an amount, or a model with its tokens, which the server prices by its setting
        ``costs.models``. Judges report their tokens themselves. Once this returns, the report
        survives a crash of the server.

        :param source: the name under which the status shows the cost.
        :param episode: the episode that it was paid for.
        :param report_id: 16 to 128 letters, digits, ``_`` and ``-``. The same report with the same
            id is counted once, also if another process sends it with the same token. Random by
            default.
        :return: whether it was not counted before.
        :raises RequestError: there is neither an amount nor a model, or both, or a report with this
            id has other values.
        """
        body = build(
            SpendingReport,
            "report_spending",
            report_id=report_id or secrets.token_hex(16),
            usd=usd,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            source=source,
            episode_id=None if episode is None else episode.episode_id,
        )
        request = ApiRequest("POST", "/v1/spending", SpendingReceipt, body, waits=True)
        return (self._connection.perform(request)).counted

    def report_paid_tokens(self, *, retries: int | None = None) -> None:
        """Report the tokens of judges and the like that this process has used for episodes.

        Runners do so regularly and at their end. What cannot be reported now is reported by the
        next call; what the server refuses is logged.

        :param retries: overrides the client's.
        """
        self._unreported += PAID_TOKENS.take()
        for report in list(self._unreported):
            request = ApiRequest("POST", "/v1/spending", SpendingReceipt, report)
            try:
                self._connection.perform(request, retries=retries)
            except (RequestError, AuthError) as error:
                _log.warning("%s does not count paid tokens: %s", self.url, error.message)
            except AjetError as error:
                if retries is None:
                    _log.warning("paid tokens are not reported yet: %s", error.message)
                return
            # Another call may have reported it meanwhile, which counts once.
            with contextlib.suppress(ValueError):
                self._unreported.remove(report)

    @contextlib.contextmanager
    def _paying(self) -> Iterator[None]:
        """Count paid tokens within the context, and report them at its end, also after an error."""
        # An error is not to be delayed for long.
        retries: int | None = 0
        with PAID_TOKENS.counting():
            try:
                yield
                retries = None
            finally:
                self.report_paid_tokens(retries=retries)

    def set_budget(self, *, usd: float | None = None, hours: float | None = None) -> BudgetConfig:
        """Replace the budget of the run; needs a control token. A paused run stays paused.

        :param usd: None for no limit.
        :param hours: of active time, None for no limit.
        :raises StateError: no run is configured.
        """
        body = build(BudgetConfig, "set_budget", usd=usd, hours=hours)
        return self._connection.perform(ApiRequest("PUT", "/v1/budget", BudgetConfig, body))

    def pause_engine(self, reason: str = "paused manually") -> RunStatus:
        """Open no episodes and train no batches until `resume_engine`; open episodes continue.

        :raises StateError: no run is active.
        """
        body = build(PauseRequest, "pause_engine", reason=reason)
        return self._connection.perform(ApiRequest("POST", "/v1/run/pause", RunStatus, body))

    def preflight(self) -> RunStatus:
        """Check the next batch before it is trained; needs a control token.

        The run is started unless it is active. `ServerStatus.preflight` has the report once the
        batch is full. If a check fails, the run pauses.

        :raises StateError: no run is configured.
        """
        return self._connection.perform(ApiRequest("POST", "/v1/run/preflight", RunStatus))

    def resume_engine(self, from_step: int | None = None, *, retrain: bool = False) -> RunStatus:
        """Resume a paused run, and retry tasks that were quarantined.

        :param from_step: return to the checkpoint of this step first; 0 is the initial model.
        :param retrain: train the batches after that step again. Otherwise they are kept for
            inspection, open training episodes are aborted, and all further batches are rolled out
            again.
        :raises StateError: no run is active, or there is no such checkpoint; the message lists the
            existing ones.
        """
        body = None
        if from_step is not None or retrain:
            body = build(ResumeRequest, "resume_engine", from_step=from_step, retrain=retrain)
        return self._connection.perform(ApiRequest("POST", "/v1/run/resume", RunStatus, body))

    def run_status(self) -> RunStatus:
        """Return the status of the configured run.

        :raises StateError: no run is configured.
        """
        return self._connection.perform(ApiRequest("GET", "/v1/run", RunStatus))

    def status(self) -> ServerStatus:
        """Return the status of the server."""
        return self._connection.perform(ApiRequest("GET", "/v1/status", ServerStatus))

    def read(self, path: str, answer: type[A]) -> A:
        """Return the answer of a GET route that has no method here; docs/openapi.json lists them.

        :param path: with its query, such as ``/v1/episodes?limit=5``.
        :param answer: the model that the answer is parsed as; fields that it lacks are ignored.
        """
        return self._connection.perform(ApiRequest("GET", path, answer))

    def wait_for_step(self, step: int, *, timeout: float | None = None) -> ServerStatus:
        """Wait until the served weights have been trained for `step` steps.

        :param timeout: seconds; None waits until the step is trained or one of the errors below
            occurs, even while the run is paused, which is logged: only the operator can resume the
            run.
        :raises BatchStarvedError: the batch lacks episodes, and no client is rolling any out: roll
            out more tasks.
        :raises DeadlineError: the step was not trained within `timeout`.
        :raises StateError: no run is active.
        :raises AjetError: the run failed; the error has the class it had on the server.
        """
        connection = self._connection
        # Agreeing on a protocol version does not count towards the timeout.
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
                why += why_paused(status, self.url)
            if timeout is not None and connection.clock() - began + STEP_POLL >= timeout:
                raise DeadlineError(f"{what}: not trained within {timeout:g} s: {why}")
            connection.log_wait(what, began, why)
            connection.sleep(STEP_POLL)

    def wait_for_training(self, *, timeout: float | None = None) -> ServerStatus:
        """Wait until the batches that are full now have been trained.

        Returns at once if no batch is full, and early if the run is paused or ends: the status says
        which.

        :param timeout: seconds; None sets no limit, because the server limits the time of a step.
        :raises DeadlineError: they were not trained within `timeout`.
        :raises AjetError: the run failed; the error has the class it had on the server.
        """
        connection = self._connection
        connection.connect()
        began = connection.clock()
        progress = TrainingProgress()
        delay = SHORTEST_POLL
        while not progress.over(status := self.status()):
            why = f"the server is {status.state} at step {status.step}"
            if timeout is not None and connection.clock() - began + delay >= timeout:
                raise DeadlineError(f"wait_for_training: not trained within {timeout:g} s: {why}")
            connection.log_wait("wait_for_training", began, why)
            connection.sleep(delay)
            delay = min(2 * delay, STEP_POLL)
        if status.state is ServerState.OFFLINE and status.error is not None:
            raise error_from_payload(status.error.model_dump())
        return status

    def evaluations(self) -> list[Evaluation]:
        """Return results of evaluation episodes by task set and step.

        They are those of this client's token; a control token returns those of all clients.
        """
        request = ApiRequest("GET", "/v1/evaluations", EvaluationList)
        answer = self._connection.perform(request)
        return answer.evaluations

    def events(self, since: int | None = None) -> Iterator[Event]:
        """Iterate over the server's events as they happen, reconnecting automatically.

        :param since: id of the last event already seen; None starts with the next one.
        :raises ServerUnreachableError: the connection was lost and could not be restored.
        """
        return self._connection.events(since)
