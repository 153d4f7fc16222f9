"""How records become rows; all of it runs in the writing thread, inside a transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import duckdb

from ajet_core.errors import StoreError
from ajet_core.interfaces import BatchRecord, EpisodeRecord, RewindRecord, RunRecord, StepRecord
from ajet_core.timeline import Call
from ajet_stores import codec
from ajet_stores.sql_store import Write

# More open episodes, and more calls that others continue, than a server usually has.
_KNOWN_ROWS = 16_384


def _insert(table: str, columns: str) -> str:
    marks = ", ".join("?" * len(columns.split(",")))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"


_RUN = _insert("run", codec.RUN_COLUMNS)
_EPISODE = _insert("episodes", f"id, {codec.EPISODE_COLUMNS}")
_CALL = _insert("calls", f"id, {codec.CALL_COLUMNS}, length, sampled_length")
_BATCH = _insert("batches", f"id, {codec.BATCH_COLUMNS}")
_STEP = _insert("steps", codec.STEP_COLUMNS)
_SCORE = _insert("scores", codec.SCORE_COLUMNS)
_OUTCOME_COLUMNS = codec.OUTCOME_COLUMNS.split(", ")
_OUTCOME_PLACES = [codec.EPISODE_COLUMNS.split(", ").index(name) for name in _OUTCOME_COLUMNS]
_OUTCOME = (
    f"UPDATE episodes SET {', '.join(f'{name} = ?' for name in _OUTCOME_COLUMNS)} "
    "WHERE episode_id = ?"
)
_EPISODE_ROW = "SELECT id FROM episodes WHERE episode_id = ?"
_CALL_ROW = "SELECT id FROM calls WHERE call_id = ?"
_TAKE = """
UPDATE episodes SET batch_id = ?, batch_position = taken.place
FROM (SELECT unnest(?::VARCHAR[]) AS name, unnest(range(?)) AS place) AS taken
WHERE episode_id = taken.name AND state = ?
"""


class Writer:
    """Writes records with one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._known: dict[str, dict[str, int]] = {}
        self._next: dict[str, int] = {}
        for table in ("episodes", "calls", "batches"):
            self._next[table] = self._one(f"SELECT coalesce(max(id), 0) FROM {table}")

    def write(self, writes: Sequence[Write]) -> None:
        """Write everything in one transaction; after an error nothing is written."""
        self._connection.execute("BEGIN")
        try:
            for records in writes:
                for record in records:
                    self._put(record)
            self._connection.execute("COMMIT")
        except BaseException:
            self._known.clear()
            # A transaction whose commit failed has ended already.
            with contextlib.suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _put(self, record: object) -> None:
        match record:
            case Call():
                self._put_call(record)
            case codec.LargeCall():
                self._put_call(record.call, record)
            case EpisodeRecord():
                self._put_episode(record)
            case RunRecord():
                self._connection.execute("DELETE FROM run")
                self._connection.execute(_RUN, codec.run_row(record))
            case BatchRecord():
                self._put_batch(record)
            case StepRecord():
                self._put_step(record)
            case RewindRecord():
                self._connection.execute("DELETE FROM scores WHERE step > ?", [record.step])
                self._connection.execute("DELETE FROM steps WHERE step > ?", [record.step])
            case _:
                raise StoreError(f"the store duckdb does not know {type(record).__name__}")

    def _put_episode(self, episode: EpisodeRecord) -> None:
        row = codec.episode_row(episode)
        if episode.state != "open":
            outcome = [row[place] for place in _OUTCOME_PLACES]
            if self._one(_OUTCOME, [*outcome, episode.episode_id]):
                return
        try:
            self._connection.execute(_EPISODE, (self._new_id("episodes"), *row))
        except duckdb.ConstraintException as error:
            raise StoreError(f"cannot add episode {episode.episode_id}: {error}") from error

    def _put_call(self, call: Call, compressed: codec.LargeCall | None = None) -> None:
        episode = self._row_id(_EPISODE_ROW, call.episode_id)
        if episode is None:
            raise StoreError(
                f"cannot add call {call.call_id}: its episode {call.episode_id} is not in the store"
            )
        base = None if call.base is None else self._row_id(_CALL_ROW, call.base.call_id)
        row_id = self._new_id("calls")
        row = codec.call_row(call, episode, base, compressed)
        try:
            self._connection.execute(_CALL, (row_id, *row, call.length, len(call.sampled_ids)))
        except duckdb.ConstraintException as error:
            raise StoreError(f"cannot add call {call.call_id}: {error}") from error
        self._learn(_CALL_ROW, call.call_id, row_id)

    def _put_batch(self, batch: BatchRecord) -> None:
        row = codec.batch_row(batch)
        known = self._connection.execute(
            "DELETE FROM batches WHERE batch_id = ? RETURNING id", [batch.batch_id]
        ).fetchone()
        row_id = self._new_id("batches") if known is None else known[0]
        self._connection.execute(_BATCH, (row_id, *row))
        self._connection.execute(
            "UPDATE episodes SET batch_id = NULL, batch_position = NULL WHERE batch_id = ?",
            [batch.batch_id],
        )
        for ids, state in ((batch.episode_ids, "ended"), (batch.aborted_ids, "aborted")):
            taken = [batch.batch_id, list(ids), len(ids), state]
            if ids and self._one(_TAKE, taken) != len(ids):
                self._refuse(batch.batch_id, ids, state)

    def _refuse(self, batch_id: str, ids: Sequence[str], state: str) -> None:
        """Say which episode a batch cannot have."""
        found = "SELECT episode_id, state FROM episodes WHERE episode_id IN (SELECT unnest(?))"
        states = dict(self._connection.execute(found, [list(ids)]).fetchall())
        for episode_id in ids:
            is_ = states.get(episode_id, "not in the store")
            if is_ != state:
                raise StoreError(
                    f"cannot add batch {batch_id}: episode {episode_id} is {is_}, not {state}"
                )
        raise StoreError(f"cannot add batch {batch_id}: it has an episode twice")

    def _put_step(self, step: StepRecord) -> None:
        self._connection.execute("DELETE FROM steps WHERE step = ?", [step.step])
        self._connection.execute("DELETE FROM scores WHERE step = ?", [step.step])
        self._connection.execute(_STEP, codec.step_row(step))
        rows = []
        for score in step.scores:
            call = self._row_id(_CALL_ROW, score.call_id)
            if call is None:
                raise StoreError(
                    f"cannot add step {step.step}: call {score.call_id} is not in the store"
                )
            rows.append(codec.score_row(score, call, step.step))
        if rows:
            self._connection.executemany(_SCORE, rows)

    def _new_id(self, table: str) -> int:
        # After an undone transaction there are gaps, which do no harm.
        self._next[table] += 1
        return self._next[table]

    def _row_id(self, query: str, name: str) -> int | None:
        known = self._known.setdefault(query, {}).get(name)
        if known is not None:
            return known
        row = self._connection.execute(query, [name]).fetchone()
        return None if row is None else self._learn(query, name, row[0])

    def _learn(self, query: str, name: str, row_id: int) -> int:
        known = self._known.setdefault(query, {})
        if len(known) >= _KNOWN_ROWS:
            del known[next(iter(known))]
        known[name] = row_id
        return row_id

    def _one(self, statement: str, parameters: Sequence[object] = ()) -> int:
        """Return the number that a statement returns; a change returns the number of its rows."""
        row = self._connection.execute(statement, list(parameters)).fetchone()
        assert row is not None, "the statement returns one row"
        return int(row[0])
