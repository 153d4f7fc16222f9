"""The durable record of what a run spends: a small SQLite database in its run directory."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import RequestError, StoreError, StoreUnavailableError
from ajet_core.protocol import BudgetConfig, SpendingReport

LEDGER = "spending.sqlite"
NANO = 10**9
"""Amounts are whole numbers of this part of a dollar, so that their sums are exact."""

WHOLE_PHASE = ""
"""The kind of device under which the time of a phase itself is counted."""

MOST_PAIRS = 256
"""Of a source and a model; both are free text of clients, and every status lists all pairs."""

_VERSION = 1
_SCHEMA = """
CREATE TABLE time (
    phase TEXT NOT NULL,
    device TEXT NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (phase, device)
);
CREATE TABLE reports (
    client TEXT NOT NULL,
    report_id TEXT NOT NULL,
    source TEXT NOT NULL,
    model TEXT NOT NULL,
    nano_usd INTEGER,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    episode_id TEXT,
    reported_at REAL NOT NULL,
    PRIMARY KEY (client, report_id)
) WITHOUT ROWID;
CREATE TABLE budget (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    configured TEXT NOT NULL,
    chosen TEXT NOT NULL
);
"""
_COLUMNS = "source, model, nano_usd, input_tokens, output_tokens, episode_id"


@dataclass(slots=True)
class Paid:
    """Sums over the reports of one source and model."""

    nano_usd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class Entries:
    """All that a ledger holds.

    :param seconds: by phase and kind of device, times the number of devices; for the kind
        `WHOLE_PHASE` of the phase itself.
    :param paid: by source and model; the model of plain amounts is "".
    :param chosen: the budget that an operator chose in place of a configured one: both.
    """

    seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    paid: dict[tuple[str, str], Paid] = field(default_factory=dict)
    chosen: tuple[BudgetConfig, BudgetConfig] | None = None


def read_ledger(run_dir: Path) -> Entries | None:
    """Read what a run has spent, also while its server writes it; None if nothing is recorded.

    :raises StoreError: the record cannot be read.
    """
    path = run_dir / LEDGER
    if not path.is_file():
        return None
    log = path.with_name(f"{path.name}-wal")
    idle = not (log.is_file() and log.stat().st_size)
    uri = f"{path.resolve().as_uri()}?mode=ro"
    with _readable(path):
        try:
            return _read_beside(uri, path)
        except sqlite3.OperationalError:
            # Even a reader creates a file beside the database, unless nothing changes it.
            if not idle:
                raise
            return _read_beside(f"{uri}&immutable=1", path)


def _read_beside(uri: str, path: Path) -> Entries:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    with contextlib.closing(connection):
        _check_version(connection.execute("PRAGMA user_version").fetchone()[0], path)
        connection.execute("BEGIN")
        return _read(connection)


class SpendingLedger:
    """Writes what a run spends. Its methods block; any thread may call them.

    What a method has written is on disk when it returns.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LEDGER
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        # Those of all reports, by which no report has to be read.
        self._pairs: set[tuple[str, str]] = set()

    def open(self) -> Entries:
        """Open the ledger, or create it, and read it.

        :raises StoreError: it cannot be used.
        """
        with self._lock, _readable(self._path):
            # The file says what was paid for which episode, so only its owner may read it.
            self._path.touch(mode=0o600)
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=5.0
            )
            self._connection = connection
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if not version:
                with _transaction(connection):
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
            else:
                _check_version(version, self._path)
            entries = _read(connection)
            self._pairs = set(entries.paid)
            return entries

    def close(self) -> None:
        """Close the ledger; does nothing if it is not open."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def put_seconds(self, seconds: Mapping[tuple[str, str], float]) -> None:
        """Write times in place of the former ones of the same phases and devices.

        :raises StoreUnavailableError: they are not written.
        """
        rows = [(*key, value) for key, value in seconds.items()]
        with self._writing() as connection:
            connection.executemany("REPLACE INTO time VALUES (?, ?, ?)", rows)

    def add(self, report: SpendingReport, client: str, at: float) -> bool:
        """Write a report, unless it was written before.

        :param client: id of the token that sent it; ids of reports are its own.
        :param at: Unix seconds.
        :return: whether it is new.
        :raises RequestError: another report has its id, or it has a new source or model when there
            are `MOST_PAIRS` already.
        :raises StoreUnavailableError: it may be written or not.
        """
        pair = (report.source, report.model or "")
        nano = None if report.usd is None else round(report.usd * NANO)
        row = (
            *pair,
            nano,
            report.input_tokens,
            report.output_tokens,
            report.episode_id,
        )
        with self._lock:
            with self._writing() as connection:
                before = connection.execute(
                    f"SELECT {_COLUMNS} FROM reports WHERE client = ? AND report_id = ?",  # noqa: S608
                    (client, report.report_id),
                ).fetchone()
                if before is None:
                    self._check_pair(pair)
                    connection.execute(
                        f"INSERT INTO reports (client, report_id, {_COLUMNS}, reported_at) "  # noqa: S608
                        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (client, report.report_id, *row, at),
                    )
            # Only what is written counts towards the limit.
            if before is None:
                self._pairs.add(pair)
        if before not in (None, row):
            raise RequestError(
                f"report {report.report_id} was sent before with other values: give each report "
                "an id of its own",
                param="report_id",
            )
        return before is None

    def _check_pair(self, pair: tuple[str, str]) -> None:
        if pair not in self._pairs and len(self._pairs) >= MOST_PAIRS:
            raise RequestError(
                f"the run already has {MOST_PAIRS} pairs of a source and a model: report under one "
                "of them",
                param="source",
            )

    def choose(self, configured: BudgetConfig, chosen: BudgetConfig) -> None:
        """Write a budget that replaces a configured one.

        :raises StoreUnavailableError: it is not written.
        """
        row = (1, configured.model_dump_json(), chosen.model_dump_json())
        with self._writing() as connection:
            connection.execute("REPLACE INTO budget VALUES (?, ?, ?)", row)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                raise StoreUnavailableError(f"{self._path} is closed: the server is shutting down")
            try:
                with _transaction(self._connection):
                    yield self._connection
            except sqlite3.Error as error:
                raise StoreUnavailableError(f"cannot write {self._path}: {error}") from error


def _check_version(version: int, path: Path) -> None:
    if version != _VERSION:
        raise StoreError(
            f"{path} was written by another version of agentjet: continue the run with that "
            "version, or use another run_dir"
        )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError, TypeError, ValueError) as error:
        raise StoreError(
            f"cannot use {path}, the record of what the run has spent ({error}): restore it from a "
            "backup, or move it away to count from zero"
        ) from error


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _read(connection: sqlite3.Connection) -> Entries:
    entries = Entries()
    for phase, device, seconds in connection.execute("SELECT phase, device, seconds FROM time"):
        entries.seconds[phase, device] = float(seconds)
    # Whole dollars and the rest are summed separately, so that no sum overflows.
    sums = f"""
        SELECT source, model, SUM(nano_usd / {NANO}), SUM(nano_usd % {NANO}),
            SUM(input_tokens), SUM(output_tokens)
        FROM reports GROUP BY source, model
    """  # noqa: S608
    for source, model, dollars, rest, *tokens in connection.execute(sums):
        nano = int(dollars or 0) * NANO + int(rest or 0)
        entries.paid[source, model] = Paid(nano, *map(int, tokens))
    chosen = connection.execute("SELECT configured, chosen FROM budget").fetchone()
    if chosen is not None:
        configured, instead = map(BudgetConfig.model_validate_json, chosen)
        entries.chosen = (configured, instead)
    return entries
