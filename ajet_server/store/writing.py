"""The writes of the SQLite store; all run in the committing thread, inside a transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    BatchRecord,
    EpisodeRecord,
    EpisodeState,
    RewindRecord,
    RunRecord,
    StepRecord,
)
from ajet_core.timeline import Call
from ajet_server.store.schema import ends_transaction, store_error
from ajet_stores import codec
from ajet_stores.sql_reading import call_totals
from ajet_stores.sql_reading import episode as read_episode
from ajet_stores.sql_store import Write


def _insert(table: str, columns: str, verb: str = "INSERT") -> str:
    marks = ", ".join("?" * (columns.count(",") + 1))
    return f"{verb} INTO {table} ({columns}) VALUES ({marks})"


_INSERT_EPISODE = _insert("episodes", codec.EPISODE_COLUMNS)
_INSERT_CALL = _insert("calls", codec.CALL_COLUMNS)
_PUT_EPISODE = f"{_INSERT_EPISODE} ON CONFLICT (episode_id) DO UPDATE SET " + ", ".join(
    f"{column} = excluded.{column}" for column in codec.OUTCOME_COLUMNS.split(", ")
)
_PUT_BATCH = _insert("batches", codec.BATCH_COLUMNS) + (
    " ON CONFLICT (batch_id) DO UPDATE SET step = excluded.step, created_at = excluded.created_at, "
    "credit = excluded.credit, refused = excluded.refused"
)
_RELEASE_EPISODES = "UPDATE episodes SET batch_id = NULL, batch_position = NULL WHERE batch_id = ?"
_TAKE_EPISODE = (
    "UPDATE episodes SET batch_id = ?, batch_position = ? WHERE episode_id = ? AND state = ?"
)
_INSERT_SCORE = _insert("scores", codec.SCORE_COLUMNS)
_EPISODE_ID = "SELECT id FROM episodes WHERE episode_id = ?"
_CALL_ID = "SELECT id FROM calls WHERE call_id = ?"
# The size of the cache of row ids; it is enough for 16,384 open episodes.
_KNOWN_ROWS = 16_384
_REPLACE_STEP = _insert("steps", codec.STEP_COLUMNS, "REPLACE")
_REPLACE_RUN = _insert("run", f"one, {codec.RUN_COLUMNS}", "REPLACE")
_REPLACE_TOTAL = _insert("totals", "name, value", "REPLACE")
# Records that one statement writes completely.
_ONE_STATEMENT = (Call, codec.LargeCall, EpisodeRecord, RunRecord)


class StoreWriter:
    """Applies writes to the connection, and keeps the totals.

    :param path: the database, for messages.
    :ivar totals: `SampleStore.call_totals` by name as of the last commit; replaced, never modified,
        so that other threads can read it.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self.totals: dict[str, int] = asdict(call_totals(connection.execute))
        self._pending = dict(self.totals)
        # Row ids of the latest episodes and calls, by query: the next calls refer to them.
        self._known: dict[str, dict[str, int]] = {_EPISODE_ID: {}, _CALL_ID: {}}
        self._put: dict[type, Callable[[Any], None]] = {
            Call: self._put_call,
            codec.LargeCall: lambda large: self._put_call(large.call, large),
            EpisodeRecord: self._put_episode,
            BatchRecord: self._put_batch,
            StepRecord: self._put_step,
            RewindRecord: self._rewind,
            RunRecord: self._put_run,
        }

    def commit(self, writes: Sequence[Write]) -> list[Exception | None]:
        """Commit writes in one transaction, each all or none.

        An error of a single write, such as a violated constraint, fails only that write. A full
        disk, an I/O error and the like fail all writes of the transaction and undo it.

        :return: for each write the error that made it fail alone, None for the others.
        :raises StoreError: all of them failed.
        """
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            errors = [self._error_of(write) for write in writes]
            changed = [(n, v) for n, v in self._pending.items() if v != self.totals[n]]
            if changed:
                connection.executemany(_REPLACE_TOTAL, changed)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            # After some errors SQLite has rolled back already, so a failed rollback is harmless.
            with contextlib.suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            self._forget(dict(self.totals))
            raise store_error(error, self._path) from error
        self.totals = dict(self._pending)
        return errors

    def _error_of(self, write: Write) -> Exception | None:
        """Write records, and return the error if that failed only for them."""
        try:
            self.append(write)
        except sqlite3.Error as error:
            if ends_transaction(error):
                raise
            failed = store_error(error, self._path)
            failed.__cause__ = error
            return failed
        # A record that cannot be stored fails only its writer.
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def append(self, records: Write) -> None:
        """Write all records, or none of them."""
        first = records[0] if len(records) == 1 else None
        if isinstance(first, _ONE_STATEMENT):
            self._put[type(first)](first)
            return
        before = dict(self._pending)
        try:
            with _savepoint(self._connection):
                for record in records:
                    self._put[type(record)](record)
        except BaseException:
            self._forget(before)
            raise

    def _forget(self, pending: dict[str, int]) -> None:
        """Restore earlier totals, and forget row ids that may no longer exist."""
        self._pending = pending
        for known in self._known.values():
            known.clear()

    def _put_run(self, run: RunRecord) -> None:
        self._connection.execute(_REPLACE_RUN, (1, *codec.run_row(run)))

    def _put_episode(self, episode: EpisodeRecord) -> None:
        statement = _INSERT_EPISODE if episode.state == "open" else _PUT_EPISODE
        try:
            self._connection.execute(statement, codec.episode_row(episode))
        except sqlite3.IntegrityError as error:
            raise StoreError(f"cannot add episode {episode.episode_id}: {error}") from error

    def _put_call(self, call: Call, compressed: codec.LargeCall | None = None) -> None:
        """Add a call, with its prompt as the difference from its base's tokens."""
        episode = self._row_id(_EPISODE_ID, call.episode_id)
        if episode is None:
            raise StoreError(
                f"cannot add call {call.call_id}: its episode {call.episode_id} is not in the store"
            )
        base = None if call.base is None else self._row_id(_CALL_ID, call.base.call_id)
        try:
            row = codec.call_row(call, episode, base, compressed)
            inserted = self._connection.execute(_INSERT_CALL, row)
        except sqlite3.IntegrityError as error:
            raise StoreError(f"cannot add call {call.call_id}: {error}") from error
        if inserted.lastrowid is not None:
            self._learn(_CALL_ID, call.call_id, inserted.lastrowid)
        sampled = len(call.sampled_ids)
        pending = self._pending
        pending["calls"] += 1
        pending["tokens_raw"] += call.length
        pending["tokens_sampled"] += sampled

    def _put_batch(self, batch: BatchRecord) -> None:
        try:
            self._connection.execute(_PUT_BATCH, codec.batch_row(batch))
        except sqlite3.IntegrityError as error:
            raise StoreError(f"cannot add batch {batch.batch_id}: {error}") from error
        self._connection.execute(_RELEASE_EPISODES, (batch.batch_id,))
        self._take_episodes(batch.batch_id, batch.episode_ids, "ended")
        self._take_episodes(batch.batch_id, batch.aborted_ids, "aborted")

    def _take_episodes(
        self, batch_id: str, episode_ids: Sequence[str], state: EpisodeState
    ) -> None:
        for position, episode_id in enumerate(episode_ids):
            row = (batch_id, position, episode_id, state)
            if not self._connection.execute(_TAKE_EPISODE, row).rowcount:
                episode = read_episode(self._connection.execute, episode_id)
                is_ = "not in the store" if episode is None else f"{episode.state}, not {state}"
                raise StoreError(f"cannot add batch {batch_id}: episode {episode_id} is {is_}")

    def _put_step(self, step: StepRecord) -> None:
        self._connection.execute(_REPLACE_STEP, codec.step_row(step))
        self._connection.execute("DELETE FROM scores WHERE step = ?", (step.step,))
        for score in step.scores:
            call = self._row_id(_CALL_ID, score.call_id)
            if call is None:
                raise StoreError(
                    f"cannot add step {step.step}: call {score.call_id} is not in the store"
                )
            self._connection.execute(_INSERT_SCORE, codec.score_row(score, call, step.step))

    def _rewind(self, record: RewindRecord) -> None:
        self._connection.execute("DELETE FROM scores WHERE step > ?", (record.step,))
        self._connection.execute("DELETE FROM steps WHERE step > ?", (record.step,))

    def _row_id(self, query: str, name: str) -> int | None:
        known = self._known[query].get(name)
        if known is not None:
            return known
        row = self._connection.execute(query, (name,)).fetchone()
        return None if row is None else self._learn(query, name, row[0])

    def _learn(self, query: str, name: str, row_id: int) -> int:
        known = self._known[query]
        if len(known) >= _KNOWN_ROWS:
            # The oldest entry is the least likely to be needed.
            del known[next(iter(known))]
        known[name] = row_id
        return row_id


@contextlib.contextmanager
def _savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo only the statements of the block if it raises."""
    connection.execute("SAVEPOINT one_write")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO one_write")
            connection.execute("RELEASE one_write")
        raise
    connection.execute("RELEASE one_write")
