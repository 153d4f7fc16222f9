"""Admission: decide which claims get an episode, and when."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Set
from typing import Any

from ajet_core.errors import AjetError, AuthError, BusyError, EpisodeError, NotRollingError
from ajet_core.interfaces import EpisodeRecord, JointRecord
from ajet_core.protocol import (
    CallRules,
    CallSampling,
    ClaimRequest,
    MixtureConfig,
    Quarantine,
    ServerState,
)
from ajet_core.timeline import Call
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.concurrency import CallUse, Concurrency
from ajet_server.admission.waiting import Granted, Ticket, WaitingLine
from ajet_server.observe.events import EventLog
from ajet_server.security.api_keys import hash_secret, new_episode_key
from ajet_server.security.tenants import Tenants, stored_group
from ajet_server.state import StateBoard

_log = logging.getLogger("ajet.server")

# Seconds without any progress before `Admission.relieve` grants a claim out of turn.
RELIEF_SECONDS = 10.0
_NOT_ROLLING_RETRY_SECONDS = 0.5
_PAUSED_WAIT_SECONDS = 2.0


class Admission:
    """Decides which claims get an episode, and when.

    Claims wait here until the batch being filled has a slot for them. `EpisodeRegistry` reports
    the outcome of each admitted episode, because outcomes free slots.

    :param clock: seconds, monotonic.
    :param idle_seconds: takes the monotonic time of a change; returns for how many seconds since
        then there has been no claim, call or end of an episode.
    :param wall_clock: Unix time in seconds, for records.
    """

    def __init__(
        self,
        board: StateBoard,
        events: EventLog,
        tenants: Tenants,
        *,
        clock: Callable[[], float],
        idle_seconds: Callable[[float], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._board = board
        self._events = events
        self._tenants = tenants
        self._clock = clock
        self._idle_seconds = idle_seconds
        self._wall_clock = wall_clock
        self._waiting = WaitingLine()
        self._builder: BatchBuilder | None = None
        self._concurrency = Concurrency(None)
        # Open episodes whose clients are silent.
        self._silent: set[str] = set()
        self._relieved_at = -math.inf
        board.listen(lambda _: self.admit())

    @property
    def builder(self) -> BatchBuilder | None:
        """The builder that fills the batches; None before this process has started one."""
        return self._builder

    @property
    def waiting_count(self) -> int:
        """The number of claims that wait for a slot."""
        return len(self._waiting)

    @property
    def concurrency(self) -> Concurrency:
        """The limit on open episodes."""
        return self._concurrency

    @property
    def waiting_tags(self) -> Set[str]:
        """The tags of train episodes that claims wait for."""
        return self._waiting.tags

    # --- Claims -----------------------------------------------------------------------------------

    async def wait_for_slot(self, request: ClaimRequest, client_id: str) -> Granted:
        """Wait for a slot and return the new episode; its record is not stored yet.

        :raises NotRollingError: no run is active, or no slot became free within
            `request.wait_seconds`.
        :raises BusyError: a limit on open episodes or waiting claims is reached.
        :raises EpisodeError: the task is quarantined, or its tag is not in the mixture.
        """
        self._tenants.require_room()
        builder = self._builder
        # Check the group name now, not when a slot becomes free; this includes evaluation episodes.
        stored = _group(request, client_id)
        group = stored if request.kind == "train" else None
        if group and builder is not None:
            why = builder.slots.refusal(request.tag)
            if why := why or builder.refuses(client_id, request.task_id):
                raise EpisodeError(why)
        ticket = Ticket(request, client_id, group, asyncio.get_running_loop().create_future())
        self._waiting.add(ticket)
        seconds = request.wait_seconds
        try:
            self.admit()
            self.relieve()
            if not ticket.granted.done():
                if self._board.state is ServerState.PAUSED:
                    # The client can soon log what it waits for.
                    seconds = min(seconds, _PAUSED_WAIT_SECONDS)
                with self._tenants.waiting(client_id):
                    await asyncio.wait([ticket.granted], timeout=seconds)
        except asyncio.CancelledError:
            if ticket.granted.done() and ticket.granted.exception() is None:
                self.withdraw(ticket.granted.result().record)
            raise
        finally:
            self._waiting.discard(ticket)
        if not ticket.granted.done():
            raise NotRollingError(
                f"no episode of task {request.task_id!r} could start within "
                f"{seconds:g} s ({self._why_not()})",
                retry_after=_NOT_ROLLING_RETRY_SECONDS,
            )
        return ticket.granted.result()

    def withdraw(self, record: EpisodeRecord) -> None:
        """Undo the admission of an episode that never reached its client."""
        self._tenants.closed(record)
        if (builder := self._builder_of(record)) is not None:
            builder.withdrawn(record)
        self.admit()

    def admit(self) -> None:
        """Give free slots to waiting claims, in order of arrival."""
        if self._board.state is ServerState.OFFLINE:
            for waiting in list(self._waiting):
                self._refuse(waiting, self._board.not_running())
        builder = self._builder
        if builder is None or not self._board.rolling:
            return
        self._refuse_tags(builder)
        while (ticket := self._waiting.next(builder)) is not None:
            if not self._concurrency.has_room(self._open_episodes):
                self._concurrency.bind()
                return
            self._waiting.discard(ticket)
            self._give(ticket, builder)

    def relieve(self) -> None:
        """Grant a waiting claim out of turn after `RELIEF_SECONDS` without progress.

        Without this, batch and client can deadlock: the batch waits for other tasks, while the
        client claims no other task until this claim is granted. This can arise when the response to
        `end` is lost. Or the open episodes wait for the claim, which waits for one of them to end.
        """
        builder = self._builder
        if builder is None or not self._board.rolling:
            return
        if self._idle_seconds(self._board.since) < RELIEF_SECONDS:
            return
        for waiting in self._waiting:
            if waiting.group is not None and builder.starves(waiting.request.tag):
                _log.info(
                    "the batch is not full and no episode for it is open, so task %r gets one "
                    "more episode than it needs",
                    waiting.request.task_id,
                )
                self._waiting.discard(waiting)
                self._give(waiting, builder)
                return
        now = self._clock()
        if self._concurrency.fixed or now - self._relieved_at < RELIEF_SECONDS:
            return
        if (ticket := self._waiting.next(builder)) is not None:
            self._relieved_at = now
            _log.info(
                "%d episodes are open, the limit, and nothing moves, so task %r gets one more",
                self._open_episodes,
                ticket.request.task_id,
            )
            self._waiting.discard(ticket)
            self._give(ticket, builder)

    def drop(self, client_id: str, why: str) -> None:
        """Reject all waiting claims of a client."""
        for ticket in list(self._waiting):
            if ticket.client_id == client_id:
                self._refuse(ticket, AuthError(f"the token is no longer valid: {why}"))

    def quarantine(self, entry: Quarantine, why: str) -> None:
        """Report a task that is quarantined, and reject the claims that wait for it.

        :param entry: the quarantine; if it has no task id, it covers all tasks of its client.
        """
        self._events.emit("task_quarantined", entry.model_dump(), entry.client_id)
        for ticket in list(self._waiting):
            asked = (ticket.client_id, ticket.request.task_id if entry.task_id else "")
            if ticket.group is not None and asked == (entry.client_id, entry.task_id):
                self._refuse(ticket, EpisodeError(why))

    # --- Admitted episodes ------------------------------------------------------------------------

    def restored(self, record: EpisodeRecord) -> None:
        """Record an episode that the store has as open, without asking whether it has a slot."""
        self._tenants.reopen(record)
        if (builder := self._builder_of(record)) is not None:
            builder.opened(record)

    def silent(self, records: Iterable[EpisodeRecord]) -> None:
        """Give the slots of episodes whose clients miss heartbeats to other claims.

        `heard` undoes this.
        """
        freed = False
        for record in records:
            freed = True
            self._silent.add(record.episode_id)
            if (builder := self._builder_of(record)) is not None:
                builder.silent(record)
        if freed:
            self.admit()

    def wait_less(self) -> None:
        """Record that some time has passed: tasks lose their slots if no claim follows."""
        if self._builder is not None and self._builder.wait_less():
            self._moved()

    def heard(self, record: EpisodeRecord) -> None:
        """Undo `silent` for an episode."""
        self._silent.discard(record.episode_id)
        if (builder := self._builder_of(record)) is not None:
            builder.heard(record)
            # Another silent episode of its task may have given up its slot for it.
            self._moved()

    def over(self, record: EpisodeRecord) -> None:
        """Record an episode's outcome. The outcome must already be stored durably."""
        self._tenants.closed(record)
        self._silent.discard(record.episode_id)
        self._concurrency.ended()
        if (builder := self._builder_of(record)) is not None:
            if record.state == "ended":
                builder.ended(record)
            elif (entry := builder.aborted(record)) is not None:
                self.quarantine(entry, builder.refuses(entry.client_id, entry.task_id) or "")
        self._moved()

    def given_up(self, record: EpisodeRecord) -> None:
        """Record that the client of an aborted episode will not retry it."""
        if (builder := self._builder_of(record)) is not None:
            builder.given_up(record)
        self._moved()

    def called(self, call: Call, cached_tokens: int | None) -> None:
        """Record a call of an open episode.

        :param cached_tokens: prompt tokens that the engine read from its cache; None if unknown.
        """
        self.used(CallUse.of(call, cached_tokens))

    def used(self, use: CallUse) -> None:
        """Record what a call of an open episode used of the engine's cache."""
        if self._concurrency.called(use, self._open_episodes, self._clock()):
            self.admit()

    # --- The run ----------------------------------------------------------------------------------

    def begin(self, builder: BatchBuilder) -> None:
        """Start filling batches with `builder`."""
        self._builder = builder
        setting = builder.slots.concurrency
        # What an exact run does must not depend on timing.
        self._concurrency = Concurrency(None if builder.draws and setting == "auto" else setting)
        self._board.touch()

    def readmit(self) -> None:
        """Lift all quarantines: any task may be tried again."""
        if self._builder is not None:
            self._builder.readmit()

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Use another mixture from the next batch on."""
        if self._builder is not None:
            self._builder.change_mixture(mixture)

    def settle(self) -> None:
        """Fix the mixture of the batch; later changes apply to the next batch."""
        if self._builder is not None:
            self._builder.slots.settle()

    # --- Inside -----------------------------------------------------------------------------------

    @property
    def _open_episodes(self) -> int:
        """The number of open episodes whose clients are not silent."""
        return self._tenants.open_episodes - len(self._silent)

    def _builder_of(self, record: EpisodeRecord) -> BatchBuilder | None:
        """Return the builder for a train episode; None for others, or if there is none yet."""
        return self._builder if record.kind == "train" else None

    def _moved(self) -> None:
        """Record progress and admit claims: a slot may be free now."""
        self._board.touch()
        self.admit()

    def _why_not(self) -> str:
        state, builder = f"the server is {self._board.state}", self._builder
        if builder is None or not self._board.rolling:
            # Do not quote the pause reason: it may contain another client's data.
            paused = self._board.state is ServerState.PAUSED
            ask = "ask its operator, who can see the reason with `ajet status`"
            return f"{state}; {ask}" if paused else state
        if not self._concurrency.has_room(count := self._open_episodes):
            limit = self._concurrency.limit
            return f"{state}; {count} episodes are open, the limit is {limit} (rollout.concurrency)"
        progress = builder.progress()
        unit = "episodes" if progress.full_by == "episodes" else "tasks"
        return (
            f"{state}; the current batch has no free slot for it: {progress.ready} of "
            f"{progress.needed} {unit} are complete and {progress.open_episodes} episodes are open"
        )

    def _refuse_tags(self, builder: BatchBuilder) -> None:
        """Reject the claims for tags that are no longer in the mixture."""
        for tag in list(self._waiting.tags):
            if why := builder.slots.refusal(tag):
                for ticket in self._waiting.of_tag(tag):
                    self._refuse(ticket, EpisodeError(why))

    def _refuse(self, ticket: Ticket, error: AjetError) -> None:
        self._waiting.discard(ticket)
        ticket.granted.set_exception(error)

    def _give(self, ticket: Ticket, builder: BatchBuilder) -> None:
        """Resolve a claim that has a slot."""
        try:
            granted = self._grant(ticket, builder)
        except (BusyError, AuthError) as error:
            ticket.granted.set_exception(error)
        else:
            ticket.granted.set_result(granted)

    def _grant(self, ticket: Ticket, builder: BatchBuilder) -> Granted:
        """Create the episode of a claim that has a slot."""
        request = ticket.request
        group = _group(request, ticket.client_id)
        version = self._board.policy_version
        episode_id = builder.new_id(group, request.kind, version)
        key = new_episode_key(episode_id, request.claim_id)
        record = EpisodeRecord(
            episode_id=episode_id,
            key_hash=hash_secret(key),
            task_id=request.task_id,
            group=group,
            kind=request.kind,
            tag=request.tag,
            client_id=ticket.client_id,
            claim_version=version,
            lease_seconds=request.lease_seconds,
            heartbeat_seconds=request.heartbeat_seconds,
            created_at=self._wall_clock(),
            claim_hash=hash_secret(request.claim_id) if request.claim_id is not None else "",
            rules=_rules(request, builder.slots.rules),
            joint=JointRecord(**dict(request.joint)) if request.joint is not None else None,
        )
        self._tenants.open(record)
        if record.kind == "train":
            builder.opened(record)
        return Granted(record, key)


def _rules(request: ClaimRequest, of_run: CallRules) -> dict[str, Any]:
    """Return the rules of an episode, those of the run where its claim has none."""
    if request.kind == "eval":
        # `EvaluationConfig.sampling` applies to it.
        of_run = of_run.model_copy(update={"sampling": CallSampling()})
    # Agents of the run apply to all its episodes, and need no copies in their records.
    of_run = of_run.model_copy(update={"agents": {}, "untrained_agents": ()})
    rules = set(CallRules.model_fields)
    own, others = (
        r.model_dump(mode="json", include=rules, exclude_defaults=True) for r in (request, of_run)
    )
    sampling = {**others.pop("sampling", {}), **own.pop("sampling", {})}
    return {**others, **own, **({"sampling": sampling} if sampling else {})}


def _group(request: ClaimRequest, client_id: str) -> str:
    return stored_group(client_id, request.group or request.task_id)
