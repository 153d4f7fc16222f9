"""The sample store on PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psycopg
from psycopg import conninfo

from ajet_core.errors import StoreError, StoreFullError, StoreUnavailableError
from ajet_core.files import read_json, write_whole
from ajet_core.interfaces import WorkerContext
from ajet_store_postgres.connecting import (
    application_name,
    close,
    connect,
    deadline,
    refuse_shared_sessions,
)
from ajet_store_postgres.schema import NOT_OWNER, Connection, check, prepare, require_owner
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.writing import PostgresWriter
from ajet_stores.codec import Row
from ajet_stores.sql_reading import Execute
from ajet_stores.sql_store import SqlStore, Write

__all__ = ["PostgresStore"]

T = TypeVar("T")

_NOTE = "postgres.json"
"""The file in a run directory with the name of the run's schema."""

# Besides `OperationalError`: a connection that is lost, or leads to a server that became a standby.
_UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
)


class PostgresStore(SqlStore[PostgresStoreSettings]):
    """Stores all records of a run in a schema of a PostgreSQL database.

    It writes and reads by one connection each, and replaces a lost one at the next operation. While
    it is open for writing it holds an advisory lock, so that a run has one writer. It also notes
    itself as the schema's owner, which each of its transactions checks: if another server has been
    the writer since, this one knows too little of the run to continue.
    """

    def __init__(self, settings: PostgresStoreSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._schema = settings.schema_name or ""
        self._writer = PostgresWriter()
        self._read_only = False
        self._writing: Connection | None = None
        self._reading: Connection | None = None

    @property
    def place(self) -> str:
        """The schema and the server, for messages."""
        schema = f"the PostgreSQL schema {self._schema}" if self._schema else "the PostgreSQL store"
        try:
            parameters = conninfo.conninfo_to_dict(self.settings.dsn)
        except psycopg.ProgrammingError:
            return schema
        host = parameters.get("host") or os.environ.get("PGHOST")
        return f"{schema} on {host}" if host else schema

    def connect(self, *, read_only: bool) -> None:
        """Connect to the database; without `read_only`, create or migrate the schema and lock it.

        :raises StoreUnavailableError: the database cannot be reached, or another process writes to
            the schema.
        :raises StoreError: the schema is of another version, or its name is not known.
        """
        self._read_only = read_only
        self._schema = self.settings.schema_name or self._noted_schema()
        try:
            with self._errors():
                refuse_shared_sessions(self.settings, read_only=read_only)
                if read_only:
                    self._reading = self._new_connection()
                    check(self._reading, self._schema)
                else:
                    self._writer.owner = f"{application_name()}, {secrets.token_hex(4)}"
                    self._writing = self._new_writer(prepare)
                    self._reading = self._new_connection()
            if not read_only and not self.settings.schema_name:
                self._note_schema()
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close both connections."""
        close(self._writing)
        close(self._reading)
        self._writing = self._reading = None

    def commit(self, writes: Sequence[Write]) -> Sequence[Exception | None]:
        """Commit writes, as `PostgresWriter.commit` does."""
        try:
            with self._errors():
                if self._writing is None or self._writing.closed:
                    # A database without the run, such as a wrong standby, must not get a new one.
                    self._writing = self._new_writer(_check_owned)
                with deadline(self._writing, self.settings):
                    return self._writer.commit(self._writing, writes)
        except StoreError:
            # The lock must not stay with a server that cannot write.
            close(self._writing)
            self._writing = None
            raise

    def snapshot(self, query: Callable[[Execute], T]) -> T:
        """Run the statements of a query on one snapshot of the database."""
        try:
            with self._errors():
                if self._reading is None or self._reading.closed:
                    self._reading = self._new_connection()
                with deadline(self._reading, self.settings):
                    return _on_snapshot(self._reading, query)
        except StoreUnavailableError:
            close(self._reading)
            self._reading = None
            raise

    def _new_writer(self, make_ready: Callable[[Connection, str, str], None]) -> Connection:
        """Connect for writing, with the lock of the schema.

        :param make_ready: creates or checks the schema for its owner once it is locked.
        """
        self._writer.forget()
        connection = self._new_connection()
        try:
            with deadline(connection, self.settings):
                connection.execute("SET synchronous_commit = on")
                name = f"ajet {self._schema}"
                (row,) = connection.execute(
                    "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (name,)
                )
                if not row[0]:
                    raise StoreUnavailableError(
                        f"{self.place} is used by another server{self._holder(connection)}: stop "
                        "it, or use another schema"
                    )
                make_ready(connection, self._schema, self._writer.owner)
        except BaseException:
            connection.close()
            raise
        return connection

    def _holder(self, connection: Connection) -> str:
        """Return which program holds the lock, if that can be seen."""
        row = connection.execute(
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE locktype = 'advisory' AND granted AND application_name LIKE 'ajet %%' "
            "AND ((classid::bigint << 32) | objid::bigint) = hashtextextended(%s, 0)",
            (f"ajet {self._schema}",),
        ).fetchone()
        return "" if row is None else f" ({row[0]})"

    def _new_connection(self) -> Connection:
        return connect(self.settings, self._schema, read_only=self._read_only)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate errors of the database."""
        try:
            yield
        except psycopg.errors.DiskFull as error:
            raise StoreFullError(
                f"{self.place} has no space left ({_first_line(error)}): free some on its disk",
                retry_after=30.0,
            ) from error
        except _UNAVAILABLE as error:
            raise StoreUnavailableError(
                f"{self.place} cannot be reached: {_first_line(error)}"
            ) from error
        except psycopg.Error as error:
            if error.sqlstate == NOT_OWNER:
                raise StoreError(
                    f"{self.place} has been used by another server since ({_first_line(error)}), "
                    "so this one must not write to it: stop one of them, and restart the other"
                ) from error
            raise StoreError(f"{self.place} failed: {_first_line(error)}") from error

    @property
    def _note(self) -> Path:
        return self.context.run_dir / _NOTE

    def _noted_schema(self) -> str:
        """Return the schema of the run directory, or a new name for a run that will be created.

        :raises StoreError: it has none and the store is opened for reading, or it is damaged.
        """
        try:
            noted = read_json(self._note).get("schema")
        except FileNotFoundError:
            if self._read_only:
                raise StoreError(
                    f"{self._note} does not exist, so the schema of the run is not known: set "
                    "store.settings.schema_name"
                ) from None
            name = re.sub(r"[^a-z0-9]+", "_", self.context.run_dir.name.lower()).strip("_")[:40]
            return f"ajet_{name or 'run'}_{secrets.token_hex(4)}"
        if not isinstance(noted, str) or not noted:
            raise StoreError(f"{self._note} does not name a schema: set store.settings.schema_name")
        return noted

    def _note_schema(self) -> None:
        if self._note.exists():
            return
        try:
            self._note.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._note, json.dumps({"schema": self._schema}).encode())
        except OSError as error:
            raise StoreError(f"cannot write {self._note}: {error}") from error


def _check_owned(connection: Connection, schema: str, owner: str) -> None:
    check(connection, schema)
    require_owner(connection, owner)


def _on_snapshot(connection: Connection, query: Callable[[Execute], T]) -> T:
    def execute(statement: str, parameters: Sequence[object] = ()) -> Iterator[Row]:
        # The statements are constants of `ajet_stores`.
        text = statement.replace("?", "%s")
        return iter(connection.execute(text, parameters))

    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return query(execute)


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
