"""The ledger: append-only, chained, strict, and unchanged by what refuses it."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import DamagedRecordError, StoreError, StoreFullError, VersionError
from ajet_research.arenas import load_arena
from ajet_research.events import (
    AnyEvent,
    AttemptFailed,
    Decided,
    Exhausted,
    Finished,
    LeaderStarted,
    Looked,
    Lost,
    Paused,
    Registered,
    Reported,
    Reserved,
    Resumed,
)
from ajet_research.leader import registered_event
from ajet_research.ledger import GENESIS, LEDGER, LedgerRow, StudyLedger, read_ledger
from ajet_research.registration import register
from ajet_research.state import fold
from ajet_research.study import canonical
from tests.research.studies import study

TIME = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of four rows."""
    ledger = StudyLedger(tmp_path / LEDGER)
    registered = registered_event(register(study(), Path()))
    ledger.append(registered, time=TIME, elapsed=0.0)
    for pid in (1, 2, 3):
        ledger.append(LeaderStarted(host="here", pid=pid), time=TIME, elapsed=0.5)
    ledger.close()
    return tmp_path / LEDGER


def change(path: Path, *statements: str) -> bytes:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in ("no_update", "no_delete"):
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
    return path.read_bytes()


def test_rows_come_back_with_the_chain_that_they_were_written_with(path: Path) -> None:
    ledger = StudyLedger(path)
    again = list(read_ledger(path))
    assert ledger.rows == again
    assert ledger.head == again[-1].hash != GENESIS
    assert [row.seq for row in again] == [1, 2, 3, 4]
    ledger.close()


def test_a_row_is_what_its_readers_have_also_in_its_order(tmp_path: Path) -> None:
    event = registered_event(register(study(), Path()))
    files = {"arms/second.py": "2", "arms/first.py": "1"}
    ledger = StudyLedger(tmp_path / LEDGER)
    ledger.append(
        event.model_copy(update={"files": files}), time="2026-01-01T00:00:00+00:00", elapsed=0.0
    )
    ledger.close()
    (kept,), (read,) = ledger.rows, read_ledger(tmp_path / LEDGER)
    assert kept == read
    for row in (kept, read):
        assert isinstance(row.event, Registered)
        assert list(row.event.files) == sorted(files)
        assert list(row.event.arms) == sorted(event.arms)


@pytest.mark.parametrize(
    ("statement", "row", "why"),
    [
        ("UPDATE events SET body = replace(body, '2', '7') WHERE seq = 3", 3, "hash does not fit"),
        ("UPDATE events SET time = '' WHERE seq = 2", 2, "hash does not fit"),
        ("UPDATE events SET elapsed = 0.25 WHERE seq = 2", 2, "hash does not fit"),
        ("DELETE FROM events WHERE seq = 2", 2, "its number is 3"),
        ("UPDATE events SET previous = hash WHERE seq = 4", 4, "does not continue"),
    ],
)
def test_damage_stops_at_its_row_and_changes_nothing(
    path: Path, statement: str, row: int, why: str
) -> None:
    damaged = change(path, statement)
    with pytest.raises(DamagedRecordError, match=f"Row {row} of .*{why}.*Nothing was changed"):
        StudyLedger(path)
    assert path.read_bytes() == damaged


def test_an_event_with_an_unknown_key_is_refused_though_its_hash_fits(tmp_path: Path) -> None:
    ledger = StudyLedger(tmp_path / LEDGER)
    row = [1, TIME, 0.0, "clock_jumped", '{"kind":"clock_jumped","more":1,"seconds":1.0}', GENESIS]
    signed = hashlib.sha256(canonical(row).encode()).hexdigest()
    ledger._connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, signed))
    ledger.close()
    with pytest.raises(DamagedRecordError, match="Extra inputs are not permitted"):
        list(read_ledger(tmp_path / LEDGER))


def test_another_schema_is_refused_by_number(path: Path) -> None:
    change(path, "PRAGMA user_version = 2")
    with pytest.raises(VersionError, match="has schema 2, and this version of agentjet reads"):
        StudyLedger(path)


def test_another_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / LEDGER)) as connection:
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(DamagedRecordError, match="is not the ledger of a study"):
        StudyLedger(tmp_path / LEDGER)


def test_what_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(DamagedRecordError, match="cannot be read"):
        StudyLedger(tmp_path / LEDGER)


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET time = ''"])
def test_rows_cannot_be_changed_by_mistake(path: Path, statement: str) -> None:
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


def test_a_full_disk_is_an_error_with_the_way_out_and_appends_nothing(path: Path) -> None:
    ledger = StudyLedger(path)
    (pages,) = ledger._connection.execute("PRAGMA page_count").fetchone()
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFullError, match="Free some space and run the same command"):
        ledger.append(LeaderStarted(host="x" * 10**5, pid=1), time=TIME, elapsed=0.0)
    assert len(ledger.rows) == len(list(read_ledger(path))) == 4
    ledger.close()


@pytest.mark.processes
def test_a_row_that_a_killed_leader_was_writing_is_undone(path: Path) -> None:
    killed = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("PRAGMA cache_spill = 1")
connection.execute("BEGIN")
for seq in range(5, 60):
    values = (seq, "", 0.0, "lost", "x" * 4000, "", "")
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", values)
os.kill(os.getpid(), signal.SIGKILL)
"""
    rows = list(read_ledger(path))
    subprocess.run([sys.executable, "-c", killed, str(path)], check=False)
    journal = path.with_name(f"{LEDGER}-journal")
    left = (path.read_bytes(), journal.read_bytes())
    assert list(read_ledger(path)) == rows
    assert (path.read_bytes(), journal.read_bytes()) == left
    ledger = StudyLedger(path)
    ledger.append(LeaderStarted(host="here", pid=4), time=TIME, elapsed=0.5)
    ledger.close()
    assert len(list(read_ledger(path))) == len(rows) + 1


def test_a_ledger_that_another_process_writes_is_an_error(path: Path) -> None:
    ledger = StudyLedger(path)
    ledger._connection.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreError, match="database is locked"):
            ledger.append(LeaderStarted(host="here", pid=1), time=TIME, elapsed=0.0)
    ledger.close()


FIRST = next(iter(register(study(), Path()).blueprints))
RESERVED = Reserved(trial=FIRST, attempt=1, seconds=30.0)
LOST = AttemptFailed(trial=FIRST, attempt=1, cause="", seconds=1.0)
ACT: dict[str, Any] = {"by": "me", "at": datetime(2026, 1, 1, tzinfo=UTC), "why": ""}
MEASURED: dict[str, Any] = {
    "attempt": 1,
    "limit": False,
    "fingerprint": "",
    "store": {},
    "seconds": 1.0,
}
METRICS = dict.fromkeys(load_arena("synthetic").metrics, 0.0)
DECIDED = Decided(branch=1, verdicts={"b-vs-a": "undecided"})


@pytest.mark.parametrize(
    "events",
    [
        [Reserved(trial="0" * 12, attempt=1, seconds=1.0)],
        [Reserved(trial=FIRST, attempt=2, seconds=30.0)],
        [RESERVED, RESERVED],
        [LOST],
        [RESERVED, AttemptFailed(trial=FIRST, attempt=2, cause="", seconds=1.0)],
        [RESERVED, Lost(trial=FIRST)],
        [Looked(look=1, findings={})],
        [DECIDED, Looked(look=0, findings={})],
        [DECIDED, DECIDED],
        [DECIDED, RESERVED],
        [Reported(files={})],
        [DECIDED, Reported(files={}), LeaderStarted(host="here", pid=1)],
        [Exhausted(resource="trials", used=1, limit=1)] * 2,
        [registered_event(register(study(), Path()))],
        [Looked(look=look, findings={}) for look in range(3)],
        [Paused(request="1", **ACT), Resumed(request="2", **ACT), Paused(request="1", **ACT)],
        [RESERVED, Finished(trial=FIRST, metrics={}, failed="", **MEASURED)],
        [RESERVED, Finished(trial=FIRST, metrics={"score": 1.0}, failed="", **MEASURED)],
        [RESERVED, Finished(trial=FIRST, metrics=METRICS, failed="it diverged", **MEASURED)],
    ],
    ids=range(19),
)
def test_a_row_that_cannot_follow_is_refused(path: Path, events: list[AnyEvent]) -> None:
    ledger = StudyLedger(path)
    for event in events:
        ledger.append(event, time=TIME, elapsed=1.0)
    ledger.close()
    fold(ledger.rows[:-1])
    with pytest.raises(DamagedRecordError, match=rf"Row {len(ledger.rows)} .*cannot follow"):
        fold(ledger.rows)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"arms": {}},
        {"blueprints": []},
        {"metrics": {}},
        {"study": {}},
    ],
    ids=str,
)
def test_a_first_row_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    event = registered_event(register(study(), Path())).model_copy(update=change)
    with pytest.raises(DamagedRecordError, match=r"Row 1 .*cannot follow"):
        fold([LedgerRow(1, TIME, 0.0, event, "")])


def test_a_reservation_is_settled_with_what_the_attempt_took(path: Path) -> None:
    ledger = StudyLedger(path)
    ledger.append(RESERVED, time=TIME, elapsed=1.0)
    assert (fold(ledger.rows).reserved, fold(ledger.rows).settled) == (30.0, 0.0)
    ledger.append(LOST, time=TIME, elapsed=2.0)
    assert (fold(ledger.rows).reserved, fold(ledger.rows).settled) == (0.0, 1.0)
    ledger.close()
