"""Calls a sample store for the server: repeats what fails for a while, and reports its errors."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ajet_core.errors import AjetError, StoreError, StoreFullError, StoreUnavailableError
from ajet_core.interfaces import (
    ALL_EPISODES,
    BatchRecord,
    CallScore,
    CallTotals,
    EpisodeQuery,
    EpisodeRecord,
    Record,
    RunRecord,
    SampleStore,
    StepRecord,
)
from ajet_core.timeline import Call

__all__ = ["RETRY_SECONDS", "PatientStore", "StoreTrouble"]

_log = logging.getLogger("ajet.server")

T = TypeVar("T")

RETRY_SECONDS = 30.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_APPEND = "append"
# An operation that takes longer is reported.
_SLOW_SECONDS = 10.0
# The seconds after which a client should repeat a request that failed.
_RETRY_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """What is wrong with a store at present.

    :param seconds: since it began.
    """

    code: str
    message: str
    seconds: float


class PatientStore(SampleStore):
    """A sample store that waits while the store behind it is unavailable.

    An operation that raises `StoreUnavailableError` is repeated, with growing pauses, until the
    store has been unavailable for `retry_seconds`; from then on, each operation is tried once.
    Whether a failed write was carried out is unknown, so it is repeated only if the store has none
    of its new calls and episodes. If the store is full, nothing is repeated.

    Unexpected exceptions of a plugin become `StoreError`, which names the store.

    :param name: names the store and its plugin in messages.
    """

    def __init__(
        self,
        store: SampleStore,
        name: str,
        *,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(store.settings, store.context)
        self._store = store
        self._name = name
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._sleep = sleep
        self._closing = False
        # By operation: when it began, and its name.
        self._pending: dict[int, tuple[float, str]] = {}
        self._numbers = itertools.count()
        # Whether writes or reads fail (the keys): since when, and the time and text of the last.
        self._failing: dict[bool, tuple[float, float, str]] = {}
        self._logged: set[tuple[str, str]] = set()

    @property
    def trouble(self) -> StoreTrouble | None:
        """What is wrong with the store, None if nothing is."""
        now = self._clock()
        for since, _, error in self._failing.values():
            message = f"{self._name} cannot be used: {error}"
            return StoreTrouble("store_unavailable", message, now - since)
        for began, what in self._pending.values():
            if (seconds := now - began) > _SLOW_SECONDS:
                message = f"{self._name} has not answered {what} for {seconds:.0f} s"
                return StoreTrouble("store_slow", message, seconds)
            break
        return None

    def hurry(self) -> None:
        """Repeat nothing from now on: the server is about to end."""
        self._closing = True

    async def open(self, *, read_only: bool = False) -> None:
        """Open the store."""
        self._closing = False
        await self._call("open", lambda: self._store.open(read_only=read_only))

    async def close(self) -> None:
        """Close the store."""
        self.hurry()
        await self._call("close", self._store.close)

    async def append(self, *records: Record) -> None:
        """Write records, as `SampleStore.append` does."""
        doubtful = False

        async def write() -> None:
            nonlocal doubtful
            if doubtful and await self._has_new(records):
                return
            try:
                await self._store.append(*records)
            except StoreFullError:
                raise
            except StoreUnavailableError:
                doubtful = True
                raise
            except StoreError:
                # The attempt before may have been carried out in the meantime.
                if doubtful and await self._has_new(records):
                    return
                raise

        first = type(records[0]).__name__ if records else ""
        await self._call(f"{_APPEND} of {first}", write)

    async def _has_new(self, records: Sequence[Record]) -> bool:
        """Return whether the store has the records of a write whose result is unknown.

        All records of a write are in the store or none is. A write without new records can be
        repeated, because its records replace themselves.
        """
        for record in records:
            if isinstance(record, EpisodeRecord) and record.state == "open":
                return await self._store.get_episode(record.episode_id) is not None
            if isinstance(record, Call):
                stored = await self._store.calls([record.episode_id])
                return any(call.call_id == record.call_id for call in stored[record.episode_id])
        return False

    async def get_run(self) -> RunRecord | None:
        """Return the run, as `SampleStore.get_run` does."""
        return await self._call("get_run", self._store.get_run)

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode, as `SampleStore.get_episode` does."""
        return await self._call("get_episode", lambda: self._store.get_episode(episode_id))

    async def episodes(self, query: EpisodeQuery = ALL_EPISODES) -> AsyncIterator[EpisodeRecord]:
        """Yield episodes, as `SampleStore.episodes` does.

        An iteration that fails is begun again, without the episodes that it has yielded.
        """
        begun: AsyncIterator[EpisodeRecord] | None = None
        yielded: set[str] = set()

        async def following() -> EpisodeRecord | None:
            nonlocal begun
            reading = begun or aiter(self._store.episodes(query))
            # An iterator that has failed cannot be continued.
            begun = None
            async for episode in reading:
                if episode.episode_id not in yielded:
                    begun = reading
                    return episode
            return None

        while (episode := await self._call("episodes", following)) is not None:
            yielded.add(episode.episode_id)
            yield episode

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Return calls, as `SampleStore.calls` does."""
        return await self._call("calls", lambda: self._store.calls(episode_ids))

    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """Return scores, as `SampleStore.scores` does."""
        return await self._call("scores", lambda: self._store.scores(episode_id))

    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Return batches, as `SampleStore.batches` does."""
        return await self._call(
            "batches", lambda: self._store.batches(after_step=after_step, refused=refused)
        )

    async def steps(self) -> list[StepRecord]:
        """Return all finished steps, as `SampleStore.steps` does."""
        return await self._call("steps", self._store.steps)

    async def call_totals(self) -> CallTotals:
        """Return totals, as `SampleStore.call_totals` does."""
        return await self._call("call_totals", self._store.call_totals)

    async def _call(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an operation, repeated while the store is unavailable."""
        began = self._clock()
        number = next(self._numbers)
        self._pending[number] = (began, what)
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    result = await operation()
                except StoreUnavailableError as error:
                    self._failed(what, error)
                    since, *_ = self._failing[_writes(what)]
                    over = self._clock() + pause - since > self._retry_seconds
                    if over or self._closing or isinstance(error, StoreFullError):
                        error.retry_after = error.retry_after or _RETRY_AFTER
                        raise
                except AjetError as error:
                    if isinstance(error, StoreError):
                        self._note(what, error)
                    raise
                # Library code may also call `sys.exit`.
                except (Exception, SystemExit) as error:
                    raise self._unexpected(what, error) from error
                else:
                    if self._failing:
                        self._recovered(what)
                    return result
                await self._sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            del self._pending[number]

    def _failed(self, what: str, error: StoreUnavailableError) -> None:
        now = self._clock()
        since, last, _ = self._failing.get(_writes(what), (now, now, ""))
        if now - last > self._retry_seconds + _SLOW_SECONDS:
            # Nothing was tried for long, so this is another outage.
            since = now
        if since == now:
            _log.error("%s cannot be used (%s): %s", self._name, what, error.message)
        self._failing[_writes(what)] = (since, now, error.message)

    def _recovered(self, what: str) -> None:
        # A full disk can still be read.
        failed = self._failing.pop(_writes(what), None)
        if failed is not None:
            seconds = self._clock() - failed[0]
            _log.warning("%s can be used again, after %.1f s (%s)", self._name, seconds, what)

    def _note(self, what: str, error: StoreError) -> None:
        """Log an operation's first error of each type."""
        kind = (what, type(error).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            _log.error("%s, %s: %s", self._name, what, error.message)

    def _unexpected(self, what: str, error: BaseException) -> StoreError:
        kind = (what, type(error).__name__)
        if kind not in self._logged:
            self._logged.add(kind)
            _log.error("%s, %s failed", self._name, what, exc_info=error)
        return StoreError(
            f"{self._name} failed in {what}, which is an error of the plugin: "
            f"{type(error).__name__}: {error}"
        )


def _writes(what: str) -> bool:
    return what.startswith(_APPEND)
