"""The ledger: one append-only, hash-chained table that is all of a study's state."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import DamagedRecordError, StoreError, StoreFullError, VersionError
from ajet_research.events import EVENTS, AnyEvent
from ajet_research.study import SCHEMA, canonical

LEDGER = "ledger.sqlite"
GENESIS = "0" * 64
"""What the first row has as hash of the row before it."""
_APPLICATION = 0x616A6574
_COLUMNS = "seq, time, elapsed, kind, body, previous, hash"
_CREATE = f"""
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, elapsed REAL NOT NULL, kind TEXT NOT NULL,
    body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL
) STRICT;
CREATE TRIGGER no_update BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {SCHEMA};
"""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One row.

    :param seq: its number, from 1.
    :param time: of the wall clock, in ISO 8601. Nothing depends on it.
    :param elapsed: seconds since its leader started, of the monotonic clock.
    :param hash: over all of the row and the hash of the row before it.
    """

    seq: int
    time: str
    elapsed: float
    event: AnyEvent
    hash: str


class StudyLedger:
    """The ledger of a study, open for appending by its one leader.

    :param path: the file; it is created if it does not exist. None keeps the rows in memory.
    :raises DamagedRecordError: a row is damaged, or not in its place. Nothing is changed.
    :raises VersionError: another version of agentjet wrote it.
    :raises StoreError: it cannot be opened for writing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        present = path is not None and path.exists()
        self.rows: list[LedgerRow] = list(read_ledger(path)) if path and present else []
        # WAL would leave two more files to copy; rows are few.
        try:
            self._connection = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._connection.execute("PRAGMA synchronous = FULL")
            if not present or not self._version():
                self._connection.executescript(f"BEGIN; {_CREATE} COMMIT;")
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _version(self) -> int:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    @property
    def head(self) -> str:
        """The hash of the last row."""
        return self.rows[-1].hash if self.rows else GENESIS

    def append(self, event: AnyEvent, *, time: str, elapsed: float) -> LedgerRow:
        """Append an event durably.

        :raises StoreFullError: the disk is full; nothing was appended.
        :raises StoreError: the row could not be written.
        """
        seq, previous = len(self.rows) + 1, self.head
        body = canonical(event.model_dump(mode="json", by_alias=True))
        values = (seq, time, elapsed, event.kind, body, previous)
        # As read from the file, with the same order of fields: reports must have the same bytes.
        read = EVENTS.validate_json(body, strict=True)
        row = LedgerRow(seq, time, elapsed, read, _hash(values))
        try:
            self._connection.execute(
                f"INSERT INTO events ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant
                (*values, row.hash),
            )
        except sqlite3.Error as error:
            raise self._error(error) from error
        self.rows.append(row)
        return row

    def _error(self, error: sqlite3.Error) -> StoreError:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            return StoreFullError(
                f"The disk of {self._path} is full. Free some space and run the same command: it "
                "continues behind the last row."
            )
        return StoreError(f"Cannot write the ledger {self._path}: {error}")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def read_ledger(path: Path) -> Iterator[LedgerRow]:
    """Read and check all rows, without changing the file.

    :raises DamagedRecordError: a row is damaged or not in its place; the message names the row.
    :raises VersionError: another version of agentjet wrote it.
    """
    try:
        stored = _stored(path, f"{path.resolve().as_uri()}?mode=ro")
    except sqlite3.Error as error:
        # A leader was killed while it wrote a row. Only in a copy may that be undone here.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise DamagedRecordError(f"The ledger {path} cannot be read: {error}") from error
        stored = _recovered(path)
    previous = GENESIS
    for number, row in enumerate(stored, 1):
        seq, time, elapsed, kind, body, before, hash_ = row
        damage = f"Row {number} of {path} is damaged: {{}}. Nothing was changed. Restore a copy."
        if seq != number:
            raise DamagedRecordError(damage.format(f"its number is {seq}, so a row is missing"))
        if before != previous:
            raise DamagedRecordError(damage.format("it does not continue the row before it"))
        if hash_ != _hash(row[:-1]):
            raise DamagedRecordError(damage.format("its hash does not fit its content"))
        try:
            event = EVENTS.validate_json(body, strict=True)
        except InvalidModelError as error:
            raise DamagedRecordError(damage.format(f"{error.errors()[0]['msg']}")) from error
        if event.kind != kind or canonical(event.model_dump(mode="json", by_alias=True)) != body:
            raise DamagedRecordError(damage.format("its content is not in canonical form"))
        yield LedgerRow(seq, time, elapsed, event, hash_)
        previous = hash_


def _stored(path: Path, uri: str) -> list[tuple[Any, ...]]:
    """Return the rows as they are stored."""
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if not application and not version:
            # A leader was killed before it created the table.
            return []
        if application != _APPLICATION:
            raise DamagedRecordError(f"{path} is not the ledger of a study.")
        if version != SCHEMA:
            raise VersionError(
                f"{path} has schema {version}, and this version of agentjet reads schema "
                f"{SCHEMA}. Use the version of agentjet that wrote it."
            )
        return connection.execute(f"SELECT {_COLUMNS} FROM events ORDER BY seq").fetchall()  # noqa: S608 - constant


def _recovered(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows of a copy, in which SQLite undoes the row that was half written."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        journal = path.with_name(f"{path.name}-journal")
        if journal.exists():
            shutil.copyfile(journal, copy.with_name(journal.name))
        try:
            return _stored(path, copy.as_uri())
        except sqlite3.Error as error:
            raise DamagedRecordError(f"The ledger {path} cannot be read: {error}") from error


def _hash(values: tuple[object, ...]) -> str:
    return hashlib.sha256(canonical(list(values)).encode()).hexdigest()
