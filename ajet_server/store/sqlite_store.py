"""The default sample store: one SQLite file in write-ahead mode, with group commits."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ajet_core.errors import StoreError
from ajet_core.interfaces import CallTotals, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.file_lock import FileLock
from ajet_server.store.schema import (
    connect_beside_server,
    connect_reader,
    connect_writer,
    store_error,
)
from ajet_server.store.writing import StoreWriter
from ajet_stores import codec
from ajet_stores.sql_reading import Execute
from ajet_stores.sql_store import SqlStore, Write

__all__ = ["SqliteStore"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Connections:
    reader: sqlite3.Connection
    writer: StoreWriter | None = None
    writing: sqlite3.Connection | None = None


class SqliteStore(SqlStore[SqliteStoreSettings]):
    """Stores all records of a run in ``<run_dir>/samples.sqlite3``.

    Reads use a separate connection.
    """

    def __init__(self, settings: SqliteStoreSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._path = context.run_dir / settings.file
        self._lock = FileLock(self._path.with_name(f"{self._path.name}.lock"))
        self._connections: _Connections | None = None

    @property
    def place(self) -> str:
        """The file, for messages."""
        return f"the store {self._path}"

    async def call_totals(self) -> CallTotals:
        """Return running totals; no table is scanned."""
        if self.writes and (writer := self._connected.writer) is not None:
            return CallTotals(**writer.totals)
        return await super().call_totals()

    def connect(self, *, read_only: bool) -> None:
        """Open the database, for writing together with its lock."""
        if read_only:
            self._connections = _Connections(connect_beside_server(self._path))
            return
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
                writer = StoreWriter(writing, self._path)
            except sqlite3.Error as error:
                raise store_error(error, self._path) from error
            except codec.UNDECODABLE as error:
                raise self.damaged(error) from error
            undo.pop_all()
        self._connections = _Connections(reader, writer, writing)

    def disconnect(self) -> None:
        """Close the database."""
        opened, self._connections = self._connected, None
        opened.reader.close()
        if opened.writing is not None:
            # The last connection to close merges the write-ahead log into the database.
            opened.writing.close()
            self._lock.release()

    def commit(self, writes: Sequence[Write]) -> Sequence[Exception | None]:
        """Commit writes, as `StoreWriter.commit` does."""
        writer = self._connected.writer
        assert writer is not None, "a store that is open for reading commits nothing"
        return writer.commit(writes)

    def snapshot(self, query: Callable[[Execute], T]) -> T:
        """Run the statements of a query on one snapshot of the database."""
        connection = self._connected.reader
        try:
            connection.execute("BEGIN")
            try:
                return query(connection.execute)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error

    @property
    def _connected(self) -> _Connections:
        assert self._connections is not None, "the methods are called while the store is open"
        return self._connections
