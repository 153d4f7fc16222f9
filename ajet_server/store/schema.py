"""The SQLite schema, connections to the database, and the translation of SQLite's errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ajet_core.errors import StoreError, StoreFullError, StoreUnavailableError
from ajet_server.embedded.settings import SqliteStoreSettings

SCHEMA_VERSION = 9

# Lists of token ids are blobs of little-endian uint32, see `codec`. `calls.base` is the call whose
# tokens start the prompt: prompt = (prompt + sampled of base)[:shared] + suffix. `calls.tools` is
# NULL if it equals that of the base. If `calls.compressed` is 1, `suffix` and `messages` are
# compressed by zlib.
_SCHEMA = """
CREATE TABLE run (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    run_id TEXT NOT NULL,
    config_json TEXT NOT NULL,
    created_at REAL NOT NULL,
    active INTEGER NOT NULL,
    paused TEXT NOT NULL,
    back_to INTEGER,
    retrains INTEGER NOT NULL
);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL UNIQUE,
    step INTEGER NOT NULL,
    created_at REAL NOT NULL,
    credit TEXT NOT NULL,
    refused TEXT NOT NULL DEFAULT ''
);
CREATE INDEX batches_by_step ON batches (step);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL UNIQUE,
    key_hash TEXT NOT NULL,
    task_id TEXT NOT NULL,
    group_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    tag TEXT NOT NULL,
    client_id TEXT NOT NULL,
    claim_version INTEGER NOT NULL,
    lease_seconds REAL NOT NULL,
    created_at REAL NOT NULL,
    state TEXT NOT NULL,
    reward REAL,
    components TEXT NOT NULL,
    call_rewards TEXT NOT NULL,
    agent_rewards TEXT NOT NULL,
    metadata TEXT NOT NULL,
    reason TEXT NOT NULL,
    finished_at REAL,
    batch_id TEXT REFERENCES batches (batch_id),
    batch_position INTEGER,
    claim_hash TEXT NOT NULL,
    cause TEXT NOT NULL,
    heartbeat_seconds REAL,
    final INTEGER NOT NULL,
    mixed INTEGER NOT NULL,
    rules TEXT NOT NULL,
    joint_id TEXT,
    joint_role TEXT,
    joint_arbiter TEXT,
    joint_arbiter_run TEXT
);
CREATE UNIQUE INDEX episodes_by_joint ON episodes (joint_id) WHERE joint_id IS NOT NULL;
CREATE UNIQUE INDEX episodes_by_claim ON episodes (claim_hash) WHERE claim_hash != '';
CREATE INDEX episodes_by_batch ON episodes (batch_id, batch_position) WHERE batch_id IS NOT NULL;
CREATE INDEX episodes_unbatched ON episodes (state) WHERE batch_id IS NULL;
CREATE INDEX episodes_evaluated ON episodes (claim_version) WHERE kind = 'eval';
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    episode INTEGER NOT NULL REFERENCES episodes (id),
    call_id TEXT NOT NULL UNIQUE,
    call_index INTEGER NOT NULL,
    agent TEXT NOT NULL,
    base INTEGER REFERENCES calls (id),
    shared INTEGER NOT NULL,
    suffix BLOB NOT NULL,
    sampled BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    policy_versions BLOB NOT NULL,
    temperature REAL NOT NULL,
    top_p REAL NOT NULL,
    top_k INTEGER NOT NULL,
    finish_reason TEXT NOT NULL,
    created_at REAL NOT NULL,
    metadata TEXT NOT NULL,
    messages TEXT NOT NULL,
    answer TEXT,
    tools TEXT,
    sampled_from BLOB,
    compressed INTEGER NOT NULL
);
CREATE INDEX calls_by_episode ON calls (episode);
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL,
    metrics TEXT NOT NULL,
    finished_at REAL NOT NULL,
    config_json TEXT NOT NULL
);
CREATE TABLE scores (
    call INTEGER NOT NULL REFERENCES calls (id),
    step INTEGER NOT NULL,
    advantage REAL NOT NULL,
    logprobs BLOB NOT NULL,
    PRIMARY KEY (call, step)
) WITHOUT ROWID;
CREATE INDEX scores_by_step ON scores (step);
CREATE TABLE totals (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

# After these errors SQLite may have rolled back the transaction, or cannot reliably continue it.
_FATAL_CODES = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_INTERRUPT,
    }
)


# SQLite's errors if it cannot create or use the file through which a log is read.
_LOG_CODES = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL})
_BUSY_SECONDS = 5.0


def error_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, -1 if the error came from the Python binding."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else code & 0xFF


def ends_transaction(error: sqlite3.Error) -> bool:
    """Return whether `error` affects the whole transaction, not only one statement."""
    return error_code(error) in _FATAL_CODES


def store_error(error: sqlite3.Error, path: Path) -> StoreError:
    """Convert a SQLite error to one that says what to do."""
    code = error_code(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(
            f"the store {path} is full ({error}): free disk space, or raise the store "
            "setting max_mib; nothing from this write was saved",
            retry_after=30.0,
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            f"the store {path} is damaged ({error}): restore it from a backup, save what is "
            f"readable with `sqlite3 {path.name} .recover`, or start with another run_dir"
        )
    if code == sqlite3.SQLITE_BUSY:
        return StoreUnavailableError(
            f"the store {path} is locked by another program ({error}): close it", retry_after=1.0
        )
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
        return StoreError(
            f"cannot open {path} for writing ({error}): check that its directory exists and that "
            "this user may write to it"
        )
    return StoreError(f"the store {path} failed: {error}")


def connect_writer(path: Path, settings: SqliteStoreSettings) -> sqlite3.Connection:
    """Open or create the database for writing, with the present schema.

    :raises StoreError: it is damaged, not a store of agentjet, or of another schema version.
    """
    try:
        connection = _connect(path, settings)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    try:
        if settings.max_mib is not None:
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            pages = settings.max_mib * 2**20 // page_size
            connection.execute(f"PRAGMA max_page_count = {pages}")
        _prepare(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"the file system of {path} does not support a write-ahead log: use a local "
                "disk for run_dir"
            )
        connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def connect_reader(path: Path, settings: SqliteStoreSettings) -> sqlite3.Connection:
    """Open a second connection, for reading only."""
    try:
        connection = _connect(path, settings)
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    return connection


def connect_beside_server(path: Path) -> sqlite3.Connection:
    """Open a read-only connection to a database that a server may have open.

    A write-ahead log is read through a file beside the database, which even a reader must create.
    In a directory that is not writable, only a database without a log can be read.

    :raises StoreError: there is no store of this version, or it cannot be read.
    """
    if not path.is_file():
        near = sorted(path.parent.glob(f"*/{path.name}"))
        hint = f"; {near[0].parent} contains one" if near else ""
        raise StoreError(f"{path.parent} is not a run directory: it has no {path.name}{hint}")
    log = path.with_name(f"{path.name}-wal")
    idle = not (log.is_file() and log.stat().st_size)
    uri = path.resolve().as_uri()
    attempts = [f"{uri}?mode=ro", *([f"{uri}?mode=ro&immutable=1"] if idle else [])]
    for number, attempt in enumerate(attempts, start=1):
        connection = sqlite3.connect(
            attempt,
            uri=True,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _check(connection, path)
        except sqlite3.Error as error:
            connection.close()
            if number == len(attempts) or error_code(error) not in _LOG_CODES:
                raise _unreadable(error, path) from error
        except StoreError:
            connection.close()
            raise
        else:
            return connection
    raise AssertionError("the last attempt returns or raises")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'episodes'"
    ).fetchone()
    if not tables:
        raise StoreError(f"{path} is not an agentjet store")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by another version of agentjet (schema {version}; this "
            f"version reads schema {SCHEMA_VERSION}): read it with that version"
        )


def _unreadable(error: sqlite3.Error, path: Path) -> StoreError:
    if error_code(error) in _LOG_CODES:
        return StoreError(
            f"cannot read {path} ({error}): its last writes are in the log {path.name}-wal, "
            "which cannot be used in this directory; copy the run directory to a writable "
            "directory and read it there"
        )
    return store_error(error, path)


def _connect(path: Path, settings: SqliteStoreSettings) -> sqlite3.Connection:
    # Transactions are started and ended explicitly. The connection is created in one thread and
    # used in another, never in two at once.
    return sqlite3.connect(
        path,
        timeout=settings.busy_timeout_ms / 1000,
        isolation_level=None,
        check_same_thread=False,
    )


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer agentjet (schema {version}; this version uses "
            f"schema {SCHEMA_VERSION}): upgrade agentjet, or use another run_dir"
        )
    if version == SCHEMA_VERSION:
        return
    if version:
        raise StoreError(
            f"{path} was written by an older agentjet (schema {version}; this version uses "
            f"schema {SCHEMA_VERSION}): finish the run with that version, or use another "
            "run_dir"
        )
    if tables:
        raise StoreError(f"{path} is a database, but not an agentjet store: use another run_dir")
    # One transaction: a process killed here leaves an empty file, which the next one can fill.
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
