"""What a client does, written once for the sync and the async one.

A flow is a generator: it yields what shall happen (`Send` a request, `Pause` a while) and is sent
what came of it. `SwarmClient` and `AsyncSwarmClient` only differ in how they make it happen.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from agentjet.client._wire import (
    DEFAULT_RETRIES,
    READ_TIMEOUT,
    Answer,
    Backoff,
    Call,
    Endpoint,
    Pause,
    Send,
    TransportFailure,
    build,
    may_repeat,
    read_answer,
    read_error,
    resolve_endpoint,
)
from ajet_core.errors import (
    AjetError,
    AuthError,
    BatchStarvedError,
    DeadlineError,
    EpisodeClosedError,
    EpisodeNotFoundError,
    ServerUnreachableError,
    StateError,
    VersionError,
    error_from_payload,
)
from ajet_core.protocol import (
    PROTOCOL_HEADER,
    SUPPORTED_VERSIONS,
    AbortRequest,
    AgentCause,
    ClaimRequest,
    EndRequest,
    EpisodeGrant,
    EpisodeStatus,
    EvaluationList,
    GroupCounts,
    GroupCountsAnswer,
    GroupCountsRequest,
    Heartbeats,
    HeartbeatsRequest,
    JointOutcomes,
    JointOutcomesRequest,
    JointPart,
    MixtureConfig,
    MixtureStatus,
    PauseRequest,
    PreparedParts,
    ProtocolInfo,
    ResumeRequest,
    RunConfig,
    RunStatus,
    ServerState,
    ServerStatus,
    StartRequest,
    negotiate,
)

A = TypeVar("A", bound=BaseModel)
R = TypeVar("R")

Flow = Generator[Send | Pause, Answer | None, R]
Kind = Literal["train", "eval"]

LONG_POLL = 30.0
MAX_START_WAIT = 600.0
BOOT_POLL = 0.5
IDS_AT_ONCE = 1000
STEP_POLL = 0.5
# What the server says when nothing fills its batch any more.
STARVED = frozenset({"no_client", "incomplete_tasks", "no_signal"})
# How long a client waits before its log says what for, and how often it says so again.
TOLD_EVERY = 60.0
# Before the server answered once, a wrong URL is as likely as a restart: say so within a second or two, and go on.
TOLD_AFTER = 2
_log = logging.getLogger("ajet.client")


class Flows:
    """The flows of one client.

    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = DEFAULT_RETRIES,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint: Endpoint = resolve_endpoint(url, token)
        self.retries = retries
        self.backoff = Backoff(rng=rng or random.Random())  # noqa: S311 - jitter, not a secret
        self.clock = clock
        self.version: str | None = None
        self._told_at = -math.inf

    def headers(self, *, accept: str = "application/json") -> dict[str, str]:
        """Headers of a request, with the token."""
        headers = {"accept": accept}
        if self.version is not None:
            headers[PROTOCOL_HEADER] = self.version
        if self.endpoint.token is not None:
            headers["authorization"] = f"Bearer {self.endpoint.token}"
        return headers

    def found_token(self, error: AjetError, refused: str | None) -> bool:
        """Whether there is another token than the one that was refused: a local server left it when it was started again."""
        if not isinstance(error, AuthError):
            return False
        self.endpoint = self.endpoint.found_anew() or self.endpoint
        # Another request may have found it.
        return self.endpoint.token != refused

    # --- One call, with retries -------------------------------------------------------------------

    def perform(
        self, call: Call[A], *, retries: int | None = None, until: float = math.inf
    ) -> Flow[A]:
        """Send `call`, again where that is safe, and read the answer.

        :param until: clock time after which a lost answer is not asked for again.
        :raises ServerUnreachableError: no answer after all retries.
        :raises AjetError: the server's error, as the class it was there.
        """
        limit = self.retries if retries is None else retries
        failures, began = 0, self.clock()
        while True:
            token = self.endpoint.token
            try:
                answer = yield self._send(call)
            except TransportFailure as failure:
                unsafe = failure.sent and not call.repeatable
                if failures >= limit or unsafe or self.clock() >= until:
                    raise self._unreachable(call, failure, failures + 1) from failure
                self._waits(f"{call.method} {call.path}", began, f"no answer yet ({failure})")
                delay = self.backoff.delay(failures)
                if self.version is None and failures + 1 == TOLD_AFTER:
                    _log.warning(
                        "no answer from %s yet (%s): trying again", self.endpoint.url, failure
                    )
            else:
                assert answer is not None, "a driver answers each Send or throws"
                if 200 <= answer.status < 300:
                    return read_answer(call, answer)
                error = read_error(f"{call.method} {self.endpoint.url}{call.path}", answer)
                if self.found_token(error, token):
                    # Nothing was done, and nothing need be waited for.
                    continue
                again = call.repeatable and not call.final and may_repeat(error, answer.status)
                if not again or failures >= limit:
                    raise error
                delay = (
                    self.backoff.delay(failures)
                    if error.retry_after is None
                    else self.backoff.honour(error.retry_after, failures)
                )
            failures += 1
            yield Pause(delay)

    def _send(self, call: Call[A]) -> Send:
        headers = self.headers()
        if call.answer is ProtocolInfo:
            # Whoever it is that listens there, it does not get the token before it said what it is.
            headers.pop("authorization", None)
        content = None
        if call.body is not None:
            content = call.body.model_dump_json().encode()
            headers["content-type"] = "application/json"
        return Send(call.method, self.endpoint.url + call.path, headers, content, call.read_timeout)

    def _unreachable(
        self, call: Call[A], failure: TransportFailure, attempts: int
    ) -> ServerUnreachableError:
        tried = "once" if attempts == 1 else f"{attempts} times"
        advice = (
            "the request may have arrived, and repeating it is not safe"
            if failure.sent and not call.repeatable
            else "is the server running, and is the URL right (argument url=, or AJET_URL)?"
        )
        return ServerUnreachableError(
            f"no answer from {self.endpoint.url} to {call.method} {call.path} (tried {tried}): "
            f"{failure}; {advice}"
        )

    def _waits(self, what: str, since: float, why: str) -> None:
        """Log what this client waits for, at most once a minute, however much of it waits.

        :param since: clock time at which the wait began.
        :param why: the server's words.
        """
        now = self.clock()
        if now - max(since, self._told_at) >= TOLD_EVERY:
            self._told_at = now
            _log.warning("%s has waited %.0f s: %s", what, now - since, why)

    # --- Protocol ---------------------------------------------------------------------------------

    def connect(self) -> Flow[None]:
        """Agree on a protocol version; nothing if that was done.

        :raises VersionError: client and server have no major version in common.
        """
        call = Call("GET", "/v1/protocol", ProtocolInfo)
        info = yield from self.perform(call)
        try:
            version = negotiate(info.versions)
        except ValueError as error:
            raise VersionError(f"{self.endpoint.url}: {error}") from None
        if version is None:
            raise VersionError(
                f"{self.endpoint.url} (agentjet {info.server_version}) speaks protocol "
                f"{', '.join(info.versions)}, this client {', '.join(SUPPORTED_VERSIONS)}: "
                "upgrade the older of the two"
            )
        self.version = version

    # --- Episodes ---------------------------------------------------------------------------------

    def claim(
        self,
        task_id: str,
        *,
        group: str | None,
        kind: Kind,
        tag: str,
        lease_seconds: float,
        heartbeat_seconds: float | None,
        timeout: float | None,
        joint: JointPart | None = None,
        poll_seconds: float = LONG_POLL,
        meanwhile: Callable[[], Flow[None]] | None = None,
    ) -> Flow[EpisodeGrant]:
        """Claim an episode, asking again for as long as the server says that it may help.

        An answer that was lost is asked for again under the same claim id: if it was a grant, the server gives the
        same episode, even if it was killed and started again in between.

        :param joint: the joint episode that it is a part of.
        :param poll_seconds: longest time of one request.
        :param meanwhile: done between two requests.
        """
        claim_id = secrets.token_urlsafe(24)
        began = self.clock()
        deadline = None if timeout is None else began + timeout
        what = f"begin_episode({task_id!r})"
        while True:
            left = LONG_POLL if deadline is None else max(0.0, deadline - self.clock())
            wait = min(poll_seconds, left)
            body = build(
                ClaimRequest,
                what,
                task_id=task_id,
                group=group,
                kind=kind,
                tag=tag,
                lease_seconds=lease_seconds,
                heartbeat_seconds=heartbeat_seconds,
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
                return (yield from self.perform(call))
            except AjetError as error:
                if error.retry_after is None or error.status not in {429, 503}:
                    raise
                pause = self.backoff.honour(error.retry_after, failures=1)
                if deadline is not None and self.clock() + pause >= deadline:
                    raise DeadlineError(
                        f"{what}: no episode within {timeout:g} s: {error.message}"
                    ) from error
                self._waits(what, began, error.message)
                yield Pause(pause)
            if meanwhile is not None:
                yield from meanwhile()

    def end(
        self,
        episode_id: str,
        reward: float,
        *,
        prepare: bool = False,
        components: Mapping[str, float] | None,
        call_rewards: Mapping[str, float] | None,
        agent_rewards: Mapping[str, float] | None,
        metadata: Mapping[str, str] | None,
    ) -> Flow[EpisodeStatus]:
        """Report an episode's reward.

        :param prepare: only until the arbiter of its joint episode has decided.
        """
        body = build(
            EndRequest,
            f"end_episode({episode_id!r})",
            reward=reward,
            components=dict(components or {}),
            call_rewards=dict(call_rewards or {}),
            agent_rewards=dict(agent_rewards or {}),
            metadata=dict(metadata or {}),
        )
        verb = "prepare" if prepare else "end"
        return self.perform(
            Call("POST", f"/v1/episodes/{_id(episode_id)}/{verb}", EpisodeStatus, body)
        )

    def commit(self, episode_id: str, *, retries: int | None = None) -> Flow[EpisodeStatus]:
        """End a prepared part of a joint episode."""
        call = Call("POST", f"/v1/episodes/{_id(episode_id)}/commit", EpisodeStatus)
        return self.perform(call, retries=retries)

    def abort(
        self,
        episode_id: str,
        reason: str,
        *,
        cause: AgentCause,
        final: bool,
        retries: int | None = None,
        arbiter_aborted: bool = False,
    ) -> Flow[EpisodeStatus]:
        """Give an episode up."""
        body = build(
            AbortRequest,
            f"abort_episode({episode_id!r})",
            reason=reason[:4096],
            cause=cause,
            final=final,
            arbiter_aborted=arbiter_aborted,
        )
        call = Call("POST", f"/v1/episodes/{_id(episode_id)}/abort", EpisodeStatus, body)
        return self.perform(call, retries=retries)

    def heartbeat(self, episode_id: str, *, retries: int | None = None) -> Flow[EpisodeStatus]:
        """Renew an episode's lease."""
        call = Call("POST", f"/v1/episodes/{_id(episode_id)}/heartbeat", EpisodeStatus)
        return self.perform(call, retries=retries)

    def heartbeats(self, episode_ids: Sequence[str]) -> Flow[dict[str, str]]:
        """Renew the leases of many episodes; the next beat may get through if this one does not.

        :return: why those that are over are, by id.
        """
        closed: dict[str, str] = {}
        for start in range(0, len(episode_ids), IDS_AT_ONCE):
            some = list(episode_ids[start : start + IDS_AT_ONCE])
            body = build(HeartbeatsRequest, "heartbeats", episode_ids=some)
            call = Call("POST", "/v1/heartbeats", Heartbeats, body)
            closed |= (yield from self.perform(call, retries=0)).closed
        return closed

    def group_counts(self, groups: Sequence[str], kind: Kind) -> Flow[dict[str, GroupCounts]]:
        """How many episodes of each group there are."""
        found: dict[str, GroupCounts] = {}
        for start in range(0, len(groups), IDS_AT_ONCE):
            asked = list(groups[start : start + IDS_AT_ONCE])
            body = build(GroupCountsRequest, "resume", groups=asked, kind=kind)
            answer = yield from self.perform(Call("POST", "/v1/groups", GroupCountsAnswer, body))
            found |= answer.groups
        return found

    def prepared(self) -> Flow[PreparedParts]:
        """Parts of joint episodes that wait for their arbiter; the next look may get through if this one does not."""
        return self.perform(Call("GET", "/v1/joint", PreparedParts), retries=0)

    def joint_outcomes(self, joint_ids: Sequence[str]) -> Flow[JointOutcomes]:
        """How joint episodes ended that this server decides."""
        body = build(JointOutcomesRequest, "resolve", joint_ids=list(joint_ids))
        return self.perform(Call("POST", "/v1/joint/outcomes", JointOutcomes, body), retries=0)

    def episode_status(self, episode_id: str) -> Flow[EpisodeStatus]:
        """An episode's present condition."""
        return self.perform(Call("GET", f"/v1/episodes/{_id(episode_id)}", EpisodeStatus))

    def can_continue(self, episode_id: str) -> Flow[bool]:
        """Whether an episode is still open."""
        try:
            status = yield from self.episode_status(episode_id)
        except (EpisodeNotFoundError, EpisodeClosedError):
            return False
        return status.state == "open"

    # --- Run and server ---------------------------------------------------------------------------

    def put_run(self, config: RunConfig) -> Flow[RunStatus]:
        """Set the training configuration."""
        return self.perform(Call("PUT", "/v1/run", RunStatus, config))

    def run_status(self) -> Flow[RunStatus]:
        """The configured run."""
        return self.perform(Call("GET", "/v1/run", RunStatus))

    def start(self, wait_seconds: float) -> Flow[RunStatus]:
        """Start the run and wait until the server has booted; a run that is active is joined."""
        deadline = self.clock() + wait_seconds
        try:
            state = yield from self._start_once(wait_seconds, deadline)
        except ServerUnreachableError as error:
            if self.clock() < deadline:
                raise
            raise DeadlineError(
                f"the server has not started the run within {wait_seconds:g} s: {error.message}"
            ) from error
        while state is ServerState.BOOTING:
            if self.clock() >= deadline:
                raise DeadlineError(
                    f"the server is still booting after {wait_seconds:g} s; it continues, and calling "
                    "start_engine again continues the wait"
                )
            yield Pause(BOOT_POLL)
            status = yield from self.server_status()
            state = status.state
            if state is ServerState.OFFLINE:
                if status.error is not None:
                    raise error_from_payload(status.error.model_dump())
                raise StateError("the server went offline while it was booting; its log says why")
        return (yield from self.run_status())

    def _start_once(self, wait_seconds: float, until: float) -> Flow[ServerState]:
        wait = min(MAX_START_WAIT, max(0.0, wait_seconds))
        body = build(StartRequest, "start_engine", wait_seconds=wait)
        call = Call("POST", "/v1/run/start", RunStatus, body, read_timeout=wait + READ_TIMEOUT)
        return (yield from self.perform(call, until=until)).state

    def stop(self, timeout: float) -> Flow[RunStatus]:
        """Stop the run; once it is stopped a repeat gives the same answer."""
        call = Call("POST", "/v1/run/stop", RunStatus, read_timeout=timeout)
        deadline = self.clock() + timeout
        try:
            return (yield from self.perform(call, until=deadline))
        except ServerUnreachableError as error:
            if self.clock() < deadline:
                raise
            raise DeadlineError(
                f"the run has not stopped within {timeout:g} s; it is still being stopped, and calling stop_engine "
                f"again continues the wait ({error.message})"
            ) from error
        except StateError as error:
            status = yield from self.run_status()
            if status.state is not ServerState.OFFLINE or status.export_dir is None:
                raise error from None
            return status

    def mixture(self) -> Flow[MixtureStatus]:
        """The mixture of tags."""
        return self.perform(Call("GET", "/v1/mixture", MixtureStatus))

    def put_mixture(self, mixture: MixtureConfig | Mapping[str, float]) -> Flow[MixtureStatus]:
        """Change the mixture; bare ratios keep the rest of it, but for its schedule."""
        if isinstance(mixture, MixtureConfig):
            body = mixture
        else:
            before = (yield from self.mixture()).config
            kept = {} if before is None else {"grace_seconds": before.grace_seconds}
            body = build(MixtureConfig, "set_mixture", ratios=dict(mixture), **kept)
        return (yield from self.perform(Call("PUT", "/v1/mixture", MixtureStatus, body)))

    def pause(self, reason: str) -> Flow[RunStatus]:
        """Let the run give out no more episodes."""
        body = build(PauseRequest, "pause_engine", reason=reason)
        return self.perform(Call("POST", "/v1/run/pause", RunStatus, body))

    def preflight(self) -> Flow[RunStatus]:
        """Try the next batch before it is trained."""
        return self.perform(Call("POST", "/v1/run/preflight", RunStatus))

    def resume(self, from_step: int | None, *, retrain: bool) -> Flow[RunStatus]:
        """Let a paused run continue, after going back to a checkpoint where that is asked for."""
        body = None
        if from_step is not None or retrain:
            body = build(ResumeRequest, "resume_engine", from_step=from_step, retrain=retrain)
        return self.perform(Call("POST", "/v1/run/resume", RunStatus, body))

    def server_status(self) -> Flow[ServerStatus]:
        """What the server is doing."""
        return self.perform(Call("GET", "/v1/status", ServerStatus))

    def wait_for_step(self, step: int, timeout: float | None) -> Flow[ServerStatus]:
        """Wait until the served weights have been trained for `step` steps."""
        began = self.clock()
        what = f"wait_for_step({step})"
        while True:
            status = yield from self.server_status()
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
            if timeout is not None and self.clock() - began + STEP_POLL >= timeout:
                raise DeadlineError(f"{what}: not trained within {timeout:g} s: {why}")
            self._waits(what, began, why)
            yield Pause(STEP_POLL)

    def evaluations(self) -> Flow[EvaluationList]:
        """What evaluation episodes came to."""
        return self.perform(Call("GET", "/v1/evaluations", EvaluationList))


def _id(episode_id: str) -> str:
    return quote(episode_id, safe="")
