"""The sample store on PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, sql

from ajet_core.errors import StoreError, StoreFullError, StoreUnavailableError
from ajet_core.files import read_json, write_whole
from ajet_core.interfaces import WorkerContext
from ajet_store_postgres.schema import Connection, check, prepare
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.writing import PostgresWriter
from ajet_stores.codec import Row
from ajet_stores.sql_reading import Execute
from ajet_stores.sql_store import SqlStore, Write

__all__ = ["PostgresStore", "application_name"]

T = TypeVar("T")

_NOTE = "postgres.json"
"""The file in a run directory with the name of the run's schema."""

# A connection to a machine that is gone is lost after 20 seconds.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
# The seconds for which a server may answer later than its limit of a statement.
_GRACE = 5
# Besides `OperationalError`: a connection that is lost, or leads to a server that became a standby.
_UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
)


class PostgresStore(SqlStore[PostgresStoreSettings]):
    """Stores all records of a run in a schema of a PostgreSQL database.

    It writes and reads by one connection each, and replaces a lost one at the next operation. While
    it is open for writing it holds an advisory lock, so that a run has one writer.
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
                if read_only:
                    self._reading = self._new_connection()
                    check(self._reading, self._schema)
                else:
                    self._writing = self._new_writer(prepare)
                    self._reading = self._new_connection()
            if not read_only and not self.settings.schema_name:
                self._note_schema()
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        """Close both connections."""
        _close(self._writing)
        _close(self._reading)
        self._writing = self._reading = None

    def commit(self, writes: Sequence[Write]) -> Sequence[Exception | None]:
        """Commit writes, as `PostgresWriter.commit` does."""
        try:
            with self._errors():
                if self._writing is None or self._writing.closed:
                    # A database without the run, such as a wrong standby, must not get a new one.
                    self._writing = self._new_writer(check)
                with self._deadline(self._writing):
                    return self._writer.commit(self._writing, writes)
        except StoreUnavailableError:
            _close(self._writing)
            self._writing = None
            raise

    def snapshot(self, query: Callable[[Execute], T]) -> T:
        """Run the statements of a query on one snapshot of the database."""
        try:
            with self._errors():
                if self._reading is None or self._reading.closed:
                    self._reading = self._new_connection()
                with self._deadline(self._reading):
                    return _on_snapshot(self._reading, query)
        except StoreUnavailableError:
            _close(self._reading)
            self._reading = None
            raise

    def _new_writer(self, make_ready: Callable[[Connection, str], None]) -> Connection:
        """Connect for writing, with the lock of the schema.

        :param make_ready: creates or checks the schema once it is locked.
        """
        self._writer.forget()
        connection = self._new_connection()
        try:
            connection.execute("SET synchronous_commit = on")
            (row,) = connection.execute(
                "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (f"ajet {self._schema}",)
            )
            if not row[0]:
                raise StoreUnavailableError(
                    f"{self.place} is used by another server{self._holder(connection)}: stop it, "
                    "or use another schema"
                )
            make_ready(connection, self._schema)
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
        try:
            given = conninfo.conninfo_to_dict(self.settings.dsn)
        except psycopg.ProgrammingError:
            # The message of libpq may contain a password.
            raise StoreError(
                "store.settings.dsn is not a connection string or URL of libpq: check its quotes, "
                "and encode special characters of a URL"
            ) from None
        chosen: dict[str, Any] = {
            "connect_timeout": self.settings.connect_seconds,
            "application_name": application_name(),
            "target_session_attrs": "any" if self._read_only else "read-write",
            **_KEEPALIVE,
            **given,
        }
        connection = psycopg.connect(**chosen, autocommit=True)
        # After a statement of a pipeline has failed, psycopg would use prepared statements that the
        # server does not have.
        connection.prepare_threshold = None
        try:
            # The server, too, must notice that this machine is gone: it holds the lock until then.
            for name, value in _KEEPALIVE.items():
                setting = sql.Identifier(f"tcp_{name.removeprefix('tcp_')}")
                connection.execute(sql.SQL("SET {} = {}").format(setting, sql.Literal(value)))
            milliseconds = self.settings.statement_seconds * 1000
            connection.execute(
                sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema))
            )
            connection.execute(
                sql.SQL("SET statement_timeout = {}").format(sql.Literal(milliseconds))
            )
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _deadline(self, connection: Connection) -> Iterator[None]:
        """Cut the connection off if the server does not answer.

        PostgreSQL's own limit of a statement does not apply to a commit that waits for a standby,
        nor to a server that hangs. Such a commit is not cancelled: it would succeed without the
        standby.
        """
        timer = threading.Timer(
            self.settings.statement_seconds + _GRACE, _cut_off, [connection.fileno()]
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

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


def _on_snapshot(connection: Connection, query: Callable[[Execute], T]) -> T:
    def execute(statement: str, parameters: Sequence[object] = ()) -> Iterator[Row]:
        # The statements are constants of `ajet_stores`.
        text = statement.replace("?", "%s")
        return iter(connection.execute(text, parameters))

    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return query(execute)


def _close(connection: Connection | None) -> None:
    """Close a connection that may be broken."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def _cut_off(descriptor: int) -> None:
    """Shut a socket down, which fails the operation that waits for it."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


def application_name() -> str:
    """Return the name of this process in ``pg_stat_activity``."""
    return f"ajet {socket.gethostname()} {os.getpid()}"


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
