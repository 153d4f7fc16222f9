"""Rolling out: episodes run until there is a batch to train, unless the run is paused or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Set
from typing import Any

from ajet_core.interfaces import BatchRecord, EpisodeRecord
from ajet_core.protocol import MixtureConfig, RunConfig, ServerState, SetAside
from ajet_server.admission.batching import BatchBuilder
from ajet_server.admission.places import Places
from ajet_server.admission.tag_watch import TagKeeper
from ajet_server.batches.sharing import Sharing
from ajet_server.episodes.set_aside import TaskFailures
from ajet_server.observe.failures import FailureMeter
from ajet_server.run.run_parts import RunParts
from ajet_server.workers.supervision import Supervisor

_log = logging.getLogger("ajet.server")


class Rollouts:
    """Batches of a run, each as soon as it is full.

    :param supervisor: raises what happens to the workers while a batch is waited for.
    :param sharing: whose failures pause the run.
    :param paused: why the run is not to roll yet, "" if it is.
    :param pausing: told when `paused` changes by itself; awaited before the change is seen.
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
        self._task_failures = TaskFailures(config.batch.max_aborts_per_task)
        self._mixture = config.mixture
        self._pausing = pausing
        self._paused = paused
        self._stop_requested = False
        self._leaving = False
        self._late_since: float | None = None

    @property
    def paused(self) -> str:
        """Why no episodes are given out, "" if they are."""
        return self._paused

    @property
    def stop_requested(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_requested

    @property
    def over(self) -> bool:
        """Whether no more batches are given out, for now or for good."""
        return self._stop_requested or self._leaving

    @property
    def rolls_on(self) -> bool:
        """Whether rollouts go on while a step is trained."""
        return self._config.rollout.mode == "async"

    @property
    def late_waited(self) -> float | None:
        """Seconds for which a complete batch has waited for tasks that would be too old for the next one; None if none does."""
        return None if self._late_since is None else self._parts.clock() - self._late_since

    @property
    def set_aside(self) -> list[SetAside]:
        """Tasks that are not tried any more."""
        return list(self._task_failures)

    @property
    def clients_set_aside(self) -> Set[str]:
        """Clients of which no task is tried any more."""
        return self._task_failures.clients

    def pause(self, reason: str) -> None:
        """Give out no more episodes and no more batches."""
        self._paused = reason
        self._show_pause()

    async def pause_itself(self, reason: str) -> None:
        """Pause because of what happened, and not because somebody asked for it."""
        await self._pausing(reason)
        self.pause(reason)
        _log.error("paused: %s", reason)
        self._events.emit("run", {"what": "paused", "reason": reason})

    def set_client_aside(self, client_id: str, reason: str) -> None:
        """Give out no more train episodes to a client, and train none of it, until `resume`."""
        aside = self._task_failures.set_client_aside(client_id, reason)
        _log.error("client %s is set aside: %s", client_id, reason)
        self._admission.set_aside(aside, self._task_failures.refusal(client_id, "") or "")

    def resume(self) -> None:
        """Undo `pause`; tasks and clients that were set aside get another chance."""
        self._paused = ""
        self._failures.forget()
        self._admission.readmit()
        self._show_pause()

    def stop(self) -> None:
        """Give out no more batches."""
        self._stop_requested = True
        self._board.touch()

    def leave(self, *, leaving: bool) -> None:
        """Give out no more batches until this is undone."""
        self._leaving = leaving
        self._board.touch()

    def change_mixture(self, mixture: MixtureConfig) -> None:
        """Have another mixture from the next batch on."""
        self._mixture = mixture
        self._admission.change_mixture(mixture)
        self._events.emit("mixture", {"what": "changed", "ratios": dict(mixture.ratios)})
        # Who waits for a tag that is gone need not wait any longer.
        self._admission.admit()

    def stepped(self) -> None:
        """Everybody is about to hear that a step was trained: who changes the mixture then means the batch after next."""
        self._admission.settle()

    def episode_finished(self, record: EpisodeRecord) -> None:
        """Take notice of an episode's outcome."""
        self._failures.note(record)
        if record.kind == "train":
            self._sharing.seen(record.client_id)

    @contextlib.asynccontextmanager
    async def batches(self, step: int, credit: dict[str, float]) -> AsyncIterator[BatchBuilder]:
        """While the context is open, episodes fill batches.

        :param step: that the first of them is for.
        :param credit: of the mixture's tags, as it was after the batch before.
        """
        config = self._config
        places = Places(config.batch, config.rollout, self._mixture, step=step, credit=credit)
        builder = BatchBuilder(config.batch, self._task_failures, places)
        self._episodes.begin(builder)
        if self._mixture is not None:
            # It may have been changed while the builder was being made ready.
            builder.change_mixture(self._mixture)
        keeper = TagKeeper(builder, self._admission, self._board, self._events, self._parts.clock)
        watch = asyncio.create_task(keeper.keep())
        try:
            yield builder
        finally:
            watch.cancel()

    async def next_queued(self, queued: list[BatchRecord]) -> BatchRecord | None:
        """The first of the batches that wait, once the run is not paused; None if it is to stop."""
        goes_on = await self._wait(lambda: not self._held)
        return queued.pop(0) if goes_on else None

    async def fill(self, builder: BatchBuilder, step: int) -> BatchRecord | None:
        """Let episodes run until the batch of `step` is full; it is durable then. None if the run is to stop."""
        builder.places.begin(step)
        self._supervisor.begin_rolling()
        if self.rolls_on:
            # Also when there is a full batch already.
            self._board.set(self._rolling_state())
        if not await self._full(builder):
            return None
        if not self.rolls_on:
            self._board.set(ServerState.ROLLING_POST)
            if self._config.rollout.late == "drop":
                # Before the batch is made, so that what their tasks have is not carried over without them.
                builder.drain()
                await self._episodes.drop_late(
                    f"it was late: the batch of step {step} was made without it (setting rollout.late)"
                )
        taken = builder.take()
        # Whoever waits for a task that was complete may begin it anew.
        self._admission.admit()
        record = BatchRecord(
            secrets.token_hex(8),
            step,
            taken.ended,
            self._parts.wall_clock(),
            aborted_ids=taken.aborted,
            credit=builder.places.credit,
        )
        await self._parts.store.add_batch(record)
        return record

    async def trained(self, builder: BatchBuilder, step: int) -> None:
        """Take notice that `step` was trained: there are places again, and what is too old by now is aborted."""
        builder.trained()
        most = self._config.rollout.max_staleness
        await self._episodes.drop_late(
            f"it was late: it was claimed with weights that are more than {most} steps older than those that step "
            f"{step + 1} is trained on (setting rollout.max_staleness)",
            before=step - most,
        )
        self._admission.admit()
        if self.rolls_on:
            # No change of state tells that there was a step.
            self._board.touch()

    async def _full(self, builder: BatchBuilder) -> bool:
        """Return once there is a batch to train, and what was late had its time; False if the run is to stop."""
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
        # It may have been paused meanwhile.
        return await self._wait(lambda: self._ready(builder))

    async def _wait_for_late(self, builder: BatchBuilder) -> None:
        """Return once the batch waits for nobody, or it or the run is no longer as it was; what does not end is aborted."""
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
        # Before anything is aborted, or the same tasks would be begun anew and waited for again.
        builder.drain()
        reason = (
            f"it was late: the batch of step {builder.places.step} was complete and waited {seconds:g} s for its task, "
            "which would be too old for the next batch (setting rollout.late_seconds)"
        )
        for episode_id in builder.awaited():
            await self._episodes.drop(episode_id, reason, "late")

    async def _within(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait until `done`, over as many looks at the workers as that takes; False if the time was over first."""
        try:
            async with asyncio.timeout(seconds):
                while not done():
                    await self._supervisor.wait_until(done)
        except TimeoutError:
            return False
        return True

    async def _wait(self, ready: Callable[[], bool]) -> bool:
        """ROLLING or PAUSED until there is something to train; False if the run is to stop."""

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
        """Whether there is a batch to train, with nothing against it."""
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
