"""The service behind the HTTP routes: it combines the server's components."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ajet_core.errors import (
    AjetError,
    EpisodeClosedError,
    EpisodeNotFoundError,
    RequestError,
    StoreError,
)
from ajet_core.interfaces import EpisodeRecord
from ajet_core.plugin import PluginManager
from ajet_core.protocol import (
    AbortRequest,
    CallRules,
    ClaimRequest,
    EndRequest,
    EpisodeGrant,
    EpisodeStatus,
    Finding,
    GroupCounts,
    GroupCountsAnswer,
    GroupCountsRequest,
    Heartbeats,
    HeartbeatsRequest,
    Pace,
    ServerState,
    ServerStatus,
    SpendingReceipt,
    SpendingReport,
    TokenGrant,
    TokenInfo,
    TokenRequest,
)
from ajet_installation.settings import Settings
from ajet_server.admission.admission import Admission
from ajet_server.alerts.alerting import Alerts
from ajet_server.episodes.claims import ClaimDesk
from ajet_server.episodes.evaluations import Evaluations
from ajet_server.episodes.joint import JointDesk
from ajet_server.episodes.joint_peers import JointPeers
from ajet_server.episodes.open_episodes import OpenEpisode, limit_reached
from ajet_server.episodes.registry import EpisodeRegistry, not_found_message
from ajet_server.gateway.silence import Silence
from ajet_server.observe.events import EventLog
from ajet_server.observe.loop_watch import LoopWatch
from ajet_server.observe.metrics_loggers import MetricsLoggers
from ajet_server.observe.system_metrics import SystemMonitor
from ajet_server.observe.watchdog import (
    DoubtView,
    OpenView,
    ServerView,
    Watchdog,
    by_gravity,
    diagnose,
)
from ajet_server.run.coordinator import Coordinator
from ajet_server.run.run_parts import RunParts
from ajet_server.security.credentials import Token, TokenBook
from ajet_server.security.tenants import Tenants, shown_group, stored_group
from ajet_server.security.throttle import ThrottleMeter
from ajet_server.state import StateBoard
from ajet_server.store.chosen_store import note_store, require_noted_store
from ajet_server.store.run_store import RunStore

if TYPE_CHECKING:
    from ajet_server.telemetry.telemetry import Telemetry

_log = logging.getLogger("ajet.server")

_SHOWN = 8
_WATCH_SECONDS = 5.0
# Delays the report of an evaluation's end, which would otherwise come whenever its only open
# episode ends.
_TELL_SECONDS = 1.0
# Status is also requested when the engine hangs.
_STATS_SECONDS = 0.5
_METRICS_SECONDS = 5.0
# At most so much time is not counted if the server is killed.
_SAVED_SECONDS = 2.0
# Starting a gateway process again takes less.
_MISSING_SECONDS = 5.0


@dataclass(slots=True)
class SwarmService:
    """The server without HTTP. Create it with `ajet_server.build.build_service`.

    :param telemetry: exports traces, metrics and logs; None if that is off.
    :param gateways: returns the number of gateways that are connected.
    :param missing_gateways: returns a sentence about each gateway that is not connected, with the
        seconds since then.
    """

    settings: Settings
    plugins: PluginManager
    store: RunStore
    loggers: MetricsLoggers
    system: SystemMonitor
    watch: LoopWatch
    events: EventLog
    board: StateBoard
    episodes: EpisodeRegistry
    admission: Admission
    claims: ClaimDesk
    parts: RunParts
    coordinator: Coordinator
    evaluations: Evaluations
    tokens: TokenBook
    tenants: Tenants
    joint: JointDesk
    peers: JointPeers
    alerts: Alerts
    telemetry: Telemetry | None = None
    throttled: ThrottleMeter = field(default_factory=lambda: ThrottleMeter(time.monotonic))
    started: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    silence: Callable[[float], Silence] = Silence
    gateways: Callable[[], int] = int
    missing_gateways: Callable[[], dict[str, float]] = dict
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _writing_tokens: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> None:
        """Open the store and restore what it holds.

        :raises ConfigError: the run directory names another store, which has a run.
        """
        run_dir = self.settings.server.run_dir.resolve()
        await require_noted_store(self.settings.store, self.plugins, run_dir)
        # What was opened is closed again if the rest cannot be opened.
        async with contextlib.AsyncExitStack() as opened:
            await self.store.open()
            opened.push_async_callback(self.store.close)
            self.tokens.open()
            opened.callback(self.tokens.close)
            await self.parts.spending.open()
            opened.push_async_callback(self.parts.spending.close)
            await self.alerts.open()
            opened.push_async_callback(self.alerts.close)
            await self.loggers.open()
            opened.pop_all()
        self.watch.open()
        if self.telemetry is not None:
            self.telemetry.open()
        await self._note_store()
        await self.episodes.restore()
        await self.parts.spare.start()
        await self.coordinator.restore()
        watchdog = Watchdog(self.events, self.loggers.log_finding)
        self.system.open()
        self._tasks = [
            asyncio.create_task(
                self._again_and_again("aborting expired episodes", self._look_at_leases)
            ),
            asyncio.create_task(self._again_and_again("watching", partial(self._watch, watchdog))),
            asyncio.create_task(
                self._again_and_again("asking how joint episodes ended", self.peers.look)
            ),
            asyncio.create_task(
                self._again_and_again("reporting evaluations", self.tell_evaluations)
            ),
            asyncio.create_task(self._again_and_again("counting the time", self._count_time)),
        ]

        if (telemetry := self.telemetry) is not None:
            numbers = partial(self._export_status, telemetry)
            self._tasks.append(
                asyncio.create_task(self._again_and_again("exporting metrics", numbers))
            )

    async def _export_status(self, telemetry: Telemetry) -> float:
        telemetry.status(await self.status(), await self.engine_metrics())
        return telemetry.metrics_every

    async def _note_store(self) -> None:
        try:
            run_dir = self.settings.server.run_dir.resolve()
            await asyncio.to_thread(note_store, self.settings.store, run_dir)
        except OSError as error:
            # The note is only for external tools; the run does not need it.
            _log.error("tools may be unable to find the store of this run: %s", error)

    async def close(self) -> None:
        """Stop the workers and close the store; an active run resumes at the next start."""
        self.closed.set()
        self.store.hurry()
        await asyncio.gather(*self._tasks)
        await self.interrupt()
        await self.alerts.close()
        await self.parts.spending.close()
        # Whatever fails, the rest is closed.
        try:
            await self.tell_evaluations()
        except AjetError as error:
            _log.error("the last evaluations are not logged: %s", error.message)
        await self.system.close()
        await self.loggers.close()
        self.watch.close()
        try:
            await self.store.close()
        except StoreError as error:
            _log.error("%s", error.message)
        try:
            self.tokens.close()
        except StoreError as error:
            _log.error("cannot save when tokens were last used: %s", error.message)
        if self.telemetry is not None:
            await asyncio.to_thread(self.telemetry.close)

    async def interrupt(self) -> None:
        """End all waiting and streaming requests, so that connections can close."""
        self.board.closing = True
        await self.coordinator.shutdown()
        self.events.close()

    async def claim(self, request: ClaimRequest, client_id: str, base_url: str) -> EpisodeGrant:
        """Claim an episode, as `ClaimDesk.claim` does."""
        await self.joint.check_claim(request, self.coordinator.run_id)
        granted = await self.claims.claim(request, client_id)
        record = granted.record
        return EpisodeGrant(
            episode_id=record.episode_id,
            task_id=record.task_id,
            group=shown_group(record.group),
            kind=record.kind,
            base_url=base_url,
            api_key=granted.api_key,
            model=self.coordinator.model_name or "default",
            policy_version=record.claim_version,
            lease_seconds=record.lease_seconds,
        )

    async def check_owner(self, episode_id: str, token: Token) -> None:
        """Check that `token` may see an episode.

        :raises EpisodeNotFoundError: the episode does not exist, or it belongs to another client;
            the error is the same for both.
        """
        record, _ = await self.episodes.get(episode_id)
        if token.scope == "client" and record.client_id != token.token_id:
            raise EpisodeNotFoundError(not_found_message(episode_id))

    async def issue_token(self, request: TokenRequest) -> TokenGrant:
        """Issue a token, as `TokenBook.issue` does."""
        async with self._writing_tokens:
            return await asyncio.to_thread(self.tokens.issue, request)

    async def revoke_token(self, token_id: str) -> TokenInfo:
        """Revoke a token, abort its open episodes, and end its claims and event streams."""
        try:
            async with self._writing_tokens:
                return await asyncio.to_thread(self.tokens.revoke, token_id)
        finally:
            # Even if the write failed, the token is invalid for as long as this server runs.
            await self._end_dead_tenants()

    async def _end_dead_tenants(self) -> None:
        """End the claims, event streams and episodes of tokens that are revoked or expired."""
        dead = self.tenants.dead()
        if dead:
            # Event readers check their token when they wake up.
            self.events.wake()
        for tenant, why in dead.items():
            self.admission.drop(tenant, why)
            reason = f"its token is no longer valid: {why}"
            await self.episodes.abort_all(reason, "token_revoked", tenant)

    async def end(self, episode_id: str, request: EndRequest) -> EpisodeStatus:
        """End an episode; a repeated request returns the stored outcome.

        :raises EpisodeClosedError: the episode was aborted.
        :raises RequestError: the request rewards a call or an agent that the episode does not have.
        """
        await self.joint.check_end(episode_id)
        return await self._ended(episode_id, request, self.episodes.end)

    async def prepare(self, episode_id: str, request: EndRequest) -> EpisodeStatus:
        """Prepare a part of a joint episode: store the outcome that a commit will give it.

        A repeated request changes nothing.

        :raises StateError: the episode is not a part that can be prepared.
        """
        return await self._ended(episode_id, request, self.joint.prepare)

    async def commit(self, episode_id: str) -> EpisodeStatus:
        """Commit a prepared part, as `JointDesk.commit` does."""
        calls = await self._calls(episode_id)
        return self._episode_status(await self.joint.commit(episode_id), calls)

    async def _ended(
        self,
        episode_id: str,
        request: EndRequest,
        end: Callable[[str, EndRequest], Awaitable[EpisodeRecord]],
    ) -> EpisodeStatus:
        await self._check_rewards(episode_id, request)
        calls = await self._calls(episode_id)
        record = await end(episode_id, request)
        if record.state == "aborted":
            raise EpisodeClosedError(
                f"episode {episode_id} was aborted before it was ended: {record.reason}"
            )
        return self._episode_status(record, calls)

    async def _check_rewards(self, episode_id: str, request: EndRequest) -> None:
        _, live = await self.episodes.get(episode_id)
        if live is None:
            # The stored outcome is final: this request cannot change it.
            return
        _check_size(request, self.settings.server.max_reward)
        if not (request.call_rewards or request.agent_rewards):
            return
        # A call whose client disconnected is not trained, so it cannot be rewarded.
        calls = [
            call
            for call in (await self.store.calls([episode_id]))[episode_id]
            if call.finish_reason != "abort"
        ]
        rewarded = {
            "call": (request.call_rewards, {call.call_id for call in calls}),
            "agent": (request.agent_rewards, {call.agent for call in calls}),
        }
        for kind, (named, known) in rewarded.items():
            if unknown := sorted(set(named) - known):
                param = f"{kind}_rewards"
                shown = ", ".join(map(repr, sorted(known)[:_SHOWN]))
                more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
                rewardable = (
                    f"its {kind}s are {shown}{more}" if known else f"it has no such {kind}s"
                )
                raise RequestError(
                    f"{param}: episode {episode_id} has no {kind} {unknown[0]!r} that can be "
                    f"rewarded; {rewardable}",
                    param=param,
                )

    async def abort(self, episode_id: str, request: AbortRequest) -> EpisodeStatus:
        """Abort an episode; an episode that is over does not change.

        :raises StateError: the episode is prepared, and its arbiter has not aborted it.
        """
        calls = await self._calls(episode_id)
        record = await self.episodes.abort(episode_id, request)
        if record.state == "prepared":
            record = await self.joint.give_up(record, request)
        return self._episode_status(record, calls)

    async def heartbeat(self, episode_id: str) -> EpisodeStatus:
        """Renew the lease of an episode."""
        episode = await self.episodes.heartbeat(episode_id)
        counts = (episode.session.next_index, episode.session.tokens)
        return self._episode_status(episode.record, counts, episode)

    async def end_calls(self, episode_id: str) -> EpisodeStatus:
        """Refuse further model calls of an open episode, whose reward is being determined."""
        episode = await self.episodes.end_calls(episode_id)
        return self._episode_status(episode.record, await self._calls(episode_id), episode)

    async def episode(self, episode_id: str) -> EpisodeStatus:
        """Return the status of an episode."""
        record, live = await self.episodes.get(episode_id)
        return self._episode_status(record, await self._calls(episode_id), live)

    async def engine_metrics(self) -> str:
        """Return the engine's metrics in Prometheus text format, "" if no engine answers."""
        workers = self.coordinator.workers
        if workers is None or self.board.state is ServerState.BOOTING:
            return ""
        with contextlib.suppress(AjetError, TimeoutError):
            async with asyncio.timeout(_METRICS_SECONDS):
                return await workers.engine.metrics()
        return ""

    async def status(self) -> ServerStatus:
        """Return the state of the server and its run."""
        coordinator = self.coordinator
        counters: dict[str, float] = dict(await self.store.counters())
        counters["open_episodes"] = len(self.episodes.open)
        counters["prepared_episodes"] = len(self.episodes.prepared)
        counters["waiting_claims"] = self.admission.waiting_count
        if self.settings.server.divided:
            counters["gateway_processes"] = self.gateways()
        if (limit := self.admission.concurrency.limit) is not None:
            counters["episode_limit"] = limit
            counters["tokens_missed"] = self.admission.concurrency.missed
        if (
            workers := coordinator.workers
        ) is not None and self.board.state is not ServerState.BOOTING:
            # The coordinator handles engine failures; the status only omits the engine's counters.
            with contextlib.suppress(AjetError, TimeoutError):
                async with asyncio.timeout(_STATS_SECONDS):
                    stats = await workers.engine.stats()
                counters["engine_prompt_tokens"] = stats.prompt_tokens
                counters["engine_cached_tokens"] = stats.cached_tokens
                counters["engine_sampled_tokens"] = stats.sampled_tokens
                counters["engine_forward_seconds"] = stats.forward_seconds
        builder, loop = self.admission.builder, coordinator.loop
        return ServerStatus(
            state=self.board.state,
            run_id=coordinator.run_id,
            model=coordinator.model_name,
            policy_version=self.board.policy_version,
            step=coordinator.step,
            batch=builder.progress() if builder is not None else None,
            last_step=coordinator.last_step,
            counters=counters,
            uptime_seconds=time.monotonic() - self.started,
            error=coordinator.error,
            paused=coordinator.paused if coordinator.running else None,
            findings=self.findings(),
            quarantined=loop.rollouts.quarantined if loop is not None else [],
            checks=loop.health.checks if loop is not None else {},
            rollout=coordinator.rollout_status(),
            mixture=builder.tags() if builder is not None else None,
            evaluations=self.evaluations.latest(),
            preflight=loop.preflights.report if loop is not None else None,
            spending=coordinator.spending(),
            run_dir=str(self.settings.server.run_dir.resolve()),
        )

    def findings(self) -> list[Finding]:
        """Return what blocks the server's progress, and other findings, the gravest first."""
        findings = diagnose(self._view(), self.settings.server.stuck_seconds)
        findings += [
            _missing(message, seconds)
            for message, seconds in self.missing_gateways().items()
            if seconds > _MISSING_SECONDS
        ]
        if (trouble := self.store.trouble) is not None:
            stuck = trouble.seconds >= self.settings.server.stuck_seconds
            findings.insert(0, Finding(**asdict(trouble), stuck=stuck))
        findings += [*self.loggers.findings(), *self.watch.findings(), *self.alerts.findings()]
        findings += self._spending_findings()
        loop = self.coordinator.loop
        return by_gravity(findings if loop is None else [*findings, *loop.health.findings])

    def _spending_findings(self) -> list[Finding]:
        coordinator = self.coordinator
        if not coordinator.running:
            return []
        seconds = round(time.monotonic() - self.board.since, 3)
        findings = []
        if over := coordinator.overspent:
            message = f"{over}, then run `ajet resume`"
            findings.append(
                Finding(code="budget_spent", message=message, seconds=seconds, stuck=True)
            )
        if unpriced := coordinator.unpriced:
            message = f"the budget in USD does not cover what has no price: {'; '.join(unpriced)}"
            findings.append(Finding(code="no_price", message=message, seconds=seconds, stuck=False))
        return findings

    def _view(self) -> ServerView:
        now = time.monotonic()
        builder, loop = self.admission.builder, self.coordinator.loop
        chat = self.coordinator.chat
        in_state = now - self.board.since
        late_waited = loop.rollouts.late_waited if loop is not None else None
        late = frozenset(
            builder.awaited() if builder is not None and late_waited is not None else ()
        )
        return ServerView(
            state=self.board.state,
            in_state=in_state,
            still=self.episodes.open.still(self.board.since),
            open=[
                OpenView(
                    episode.record.episode_id,
                    episode.record.task_id,
                    episode.record.client_id,
                    now - episode.called_at,
                    self.episodes.open.lease_left(episode),
                    episode.running,
                    seen_ago=now - episode.seen_at,
                    steps_ago=self.board.policy_version - episode.record.claim_version,
                    late=episode.record.episode_id in late,
                )
                for episode in self.episodes.open
            ],
            late_waited=late_waited or 0.0,
            late_seconds=loop.run.config.rollout.late_seconds if loop is not None else 0.0,
            waiting_claims=self.admission.waiting_count,
            batch=builder.progress() if builder is not None else None,
            episodes_per_task=builder.episodes_per_task if builder is not None else 0,
            lacking=builder.lacking() if builder is not None else (),
            tags=(builder.tags() if builder is not None else None) or {},
            zero_variance=builder.zero_variance if builder is not None else 0,
            throttled=self.throttled.recent(),
            engine_stalled=loop.supervisor.engine_stalled if loop is not None else 0.0,
            paused=self.coordinator.paused or "",
            quarantined=loop.rollouts.quarantined if loop is not None else (),
            in_doubt=[
                DoubtView(
                    p.record.episode_id, p.joint.arbiter, self.episodes.prepared.waited(p), p.doubt
                )
                for p in self.episodes.prepared
            ],
            unread_calls="" if chat is None else chat.unread_calls,
            activity=loop.activity if loop is not None else "",
            training=loop is not None and loop.training_step is not None,
        )

    async def heartbeats(self, request: HeartbeatsRequest, client_id: str) -> Heartbeats:
        """Renew the leases of a client's episodes."""
        return Heartbeats(closed=await self.episodes.heartbeats(request.episode_ids, client_id))

    async def report_spending(self, report: SpendingReport, client_id: str) -> SpendingReceipt:
        """Count what a client paid for, once.

        :raises RequestError: another report of this client has its id, or there are too many
            sources and models.
        """
        return SpendingReceipt(counted=await self.parts.spending.report(report, client_id))

    def pace(self) -> Pace:
        """Return how clients are to run episodes."""
        builder, advised = self.admission.builder, self.admission.concurrency.advised
        if builder is None:
            return Pace(in_order=True)
        most = builder.most_episodes
        return Pace(
            in_order=builder.draws is not None,
            episodes=most if advised is None else min(most, advised),
        )

    async def group_counts(self, request: GroupCountsRequest, client_id: str) -> GroupCountsAnswer:
        """Count a client's episodes by group."""
        stored = {stored_group(client_id, group): group for group in request.groups}
        counts = self.store.group_counts(stored, kind=request.kind, client_id=client_id)
        return GroupCountsAnswer(
            groups={
                stored[group]: GroupCounts(
                    open=c.open,
                    ended=c.ended,
                    aborted=c.aborted,
                    reward_mean=c.reward_mean,
                    reward_std=c.reward_std,
                )
                for group, c in counts.items()
            }
        )

    async def _calls(self, episode_id: str) -> tuple[int, int]:
        """Count the calls of an episode so far, and their tokens; the store has those of closed."""
        _, live = await self.episodes.get(episode_id)
        if live is not None:
            return live.session.next_index, live.session.tokens
        calls = (await self.store.calls([episode_id]))[episode_id]
        return len(calls), sum(len(call.sampled_ids) for call in calls)

    def _episode_status(
        self, record: EpisodeRecord, counts: tuple[int, int], live: OpenEpisode | None = None
    ) -> EpisodeStatus:
        calls, tokens = counts
        rules = CallRules.model_validate(record.rules)
        return EpisodeStatus(
            episode_id=record.episode_id,
            task_id=record.task_id,
            group=shown_group(record.group),
            kind=record.kind,
            tag=record.tag,
            state=record.state,
            reward=record.reward,
            reason=record.reason,
            cause=record.cause or None,
            calls=calls,
            tokens=tokens,
            limit=limit_reached(rules, calls, tokens),
            policy_version=record.claim_version,
            lease_expires_in=self.episodes.open.lease_left(live) if live is not None else None,
        )

    async def tell_evaluations(self) -> float:
        """Report evaluations without open episodes to event readers and loggers.

        :return: seconds until the next check.
        """
        self.parts.report_evaluations()
        return _TELL_SECONDS

    async def _count_time(self) -> float:
        await self.parts.spending.save()
        if (loop := self.coordinator.loop) is not None and self.coordinator.running:
            await loop.keep_budget()
        return _SAVED_SECONDS

    async def _watch(self, watchdog: Watchdog) -> float:
        findings = self.findings()
        watchdog.look(findings)
        await self._alert(findings)
        self.loggers.report()
        self.admission.relieve()
        return min(_WATCH_SECONDS, self.settings.server.stuck_seconds)

    async def _alert(self, findings: list[Finding]) -> None:
        coordinator = self.coordinator
        if (error := coordinator.error) is not None:
            failed = Finding(code="run_failed", message=error.message, seconds=0.0, stuck=True)
            findings = [failed, *findings]
        settled = self.board.state is not ServerState.BOOTING
        run_id = coordinator.run_id or ""
        self.alerts.look(findings, settled=settled, run_id=run_id, step=coordinator.step)
        await self.alerts.save()

    async def _look_at_leases(self) -> float:
        pause = await self.episodes.expire_leases()
        await self._end_dead_tenants()
        return pause

    async def _again_and_again(self, what: str, work: Callable[[], Awaitable[float]]) -> None:
        """Repeat `work` until the server closes, after the number of seconds it returns.

        A single failure, such as a full disk, must not end the loop.

        :param what: the name of the work, for the log.
        """
        pause = 0.0
        while not await self._closed_within(pause):
            try:
                pause = await work()
            except AjetError as error:
                _log.error("%s: %s", what, error.message)
                pause = 1.0
            except Exception:  # noqa: BLE001 - see above
                _log.exception("%s failed", what)
                pause = 1.0

    async def _closed_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        return self.closed.is_set()


def _missing(message: str, seconds: float) -> Finding:
    return Finding(code="gateway_missing", message=message, seconds=round(seconds, 3), stuck=False)


def _check_size(request: EndRequest, limit: float) -> None:
    """Reject rewards that are too large for sums and gradients.

    :param limit: of the absolute values.
    :raises RequestError: a value exceeds the limit; `param` names its field.
    """
    if abs(request.reward) > limit:
        raise _too_large("reward", request.reward, limit, "reward")
    for part in ("components", "call_rewards", "agent_rewards"):
        values: dict[str, float] = getattr(request, part)
        for name, value in values.items():
            if abs(value) > limit:
                raise _too_large(f"{part}: {name!r}", value, limit, part)


def _too_large(what: str, value: float, limit: float, param: str) -> RequestError:
    return RequestError(
        f"{what} is {value:g}, but must be from {-limit:g} to {limit:g} (setting "
        "server.max_reward): scale down the rewards of the task",
        param=param,
    )
