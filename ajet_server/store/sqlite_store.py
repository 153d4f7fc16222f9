"""The default sample store: one SQLite file in write-ahead mode, with group commits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from ajet_core.errors import StoreError
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
    WorkerContext,
)
from ajet_core.timeline import Call
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store import codec, reading
from ajet_server.store.file_lock import FileLock
from ajet_server.store.group_commit import GroupCommitter
from ajet_server.store.schema import (
    UNDECODABLE,
    connect_beside_server,
    connect_reader,
    connect_writer,
    damaged_record,
    ends_transaction,
    store_error,
)
from ajet_server.store.writing import StoreWriter

__all__ = ["SqliteStore"]

_log = logging.getLogger("ajet.server")

T = TypeVar("T")

# The number of episodes read at once: enough to make pages cheap, few enough for memory.
_PAGE = 512


@dataclass(frozen=True, slots=True)
class _Writing:
    """The parts of a store that is open for writing."""

    writer: StoreWriter
    committer: GroupCommitter
    connection: sqlite3.Connection
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


@dataclass(frozen=True, slots=True)
class _Opened:
    connection: sqlite3.Connection
    thread: ThreadPoolExecutor
    writing: _Writing | None


class SqliteStore(SampleStore[SqliteStoreSettings]):
    """Stores all records of a run in ``<run_dir>/samples.sqlite3``.

    Writes of concurrent callers share transactions (`GroupCommitter`). Prompts are stored as the
    difference from the call they continue, so that a conversation takes space linear in its tokens.
    Reads use a separate connection and see everything that was acknowledged.
    """

    def __init__(self, settings: SqliteStoreSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._path = context.run_dir / settings.file
        self._lock = FileLock(self._path.with_name(f"{self._path.name}.lock"))
        self._opened: _Opened | None = None

    @property
    def transactions(self) -> int:
        """The number of transactions committed since the store was opened."""
        return self._need_writing().committer.transactions

    async def open(self, *, read_only: bool = False) -> None:
        """Open the database; without `read_only` it is created if it does not exist.

        :raises StoreError: it is already open, here or in another process, or it cannot be used.
        """
        if self._opened is not None:
            raise StoreError(f"the store {self._path} is already open")
        writing = None
        if read_only:
            connection = await asyncio.to_thread(connect_beside_server, self._path)
        else:
            writer, write_connection, connection = await asyncio.to_thread(self._connect)
            committer = GroupCommitter(
                write_connection, writer, fatal=ends_transaction, translate=self._translate
            )
            writing = _Writing(writer, committer, write_connection)
        self._opened = _Opened(connection, ThreadPoolExecutor(1, "store-reader"), writing)

    async def close(self) -> None:
        """Commit all requested writes, and close; no effect on a store that is not open."""
        opened, self._opened = self._opened, None
        if opened is not None:
            if opened.writing is not None:
                if opened.writing.packing:
                    await asyncio.wait(opened.writing.packing.values())
                await opened.writing.committer.close()
            await asyncio.to_thread(self._disconnect, opened)

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
            await writing.committer.write(functools.partial(writing.writer.append, records))

    async def _append_later(self, writing: _Writing, call: Call) -> None:
        """Append a call after its base, which its row refers to, packed if it is large."""
        if call.base is not None and (base := writing.packing.get(call.base.call_id)) is not None:
            await asyncio.wait([base])
        packed = (
            await asyncio.to_thread(codec.LargeCall.pack, call) if codec.is_large(call) else call
        )
        await writing.committer.write(functools.partial(writing.writer.append, (packed,)))

    async def get_run(self) -> RunRecord | None:
        """Return the run, None if none was configured."""
        return await self._read(reading.run)

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode, None if it is unknown."""
        return await self._read(lambda connection: reading.episode(connection, episode_id))

    async def episodes(self, query: EpisodeQuery = ALL_EPISODES) -> AsyncIterator[EpisodeRecord]:
        """Yield episodes in the order of their claims, read in pages."""
        after: int | None = None
        while True:
            page = await self._read(
                functools.partial(reading.episode_rows, query=query, after=after, limit=_PAGE)
            )
            for _, row in page:
                try:
                    episode = codec.episode_from_row(row)
                except UNDECODABLE as error:
                    why = damaged_record(error, self._path).message
                    _log.error("episode %r is skipped: %s", row[0], why)
                    continue
                yield episode
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Return calls by episode."""
        return await self._read(lambda connection: reading.calls(connection, episode_ids))

    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """Return the latest score of each call of an episode, by call id."""
        return await self._read(lambda connection: reading.scores(connection, episode_id))

    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Return batches of later steps in order of step: those to train, or those refused."""
        return await self._read(lambda connection: reading.batches(connection, after_step, refused))

    async def steps(self) -> list[StepRecord]:
        """Return all finished steps in order."""
        return await self._read(reading.steps)

    async def call_totals(self) -> CallTotals:
        """Return running totals; no table is scanned."""
        opened = self._need_open()
        if opened.writing is None:
            return await self._read(reading.call_totals)
        return CallTotals(**opened.writing.writer.totals)

    def _need_open(self) -> _Opened:
        if self._opened is None:
            raise StoreError(f"the store {self._path} is not open")
        return self._opened

    def _need_writing(self) -> _Writing:
        writing = self._need_open().writing
        if writing is None:
            raise StoreError(f"the store {self._path} is open for reading only")
        return writing

    def _translate(self, error: sqlite3.Error) -> StoreError:
        return store_error(error, self._path)

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        opened = self._need_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(opened.thread, self._snapshot, opened.connection, query)

    def _snapshot(
        self, connection: sqlite3.Connection, query: Callable[[sqlite3.Connection], T]
    ) -> T:
        """Run `query`'s statements on one snapshot of the database."""
        try:
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._translate(error) from error
        except UNDECODABLE as error:
            raise damaged_record(error, self._path) from error

    def _connect(self) -> tuple[StoreWriter, sqlite3.Connection, sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create the run directory: {error}") from error
        with contextlib.ExitStack() as undo:
            self._lock.acquire()
            undo.callback(self._lock.release)
            writing = connect_writer(self._path, self.settings)
            undo.callback(writing.close)
            reader = connect_reader(self._path, self.settings)
            undo.callback(reader.close)
            try:
                writer = StoreWriter(writing)
            except sqlite3.Error as error:
                raise self._translate(error) from error
            except UNDECODABLE as error:
                raise damaged_record(error, self._path) from error
            undo.pop_all()
        return writer, writing, reader

    def _disconnect(self, opened: _Opened) -> None:
        opened.thread.shutdown(wait=True)
        opened.connection.close()
        if opened.writing is not None:
            # The last connection to close merges the write-ahead log into the database.
            opened.writing.connection.close()
            self._lock.release()
