"""The store ``duckdb``."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb

from ajet_core.errors import StoreError, StoreFullError, StoreUnavailableError
from ajet_core.interfaces import WorkerContext
from ajet_duckdb.files import WriterLock, checkpointing, copy_database, sync_directory
from ajet_duckdb.schema import TABLES, VERSION
from ajet_duckdb.settings import DuckdbStoreSettings
from ajet_duckdb.writing import Writer
from ajet_stores.codec import Row
from ajet_stores.sql_reading import Execute
from ajet_stores.sql_store import SqlStore, Write

T = TypeVar("T")

_log = logging.getLogger("ajet_duckdb")
_MIB = 2**20
_FULL = ("No space left", "Disk quota exceeded", "File too large")
# After these errors DuckDB refuses everything until the database is opened again.
_FATAL = (
    duckdb.FatalException,
    duckdb.InternalException,
    duckdb.IOException,
    duckdb.ConnectionException,
    # DuckDB could not write the commit to its log.
    duckdb.TransactionException,
)


@dataclass(slots=True)
class _Opened:
    """An open database: the server's own, or a copy of it."""

    connection: duckdb.DuckDBPyConnection
    writer: Writer | None = None
    copy: tempfile.TemporaryDirectory[str] | None = None


class DuckdbStore(SqlStore[DuckdbStoreSettings]):
    """Stores all records of a run in a DuckDB database in the run directory.

    DuckDB lets no process open a database that another one writes, not even for reading. Tools
    therefore read a copy: see `files.copy_database`. The copy is made when the store is opened, so
    a tool sees what was acknowledged before.
    """

    def __init__(self, settings: DuckdbStoreSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._path = context.run_dir / settings.file
        self._lock = WriterLock(self._sibling("lock"))
        self._database: _Opened | None = None
        # Held while the database is opened again after a fatal error.
        self._opening = threading.Lock()
        self._unsynced_names = True

    @property
    def place(self) -> str:
        """The file, for messages."""
        return f"the store {self._path}"

    def connect(self, *, read_only: bool) -> None:
        """Open the database, for writing together with its lock."""
        if read_only:
            self._database = self._open_copy()
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise StoreError(f"cannot open {self.place}: {error}") from error
        try:
            self._database = self._open_own()
        except BaseException:
            self._lock.release()
            raise

    def disconnect(self) -> None:
        """Merge the log into the database, and close it."""
        opened, self._database = self._database, None
        try:
            if opened is not None:
                if opened.writer is not None:
                    with contextlib.suppress(duckdb.Error):
                        self._checkpoint(opened, wait=True)
                opened.connection.close()
                if opened.copy is not None:
                    opened.copy.cleanup()
        finally:
            self._lock.release()

    def commit(self, writes: Sequence[Write]) -> Sequence[Exception | None]:
        """Commit writes in one transaction.

        DuckDB has no savepoints. If a write fails, the transaction is undone and each write gets a
        transaction of its own, so that only those fail that cannot be written.
        """
        opened = self._ensure_open()
        assert opened.writer is not None, "a store that is open for reading commits nothing"
        try:
            opened.writer.write(writes)
        except _FATAL as error:
            raise self._failed(error) from error
        except Exception as error:  # noqa: BLE001 - any error may concern one write alone
            if len(writes) == 1:
                return [self._error_of_write(error)]
            return [self._commit_alone(write) for write in writes]
        self._after_commit(opened)
        return [None] * len(writes)

    def _commit_alone(self, write: Write) -> Exception | None:
        try:
            (error,) = self.commit([write])
        except StoreError as fatal:
            return fatal
        return error

    def snapshot(self, query: Callable[[Execute], T]) -> T:
        """Run the statements of a query on one snapshot of the database."""
        try:
            with self._ensure_open().connection.cursor() as cursor:

                def execute(statement: str, parameters: Sequence[object] = (), /) -> list[Row]:
                    return cursor.execute(statement, list(parameters)).fetchall()

                cursor.execute("BEGIN TRANSACTION READ ONLY")
                try:
                    return query(execute)
                finally:
                    with contextlib.suppress(duckdb.Error):
                        cursor.execute("ROLLBACK")
        except duckdb.Error as error:
            raise self._failed(error) from error

    def _open_own(self) -> _Opened:
        try:
            # Opening a database merges the log that a killed server left.
            with checkpointing(self._sibling("copying"), wait=True):
                connection = duckdb.connect(str(self._path), config=self._config())
                try:
                    self._create_tables(connection)
                    opened = _Opened(connection, Writer(connection))
                except BaseException:
                    connection.close()
                    raise
        except (duckdb.Error, OSError) as error:
            raise self._failed(error) from error
        self._unsynced_names = True
        return opened

    def _open_copy(self) -> _Opened:
        if not self._path.is_file():
            raise StoreError(f"there is no store {self._path}")
        copy = tempfile.TemporaryDirectory(prefix="ajet-duckdb-")
        try:
            path = copy_database(self._path, self._sibling("copying"), Path(copy.name))
            connection = duckdb.connect(str(path), read_only=True, config=self._config())
            try:
                self._check_version(connection)
            except BaseException:
                connection.close()
                raise
        except (duckdb.Error, OSError) as error:
            copy.cleanup()
            raise self._failed(error) from error
        except BaseException:
            copy.cleanup()
            raise
        return _Opened(connection, copy=copy)

    def _config(self) -> dict[str, str | bool | int | float | list[str]]:
        return {
            "threads": self.settings.threads,
            "memory_limit": f"{self.settings.memory_mib}MiB",
            # A checkpoint is only made under the lock that `copy_database` respects.
            "checkpoint_threshold": "1024TiB",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }

    def _create_tables(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        names = {name for (name,) in connection.execute("SHOW TABLES").fetchall()}
        if names:
            self._check_version(connection)
            return
        connection.execute("BEGIN")
        connection.execute(TABLES)
        connection.execute("INSERT INTO format VALUES (?)", [VERSION])
        connection.execute("COMMIT")

    def _check_version(self, connection: duckdb.DuckDBPyConnection) -> None:
        try:
            row = connection.execute("SELECT version FROM format").fetchone()
        except duckdb.CatalogException as error:
            raise StoreError(f"{self._path} is not a store of agentjet") from error
        if row != (VERSION,):
            found = "no version" if row is None else f"version {row[0]}"
            raise StoreError(
                f"{self.place} has {found} of the tables, and this ajet-store-duckdb knows version "
                f"{VERSION}: install another version of ajet-store-duckdb"
            )

    def _ensure_open(self) -> _Opened:
        """Return the database; after a fatal error it is opened again."""
        with self._opening:
            if self._database is None:
                self._database = self._open_own() if self.writes else self._open_copy()
            return self._database

    def _after_commit(self, opened: _Opened) -> None:
        """Do what the writes need, which are durable already but for a new file's name."""
        if self._unsynced_names:
            sync_directory(self._path.parent)
            self._unsynced_names = False
        with contextlib.suppress(FileNotFoundError):
            size = self._sibling("wal").stat().st_size
            if size > self.settings.checkpoint_mib * _MIB:
                try:
                    self._checkpoint(opened, wait=False)
                except duckdb.Error as error:
                    # The log has everything. A fatal error shows at the next statement.
                    _log.warning("%s: no checkpoint: %s", self.place, error)

    def _checkpoint(self, opened: _Opened, *, wait: bool) -> None:
        with checkpointing(self._sibling("copying"), wait=wait) as held:
            # While someone copies the database, the log grows on.
            if held:
                opened.connection.execute("CHECKPOINT")
                self._unsynced_names = True

    def _error_of_write(self, error: Exception) -> Exception:
        if isinstance(error, duckdb.Error):
            failed = StoreError(f"{self.place} cannot write a record: {error}")
            failed.__cause__ = error
            return failed
        return error

    def _failed(self, error: Exception) -> StoreError:
        """Return the error for a database that failed, and open it again at the next use."""
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, _FATAL):
            with self._opening:
                opened, self._database = self._database, None
            if opened is not None:
                with contextlib.suppress(duckdb.Error):
                    opened.connection.close()
                if opened.copy is not None:
                    opened.copy.cleanup()
        if any(sign in str(error) for sign in _FULL):
            return StoreFullError(f"{self.place} is full ({text}): free disk space")
        if isinstance(error, _FATAL) and self._opened is not None:
            return StoreUnavailableError(f"{self.place} failed: {text}")
        return StoreError(f"{self.place} cannot be used: {text}")

    def _sibling(self, suffix: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{suffix}")
