"""A run's records for people: read from the file of the SQLite store, beside the server that may be writing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from ajet_core.errors import EpisodeNotFoundError, RequestError, StoreError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    EpisodeKind,
    EpisodeRecord,
    EpisodeState,
    RunRecord,
)
from ajet_core.timeline import Call
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store import reading
from ajet_server.store.schema import (
    SCHEMA_VERSION,
    UNDECODABLE,
    damaged_record,
    error_code,
    store_error,
)

T = TypeVar("T")

# What SQLite says where it cannot make or use the file that a log is read through.
_LOG_CODES = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL})
_SHOWN = 5
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class EpisodeQuery:
    """Which episodes; None means any.

    :param step: of the batch of this training step.
    :param refused: only of batches that the trainer refused, and with `step`, of those meant for it.
    """

    state: EpisodeState | None = None
    task_id: str | None = None
    step: int | None = None
    kind: EpisodeKind | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """All that is known about an episode, as of one moment.

    :param step: the training step that consumes it, None if it has no batch or a refused one.
    :param scores: by call id, as `SampleStore.scores`.
    """

    record: EpisodeRecord
    step: int | None
    calls: list[Call]
    scores: dict[str, CallScore]


class StoreReader:
    """Reads a store that it neither locks nor changes. A context manager.

    Each method sees one state of the database. Nothing is held between calls, so that a server is never kept
    from tidying its write-ahead log.

    :param run: a run directory, or the file of a store itself.
    :raises StoreError: there is no store, or it cannot be read.
    """

    def __init__(self, run: Path) -> None:
        self.path = _store_file(run)
        self._connection = _connect(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def run(self) -> RunRecord | None:
        """The run, if one was started."""
        return self._read(reading.run)

    def refused(self) -> list[BatchRecord]:
        """The batches that the trainer refused, in the order of the steps they were meant for."""
        return self._read(lambda connection: reading.batches(connection, 0, True))

    def episode_ids(
        self, query: EpisodeQuery, *, newest_first: bool = False, limit: int | None = None
    ) -> list[str]:
        """Ids of episodes in the order they were claimed, those of a step in the order of its batch."""
        conditions, parameters = _conditions(query)
        order = "batch_position" if query.step is not None else "id"
        direction = "DESC" if newest_first else "ASC"
        # -1 is SQLite's word for no limit.
        parameters.append(-1 if limit is None else limit)
        text = f"SELECT episode_id FROM episodes{conditions} ORDER BY {order} {direction} LIMIT ?"  # noqa: S608 - constants of this module
        rows = self._read(lambda connection: connection.execute(text, parameters).fetchall())
        return [episode_id for (episode_id,) in rows]

    def count(self, query: EpisodeQuery) -> int:
        """How many episodes there are."""
        conditions, parameters = _conditions(query)
        text = f"SELECT count(*) FROM episodes{conditions}"  # noqa: S608 - constants of this module
        (number,) = self._read(lambda connection: connection.execute(text, parameters).fetchone())
        return int(number)

    def find(self, prefix: str) -> str:
        """The id of the one episode whose id begins with `prefix`.

        :raises EpisodeNotFoundError: there is none.
        :raises RequestError: there are several, and none is exactly `prefix`.
        """
        rows = self._read(
            lambda connection: connection.execute(
                "SELECT episode_id FROM episodes WHERE substr(episode_id, 1, ?) = ? "
                "ORDER BY length(episode_id), episode_id LIMIT ?",
                (len(prefix), prefix, _SHOWN + 1),
            ).fetchall()
        )
        found: list[str] = [episode_id for (episode_id,) in rows]
        if not found:
            raise EpisodeNotFoundError(
                f"{self.path} has no episode whose id begins with {prefix!r}: list them with "
                "`ajet inspect RUN`"
            )
        if len(found) > 1 and found[0] != prefix:
            more = ", ..." if len(found) > _SHOWN else ""
            raise RequestError(
                f"several episodes begin with {prefix!r}: {', '.join(found[:_SHOWN])}{more}; "
                "give more of the id"
            )
        return found[0]

    def load(self, episode_id: str) -> StoredEpisode:
        """One episode with its calls and scores.

        :raises EpisodeNotFoundError: it is not in the store.
        """

        def load(connection: sqlite3.Connection) -> StoredEpisode | None:
            record = reading.episode(connection, episode_id)
            if record is None:
                return None
            trained_in = record.batch_id if record.state == "ended" else None
            step = connection.execute(
                "SELECT step FROM batches WHERE batch_id = ? AND refused = ''", (trained_in,)
            ).fetchone()
            return StoredEpisode(
                record,
                None if step is None else int(step[0]),
                reading.calls(connection, [episode_id])[episode_id],
                reading.scores(connection, episode_id),
            )

        found = self._read(load)
        if found is None:
            raise EpisodeNotFoundError(f"{self.path} has no episode {episode_id}")
        return found

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with _snapshot(self._connection):
                return query(self._connection)
        except sqlite3.Error as error:
            raise store_error(error, self.path) from error
        except UNDECODABLE as error:
            raise damaged_record(error, self.path) from error


@contextmanager
def _snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def _conditions(query: EpisodeQuery) -> tuple[str, list[str | int]]:
    conditions: list[str] = []
    parameters: list[str | int] = []
    if query.state is not None:
        conditions.append("state = ?")
        parameters.append(query.state)
    if query.task_id is not None:
        conditions.append("task_id = ?")
        parameters.append(query.task_id)
    if query.kind is not None:
        conditions.append("kind = ?")
        parameters.append(query.kind)
    if query.step is not None or query.refused:
        refused = "refused != ''" if query.refused else "refused = ''"
        step = " AND step = ?" if query.step is not None else ""
        # Those that were aborted while it was filled have its id too.
        conditions.append("state = 'ended'")
        conditions.append(f"batch_id IN (SELECT batch_id FROM batches WHERE {refused}{step})")  # noqa: S608 - constants
        parameters += [] if query.step is None else [query.step]
    return (f" WHERE {' AND '.join(conditions)}" if conditions else ""), parameters


def _store_file(run: Path) -> Path:
    name = str(SqliteStoreSettings.model_fields["file"].default)
    path = run / name if run.is_dir() else run
    if path.is_file():
        return path
    near = sorted(run.glob(f"*/{name}")) if run.is_dir() else []
    hint = f"; there is one in {near[0].parent}" if near else ""
    raise StoreError(f"no store of a run: {path} does not exist{hint}")


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    A write-ahead log is read through a file beside the database, which even a reader has to make. In a
    directory that cannot be written to, a database without a log can still be read, as it does not change.
    """
    log = path.with_name(f"{path.name}-wal")
    idle = not (log.is_file() and log.stat().st_size)
    uri = path.resolve().as_uri()
    attempts = [f"{uri}?mode=ro", *([f"{uri}?mode=ro&immutable=1"] if idle else [])]
    for number, attempt in enumerate(attempts, start=1):
        connection = sqlite3.connect(attempt, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
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
        raise StoreError(f"{path} is not a store of agentjet")
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by another version of agentjet (schema {version}, this one knows "
            f"{SCHEMA_VERSION}): read it with that one"
        )


def _unreadable(error: sqlite3.Error, path: Path) -> StoreError:
    if error_code(error) in _LOG_CODES:
        return StoreError(
            f"cannot read {path} ({error}): its last writes are in the log {path.name}-wal, which cannot be "
            "used in this directory; copy the run directory to one of your own and read it there"
        )
    return store_error(error, path)
