"""A sample store on a SQL database, of which a subclass provides the connections and the writes."""

from __future__ import annotations

import asyncio
import functools
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ajet_core.errors import DamagedRecordError, StoreError, StoreUnavailableError
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
from ajet_core.interfaces.context import SettingsT_co
from ajet_core.timeline import Call
from ajet_stores import codec, sql_reading
from ajet_stores.codec import LargeCall
from ajet_stores.group_commit import GroupCommitter, copy_error
from ajet_stores.sql_reading import Execute

__all__ = ["SqlStore", "Write"]

_log = logging.getLogger("ajet.server")

T = TypeVar("T")
Write = Sequence[Record | LargeCall]
"""The records of one append."""

# The number of episodes read at once: enough to make pages cheap, few enough for memory.
_PAGE = 512


@dataclass(frozen=True, slots=True)
class _Writing:
    """The parts of a store that is open for writing."""

    committer: GroupCommitter[Write]
    packing: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def waits(self, call: Call) -> bool:
        """Return whether a call cannot be handed to the committer at once."""
        based = call.base is not None and call.base.call_id in self.packing
        return based or codec.is_large(call)

    def keep(self, call: Call, task: asyncio.Task[None]) -> None:
        """Remember the task that writes a call until it is done."""
        self.packing[call.call_id] = task
        task.add_done_callback(lambda task: self._forget(call, task))

    def _forget(self, call: Call, task: asyncio.Task[None]) -> None:
        if self.packing.get(call.call_id) is task:
            del self.packing[call.call_id]
        # Its caller may have been cancelled.
        if not task.cancelled():
            task.exception()


class _Reading:
    """The thread that reads.

    Reads that were waiting when one of them found the store unavailable fail with it. So they do
    not each wait in turn for a database that does not answer.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "store-reader")
        # The number of reads that found the store unavailable, and the error of the last one.
        self._failures = 0
        self._failure = StoreUnavailableError("")

    async def run(self, read: Callable[[], T]) -> T:
        """Return the result of `read`, which is called in the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self._call, read, self._failures)

    def _call(self, read: Callable[[], T], failures: int) -> T:
        if self._failures != failures:
            raise copy_error(self._failure)
        try:
            return read()
        except StoreUnavailableError as error:
            self._failure = error
            self._failures += 1
            raise


@dataclass(frozen=True, slots=True)
class _Opened:
    reading: _Reading
    writing: _Writing | None


class SqlStore(SampleStore[SettingsT_co]):
    """A sample store made of blocking functions, which run in two threads.

    Writes of concurrent callers share transactions (`GroupCommitter`). Prompts are stored as the
    difference from the call they continue, so that a conversation takes space linear in its tokens.
    Reads use the SQL of `sql_reading` on the columns of `codec`, and see everything that was
    acknowledged.
    """

    _opened: _Opened | None = None

    @property
    @abstractmethod
    def place(self) -> str:
        """What the store is called in messages, such as its file."""

    @abstractmethod
    def connect(self, *, read_only: bool) -> None:
        """Connect to the database, and create its tables unless `read_only`; errors as `open`."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close all connections."""

    @abstractmethod
    def commit(self, writes: Sequence[Write]) -> Sequence[Exception | None]:
        """Commit writes in one transaction, each all or none; called in the writing thread.

        :return: for each write the error that made it fail alone, None for those that are durable.
        :raises StoreError: the transaction failed, with all writes.
        """

    @abstractmethod
    def snapshot(self, query: Callable[[Execute], T]) -> T:
        """Return the result of `query` on one snapshot of the database.

        Called in the reading thread. Errors of decoding pass through.

        :raises StoreError: the database failed.
        """

    @property
    def transactions(self) -> int:
        """The number of transactions committed since the store was opened."""
        return self._need_writing().committer.transactions

    @property
    def writes(self) -> bool:
        """Whether the store is open for writing.

        :raises StoreError: it is not open.
        """
        return self._need_open().writing is not None

    async def open(self, *, read_only: bool = False) -> None:
        """Open the database; without `read_only` it is created if it does not exist.

        :raises StoreError: it is already open, here or in another process, or it cannot be used.
        """
        if self._opened is not None:
            raise StoreError(f"{self.place} is already open")
        await asyncio.to_thread(self.connect, read_only=read_only)
        writing = None if read_only else _Writing(GroupCommitter(self.commit))
        self._opened = _Opened(_Reading(), writing)

    async def close(self) -> None:
        """Commit all requested writes, and close; no effect on a store that is not open."""
        opened, self._opened = self._opened, None
        if opened is not None:
            if opened.writing is not None:
                if opened.writing.packing:
                    await asyncio.wait(opened.writing.packing.values())
                await opened.writing.committer.close()
            await asyncio.to_thread(opened.reading.thread.shutdown)
            await asyncio.to_thread(self.disconnect)

    async def append(self, *records: Record) -> None:
        """Write records in one transaction, which other callers' records may share.

        A call with a long prompt is first packed in a thread, so that others do not wait for it.

        :raises StoreError: the write failed, for example because a token id exceeds 32 bits.
        """
        writing = self._need_writing()
        if len(records) == 1 and isinstance(call := records[0], Call) and writing.waits(call):
            task = asyncio.ensure_future(self._append_later(writing, call))
            writing.keep(call, task)
            # The write is carried out even if this is cancelled.
            await asyncio.shield(task)
        else:
            await writing.committer.write(records)

    async def _append_later(self, writing: _Writing, call: Call) -> None:
        """Append a call after its base, which its row refers to, packed if it is large."""
        if call.base is not None and (base := writing.packing.get(call.base.call_id)) is not None:
            await asyncio.wait([base])
        packed = await asyncio.to_thread(LargeCall.pack, call) if codec.is_large(call) else call
        await writing.committer.write((packed,))

    async def get_run(self) -> RunRecord | None:
        """Return the run, None if none was configured."""
        return await self._read(sql_reading.run)

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode, None if it is unknown."""
        return await self._read(lambda execute: sql_reading.episode(execute, episode_id))

    async def episodes(self, query: EpisodeQuery = ALL_EPISODES) -> AsyncIterator[EpisodeRecord]:
        """Yield episodes in the order of their claims, read in pages."""
        after: int | None = None
        while True:
            page = await self._read(
                functools.partial(sql_reading.episode_rows, query=query, after=after, limit=_PAGE)
            )
            for _, row in page:
                try:
                    episode = codec.episode_from_row(row)
                except codec.UNDECODABLE as error:
                    why = self.damaged(error).message
                    _log.error("episode %r is skipped: %s", row[0], why)
                    continue
                yield episode
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Return calls by episode."""
        return await self._read(lambda execute: sql_reading.calls(execute, episode_ids))

    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """Return the latest score of each call of an episode, by call id."""
        return await self._read(lambda execute: sql_reading.scores(execute, episode_id))

    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Return batches of later steps in order of step: those to train, or those refused."""
        return await self._read(lambda execute: sql_reading.batches(execute, after_step, refused))

    async def steps(self) -> list[StepRecord]:
        """Return all finished steps in order."""
        return await self._read(sql_reading.steps)

    async def call_totals(self) -> CallTotals:
        """Return running totals; no table is scanned."""
        return await self._read(sql_reading.call_totals)

    async def _read(self, query: Callable[[Execute], T]) -> T:
        return await self._need_open().reading.run(lambda: self._decoded(query))

    def _decoded(self, query: Callable[[Execute], T]) -> T:
        try:
            return self.snapshot(query)
        except codec.UNDECODABLE as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> DamagedRecordError:
        """Return the error for a row that cannot be decoded, although it can be read."""
        return DamagedRecordError(
            f"{self.place} contains a record that cannot be read ({type(error).__name__}: "
            f"{error}): restore it from a backup, or start with another run_dir"
        )

    def _need_open(self) -> _Opened:
        if self._opened is None:
            raise StoreError(f"{self.place} is not open")
        return self._opened

    def _need_writing(self) -> _Writing:
        writing = self._need_open().writing
        if writing is None:
            raise StoreError(f"{self.place} is open for reading only")
        return writing
