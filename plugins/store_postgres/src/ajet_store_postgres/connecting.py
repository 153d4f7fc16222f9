"""Connections to the database, and what bounds the time that is spent with them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
from psycopg import conninfo, sql

from ajet_core.errors import StoreError
from ajet_store_postgres.schema import Connection
from ajet_store_postgres.settings import PostgresStoreSettings

# A connection to a machine that is gone is lost after 20 seconds.
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
# The seconds for which a server may answer later than its limit of a statement.
_GRACE = 5
# A pooler may take turns with so many connections.
_TURNS = 8


def connect(settings: PostgresStoreSettings, schema: str, *, read_only: bool) -> Connection:
    """Connect to the database, with `schema` as the search path.

    :raises StoreError: the connection string is not one.
    :raises psycopg.Error: the database cannot be reached.
    """
    connection = _connect(settings, read_only=read_only)
    values: dict[str, Any] = {
        # The server, too, must notice that this machine is gone: it holds the lock until then.
        **{f"tcp_{name.removeprefix('tcp_')}": value for name, value in _KEEPALIVE.items()},
        "search_path": sql.Identifier(schema),
        "statement_timeout": settings.statement_seconds * 1000,
    }
    try:
        with deadline(connection, settings):
            for name, value in values.items():
                text = value if isinstance(value, sql.Identifier) else sql.Literal(value)
                connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), text))
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_shared_sessions(settings: PostgresStoreSettings, *, read_only: bool) -> None:
    """Check that a connection has a session of its own.

    A pooler that shares sessions between transactions, such as PgBouncer in transaction mode, would
    give the store's lock and settings to other programs.

    :raises StoreError: it does not.
    :raises psycopg.Error: the database cannot be reached.
    """
    with closing(_connect(settings, read_only=read_only)) as one:
        sessions = {_session(one, settings)}
        # A pooler invents the number that a client uses to cancel statements.
        if sessions == {one.info.backend_pid}:
            return
        with closing(_connect(settings, read_only=read_only)) as other:
            others = {_session(other, settings)}
            for _ in range(_TURNS):
                sessions.add(_session(one, settings))
                others.add(_session(other, settings))
    if len(sessions) > 1 or sessions & others:
        raise StoreError(
            "store.settings.dsn leads to a pooler that shares sessions between transactions, which "
            "loses the lock on the run: connect to PostgreSQL itself, or set the pooler to the "
            "mode that keeps a session for each client (PgBouncer: pool_mode = session)"
        )


@contextmanager
def deadline(connection: Connection, settings: PostgresStoreSettings) -> Iterator[None]:
    """Cut the connection off if the server does not answer.

    PostgreSQL's own limit of a statement does not apply to a commit that waits for a standby, nor
    to a server that hangs. Such a commit is not cancelled: it would succeed without the standby.
    """
    timer = threading.Timer(settings.statement_seconds + _GRACE, _cut_off, [connection.fileno()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def close(connection: Connection | None) -> None:
    """Close a connection that may be broken."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.close()


def application_name() -> str:
    """Return the name of this process in ``pg_stat_activity``."""
    return f"ajet {socket.gethostname()} {os.getpid()}"


def _connect(settings: PostgresStoreSettings, *, read_only: bool) -> Connection:
    try:
        given = conninfo.conninfo_to_dict(settings.dsn)
    except psycopg.ProgrammingError:
        # The message of libpq may contain a password.
        raise StoreError(
            "store.settings.dsn is not a connection string or URL of libpq: check its quotes, "
            "and encode special characters of a URL"
        ) from None
    chosen: dict[str, Any] = {
        "connect_timeout": settings.connect_seconds,
        "application_name": application_name(),
        "target_session_attrs": "any" if read_only else "read-write",
        **_KEEPALIVE,
        **given,
    }
    connection = psycopg.connect(**chosen, autocommit=True)
    # After a statement of a pipeline has failed, psycopg would use prepared statements that the
    # server does not have.
    connection.prepare_threshold = None
    return connection


def _session(connection: Connection, settings: PostgresStoreSettings) -> int:
    """Return the server's process behind a connection."""
    with deadline(connection, settings):
        (row,) = connection.execute("SELECT pg_backend_pid()")
    pid: int = row[0]
    return pid


def _cut_off(descriptor: int) -> None:
    """Shut a socket down, which fails the operation that waits for it."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)
