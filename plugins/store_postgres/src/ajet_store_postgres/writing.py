"""The writes of the store: the statements of each record, sent without waiting for each answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

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
from ajet_store_postgres.schema import Connection, require_owner
from ajet_stores import codec
from ajet_stores.sql_store import Write

# ruff: noqa: S608 - the texts are put together from constants of this project alone.
# The errors of PostgreSQL that only the statement with the bad record causes.
_OF_ONE_RECORD = (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError)
# The number of calls that are remembered as stored.
_KNOWN_CALLS = 65_536


def _insert(table: str, columns: str, **values: str) -> str:
    """Return the text of an INSERT.

    :param values: the expressions for some columns, instead of ``%s``.
    """
    marks = ", ".join(values.get(column, "%s") for column in columns.split(", "))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"


def _put(table: str, key: str, columns: str, changed: str | None = None) -> str:
    """Return the text of an INSERT that replaces the columns `changed` of an existing row."""
    changes = ", ".join(
        f"{column} = excluded.{column}"
        for column in (changed or columns).split(", ")
        if column != key
    )
    return f"{_insert(table, columns)} ON CONFLICT ({key}) DO UPDATE SET {changes}"


_EPISODE = "(SELECT id FROM episodes WHERE episode_id = %s)"
_CALL = "(SELECT id FROM calls WHERE call_id = %s)"
_INSERT_EPISODE = _insert("episodes", codec.EPISODE_COLUMNS)
_PUT_EPISODE = _put("episodes", "episode_id", codec.EPISODE_COLUMNS, codec.OUTCOME_COLUMNS)
_INSERT_CALL = _insert("calls", codec.CALL_COLUMNS, episode=_EPISODE, base=_CALL)
_PUT_BATCH = _put("batches", "batch_id", codec.BATCH_COLUMNS)
_RELEASE_EPISODES = "UPDATE episodes SET batch_id = NULL, batch_position = NULL WHERE batch_id = %s"
_TAKE_EPISODE = (
    "UPDATE episodes SET batch_id = %s, batch_position = %s WHERE episode_id = %s AND state = %s"
)
_PUT_STEP = _put("steps", "step", codec.STEP_COLUMNS)
_INSERT_SCORE = _insert("scores", codec.SCORE_COLUMNS, call=_CALL)
_PUT_RUN = _put("run", "one", f"one, {codec.RUN_COLUMNS}")
_ADD_TOTAL = "UPDATE totals SET value = value + %s WHERE name = %s"


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of a write.

    :param of: what it writes, for messages.
    :param missing: the error if it changes no row, "" if it may change none.
    """

    text: str
    row: Sequence[Any]
    of: str
    missing: str = ""

    def check(self, cursor: psycopg.Cursor[Any]) -> None:
        """:raises StoreError: it changed no row, but should have."""
        if self.missing and cursor.rowcount == 0:
            raise StoreError(f"cannot add {self.of}: {self.missing}")

    def failed(self, error: psycopg.Error) -> StoreError:
        """Return the error of the record that the statement writes."""
        if isinstance(error, psycopg.errors.NotNullViolation) and error.diag.column_name in (
            "episode",
            "call",
        ):
            return StoreError(f"cannot add {self.of}: its {error.diag.column_name} is not stored")
        why = error.diag.message_primary or str(error)
        return StoreError(f"cannot add {self.of}: {why}")


class PostgresWriter:
    """Commits groups of writes.

    All statements of a group are sent at once (pipeline mode of libpq). If one fails, the group is
    written again, one write after the other, to find out which.

    :ivar owner: the owner of the schema as which it writes.
    """

    def __init__(self) -> None:
        self.owner = ""
        # The ids of the latest calls that are stored, so that others can be based on them.
        self._known: dict[str, None] = {}

    def forget(self) -> None:
        """Assume nothing about what is stored."""
        self._known.clear()

    def commit(self, connection: Connection, writes: Sequence[Write]) -> list[Exception | None]:
        """Commit writes in one transaction, as `SqlStore.commit` does.

        :raises psycopg.Error: the transaction failed, for example because the schema has another
            owner.
        """
        try:
            self._at_once(connection, writes)
        except (psycopg.OperationalError, psycopg.InterfaceError):
            raise
        # A record that cannot be stored, or not even be packed.
        except Exception:
            if connection.closed:
                raise
            return self._one_by_one(connection, writes)
        return [None] * len(writes)

    def _at_once(self, connection: Connection, writes: Sequence[Write]) -> None:
        new: dict[str, None] = {}
        # Reading whether a base is stored, and packing what cannot be stored, may fail.
        records = [record for write in writes for record in write]
        statements = self._statements(connection, records, new)
        try:
            with connection.pipeline() as pipeline:
                connection.execute("BEGIN")
                require_owner(connection, self.owner)
                cursors = [(s, connection.execute(s.text, s.row)) for s in statements]
                if any(s.missing for s in statements):
                    # The answers must be here before the transaction is committed.
                    pipeline.sync()
                    for statement, cursor in cursors:
                        statement.check(cursor)
                connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise
        self._learn(new)

    def _one_by_one(
        self, connection: Connection, writes: Sequence[Write]
    ) -> list[Exception | None]:
        new: dict[str, None] = {}
        errors: list[Exception | None] = []
        try:
            connection.execute("BEGIN")
            require_owner(connection, self.owner)
            for write in writes:
                connection.execute("SAVEPOINT one_write")
                of_write = dict(new)
                error = self._error_of(connection, write, of_write)
                if error is None:
                    connection.execute("RELEASE one_write")
                    new = of_write
                else:
                    connection.execute("ROLLBACK TO one_write")
                errors.append(error)
            connection.execute("COMMIT")
        except psycopg.Error:
            _roll_back(connection)
            raise
        self._learn(new)
        return errors

    def _error_of(
        self, connection: Connection, write: Write, new: dict[str, None]
    ) -> Exception | None:
        """Write records, and return the error if that failed only for them."""
        try:
            statements = self._statements(connection, write, new)
        except psycopg.Error:
            raise
        # A record that cannot be packed fails only its writer.
        except Exception as error:  # noqa: BLE001
            return error
        for statement in statements:
            try:
                statement.check(connection.execute(statement.text, statement.row))
            except StoreError as error:
                return error
            except _OF_ONE_RECORD as error:
                failed = statement.failed(error)
                failed.__cause__ = error
                return failed
        return None

    def _learn(self, new: dict[str, None]) -> None:
        self._known |= new
        # The oldest entries are the least likely to be needed.
        for call_id in list(itertools.islice(self._known, max(0, len(self._known) - _KNOWN_CALLS))):
            del self._known[call_id]

    def _statements(
        self, connection: Connection, write: Write, new: dict[str, None]
    ) -> list[_Statement]:
        """Return the statements of records.

        :param new: ids of calls that the transaction adds; those of the records are added.
        """
        calls: list[Call] = []
        statements: list[_Statement] = []
        for record in write:
            if isinstance(record, Call | codec.LargeCall):
                call = record.call if isinstance(record, codec.LargeCall) else record
                large = record if isinstance(record, codec.LargeCall) else None
                has_base = call.base is not None and self._has(connection, call.base, new)
                statements.append(_call_statement(call, large, has_base=has_base))
                new[call.call_id] = None
                calls.append(call)
            else:
                statements += _STATEMENTS[type(record)](record)
        if calls:
            totals = {
                "calls": len(calls),
                "tokens_raw": sum(call.length for call in calls),
                "tokens_sampled": sum(len(call.sampled_ids) for call in calls),
            }
            statements += [_Statement(_ADD_TOTAL, (n, name), name) for name, n in totals.items()]
        return statements

    def _has(self, connection: Connection, call: Call, new: dict[str, None]) -> bool:
        """Return whether a call is stored, or will be by the same transaction."""
        if call.call_id in new or call.call_id in self._known:
            return True
        rows = connection.execute("SELECT 1 FROM calls WHERE call_id = %s", (call.call_id,))
        if rows.fetchone() is None:
            return False
        self._known[call.call_id] = None
        return True


def _roll_back(connection: Connection) -> None:
    if not connection.closed:
        connection.execute("ROLLBACK")


def _call_statement(call: Call, large: codec.LargeCall | None, *, has_base: bool) -> _Statement:
    """Return the statement that adds a call, with its episode and base by their ids."""
    # The codec takes a base of 0 for one that is stored.
    row = list(codec.call_row(call, 0, 0 if has_base else None, large))
    row[_EPISODE_COLUMN] = call.episode_id
    row[_BASE_COLUMN] = call.base.call_id if has_base and call.base is not None else None
    if isinstance(row[_MESSAGES_COLUMN], str):
        row[_MESSAGES_COLUMN] = row[_MESSAGES_COLUMN].encode()
    return _Statement(_INSERT_CALL, row, f"call {call.call_id}")


_EPISODE_COLUMN, _BASE_COLUMN, _MESSAGES_COLUMN = (
    codec.CALL_COLUMNS.split(", ").index(name) for name in ("episode", "base", "messages")
)


def _run_statements(run: RunRecord) -> Iterator[_Statement]:
    yield _Statement(_PUT_RUN, (1, *codec.run_row(run)), f"run {run.run_id}")


def _episode_statements(episode: EpisodeRecord) -> Iterator[_Statement]:
    text = _INSERT_EPISODE if episode.state == "open" else _PUT_EPISODE
    yield _Statement(text, codec.episode_row(episode), f"episode {episode.episode_id}")


def _batch_statements(batch: BatchRecord) -> Iterator[_Statement]:
    of = f"batch {batch.batch_id}"
    yield _Statement(_PUT_BATCH, codec.batch_row(batch), of)
    yield _Statement(_RELEASE_EPISODES, (batch.batch_id,), of)
    states: list[tuple[EpisodeState, list[str]]] = [
        ("ended", batch.episode_ids),
        ("aborted", batch.aborted_ids),
    ]
    for state, episode_ids in states:
        for position, episode_id in enumerate(episode_ids):
            row = (batch.batch_id, position, episode_id, state)
            missing = f"episode {episode_id} is not in the store, or is not {state}"
            yield _Statement(_TAKE_EPISODE, row, of, missing)


def _step_statements(step: StepRecord) -> Iterator[_Statement]:
    of = f"step {step.step}"
    yield _Statement(_PUT_STEP, codec.step_row(step), of)
    yield _Statement("DELETE FROM scores WHERE step = %s", (step.step,), of)
    for score in step.scores:
        _, *row = codec.score_row(score, 0, step.step)
        scored = f"the score of call {score.call_id} to step {step.step}"
        yield _Statement(_INSERT_SCORE, (score.call_id, *row), scored)


def _rewind_statements(record: RewindRecord) -> Iterator[_Statement]:
    of = f"the return to step {record.step}"
    yield _Statement("DELETE FROM scores WHERE step > %s", (record.step,), of)
    yield _Statement("DELETE FROM steps WHERE step > %s", (record.step,), of)


_STATEMENTS: dict[type, Callable[[Any], Iterator[_Statement]]] = {
    RunRecord: _run_statements,
    EpisodeRecord: _episode_statements,
    BatchRecord: _batch_statements,
    StepRecord: _step_statements,
    RewindRecord: _rewind_statements,
}
