"""Rollouts: run episodes until a batch is full, unless the run is paused or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Set
from typing import Any

from ajet_core.interfaces import BatchRecord, EpisodeRecord
from ajet_core.protocol import MixtureConfig, Quarantine, RunConfig, ServerState
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.draws import Draws
from ajet_server.admission.quarantine import TaskFailures
from ajet_server.admission.slots import Slots
from ajet_server.admission.tag_watch import TagKeeper
from ajet_server.batches.sharing import Sharing
from ajet_server.observe.failures import FailureMeter
from ajet_server.run.run_parts import RunParts
from ajet_server.run.supervision import Supervisor

_log = logging.getLogger("ajet.server")


class Rollouts:
    """Produces the batches of a run.

    :param supervisor: raises worker failures while this object waits for a batch.
    :param sharing: the clients whose failures can pause the run.
    :param paused: why the run is paused, "" if it is not.
    :param pausing: awaited before the run pauses itself, with the reason.
    """

    def __init__(
        self,
        config: RunConfig,
        parts: RunParts,
        supervisor: Supervisor,
        sharing: Sharing,
        *,
        paused: str,
        pausing: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._config = config
        self._parts = parts
        self._board, self._events = parts.board, parts.events
        self._episodes, self._admission = parts.episodes, parts.admission
        self._supervisor = supervisor
        self._sharing = sharing
        self._failures = FailureMeter(config.failures, sharing.others)
        self._draws = Draws(config.seed) if config.exact else None
        self._task_failures = TaskFailures(config.batch.max_aborts_per_task)
        self._mixture = config.mixture
        self._pausing = pausing
        self._paused = paused
        self._stop_requested = False
        self._leaving = False
        self._late_since: float | None = None

    @property
    def paused(self) -> str:
        """Why no episodes start, "" if they do."""
        return self._paused

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_requested

    @property
    def over(self) -> bool:
        """Whether no more batches are produced, for now or for good."""
        return self._stop_requested or self._leaving

    @property
    def rolls_on(self) -> bool:
        """Whether rollouts continue while a step is trained."""
        return self._config.rollout.mode == "async"

    @property
    def late_waited(self) -> float | None:
        """Seconds for which a complete batch has waited for late tasks; None if none waits."""
        return None if self._late_since is None else self._parts.clock() - self._late_since

    @property
    def quarantined(self) -> list[Quarantine]:
        """The tasks and clients that are quarantined."""
        return list(self._task_failures)

    @property
    def quarantined_clients(self) -> Set[str]:
        """Ids of the clients that are quarantined with all their tasks."""
        return self._task_failures.clients

    def pause(self, reason: str) -> None:
        """Start no more episodes, and produce no more batches."""
        self._paused = reason
        self._show_pause()

    async def pause_itself(self, reason: str) -> None:
        """Pause without a request by an operator."""
        await self._pausing(reason)
        self.pause(reason)
        _log.error("paused: %s", reason)
        self._events.emit("run", {"what": "paused", "reason": reason})

    def quarantine_client(self, client_id: str, reason: str) -> None:
        """Stop starting and training a client's train episodes until `resume`."""
        entry = self._task_failures.quarantine_client(client_id, reason)
        _log.error("client %s is quarantined: %s", client_id, reason)
        self._admission.quarantine(entry, self._task_failures.refusal(client_id, "") or "")

    def resume(self) -> None:
        """Undo `pause`; tasks and clients that were quarantined may be tried again."""
        self._paused = ""
        self._failures.forget()
        self._admission.readmit()
        self._show_pause()

    def stop(self) -> None:
        """Produce no more batches."""
        self._stop_requested = True
        self._board.touch()

    def leave(self, *, leaving: bool) -> None:
        """Produce no more batches while `leaving` is set."""
        self._leaving = leaving
        self._board.touch()

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Use another mixture from the next batch on."""
        self._mixture = mixture
        self._admission.change_mixture(mixture)
        self._events.emit("mixture", {"what": "changed", "ratios": dict(mixture.ratios)})
        # This also rejects the claims for tags that have left the mixture.
        self._admission.admit()

    def stepped(self) -> None:
        """Freeze the mixture of the next batch before a step is announced.

        Changes of the mixture in response to the step then apply from the batch after it.
        """
        self._admission.settle()

    def episode_finished(self, record: EpisodeRecord) -> None:
        """Record an episode's outcome."""
        self._failures.note(record)
        if record.kind == "train":
            self._sharing.seen(record.client_id)

    @contextlib.asynccontextmanager
    async def batches(self, step: int, credit: dict[str, float]) -> AsyncIterator[BatchBuilder]:
        """Fill batches with episodes while the context is open.

        :param step: the step of the first batch.
        :param credit: of the mixture's tags, as it was after the previous batch.
        """
        config = self._config
        slots = Slots(config.batch, config.rollout, self._mixture, step=step, credit=credit)
        if self._draws is not None:
            records = await self._parts.store.episodes()
            evaluated = (r for r in records if r.kind == "eval" and r.state != "aborted")
            self._draws.restore(record.episode_id for record in evaluated)
        builder = BatchBuilder(config.batch, self._task_failures, slots, self._draws)
        self._episodes.begin(builder)
        if self._mixture is not None:
            # The mixture may have changed while the builder was restored.
            builder.change_mixture(self._mixture)
        keeper = TagKeeper(
            builder,
            self._admission,
            self._board,
            self._events,
            wanted=self._parts.episodes.wanted_tags,
            clock=self._parts.clock,
        )
        watch = asyncio.create_task(keeper.keep())
        try:
            yield builder
        finally:
            watch.cancel()

    async def next_queued(self, queued: list[BatchRecord]) -> BatchRecord | None:
        """Return the first queued batch once the run is not paused; None if it is to stop."""
        goes_on = await self._wait(lambda: not self._held)
        return queued.pop(0) if goes_on else None

    async def fill(
        self, builder: BatchBuilder, step: int, taking: Callable[[], None]
    ) -> BatchRecord | None:
        """Run episodes until the batch of `step` is full; store it. None if the run is to stop.

        :param taking: called when the batch is full, before the next one begins to fill.
        """
        builder.slots.begin(step)
        self._supervisor.begin_rolling()
        if self.rolls_on:
            # Set the state even if there is a full batch already.
            self._board.set(self._rolling_state())
        if not await self._full(builder):
            return None
        if not self.rolls_on:
            self._board.set(ServerState.ROLLING_POST)
            if self._config.rollout.late == "drop":
                # Abort before the batch is made: otherwise the ended episodes of their tasks would
                # be carried over without them.
                builder.drain()
                await self._episodes.drop_late(
                    f"it was late: the batch of step {step} was trained without it (setting "
                    "rollout.late)"
                )
        taking()
        taken = builder.take()
        if self._config.exact:
            # Ids of exact runs are the same in all runs, but episodes end in any order.
            taken.ended.sort()
        # Claims for a task that was complete may start it again.
        self._admission.admit()
        record = BatchRecord(
            secrets.token_hex(8),
            step,
            taken.ended,
            self._parts.wall_clock(),
            aborted_ids=taken.aborted,
            credit=builder.slots.credit,
        )
        await self._parts.store.add_batch(record)
        return record

    async def trained(self, builder: BatchBuilder, step: int) -> None:
        """Record that `step` was trained: free its slots, and abort episodes that are too old."""
        builder.trained()
        most = self._config.rollout.max_staleness
        await self._episodes.drop_late(
            f"it was late: the weights at its claim are more than {most} steps older than "
            f"those that step {step + 1} trains (setting rollout.max_staleness)",
            before=step - most,
        )
        self._admission.admit()
        if self.rolls_on:
            # No change of state announces the step, so wake the waiters here.
            self._board.touch()

    async def _full(self, builder: BatchBuilder) -> bool:
        """Wait until there is a batch to train; False if the run is to stop."""
        rollout = self._config.rollout
        while not self._ready(builder):
            if not await self._wait(lambda: builder.is_complete() and not self._held):
                return False
            await self._wait_for_late(builder)
        if not rollout.drain_seconds or not builder.progress().open_episodes:
            return not self.over
        builder.drain()
        await self._within(
            rollout.drain_seconds, lambda: self.over or not builder.progress().open_episodes
        )
        # The run may have been paused meanwhile.
        return await self._wait(lambda: self._ready(builder))

    async def _wait_for_late(self, builder: BatchBuilder) -> None:
        """Wait for late tasks of a complete batch, and abort them at the deadline.

        Return early if the batch is full, or if the batch or the run changes otherwise.
        """
        if builder.is_full():
            return
        seconds = self._config.rollout.late_seconds
        self._board.set(self._rolling_state())
        self._late_since = self._parts.clock()
        try:
            in_time = await self._within(
                seconds,
                lambda: self.over or self._held or not builder.is_complete() or builder.is_full(),
            )
        finally:
            self._late_since = None
        if in_time:
            return
        # Drain first, or the same tasks would start again and be waited for again.
        builder.drain()
        reason = (
            f"it was late: the batch of step {builder.slots.step} was complete and waited "
            f"{seconds:g} s for its task, which would be too old for the next batch (setting "
            "rollout.late_seconds)"
        )
        for episode_id in builder.awaited():
            await self._episodes.drop(episode_id, reason, "late")

    async def _within(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait until `done` while supervising the workers; False if the time ran out first."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    await self._supervisor.wait_until(done)
        except TimeoutError:
            return False
        return True

    async def _wait(self, ready: Callable[[], bool]) -> bool:
        """Stay ROLLING or PAUSED until there is something to train; False if the run is to stop."""

        def goes_on() -> bool:
            return (
                self.over
                or self._board.state is not self._rolling_state()
                or (self._failures.too_many and not self._paused)
                or ready()
            )

        while not (self.over or ready()):
            if self._failures.too_many and not self._paused:
                await self.pause_itself(self._failures.diagnosis())
            self._board.set(self._rolling_state())
            await self._supervisor.wait_until(goes_on)
        return not self.over

    def _ready(self, builder: BatchBuilder) -> bool:
        """Return whether a batch can be trained now."""
        return builder.is_full() and not self._held

    @property
    def _held(self) -> bool:
        return bool(self._paused) or self._failures.too_many

    def _show_pause(self) -> None:
        if self._board.state in {ServerState.ROLLING, ServerState.PAUSED}:
            self._board.set(self._rolling_state())
        self._board.touch()

    def _rolling_state(self) -> ServerState:
        return ServerState.PAUSED if self._paused else ServerState.ROLLING
