"""The default sample store: one SQLite file in write-ahead mode, written in groups."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    BatchRecord,
    CallScore,
    ComponentSettings,
    EpisodeKind,
    EpisodeRecord,
    EpisodeState,
    EvaluationCount,
    GroupCount,
    RunRecord,
    SampleStore,
    StepRecord,
    WorkerContext,
)
from ajet_core.timeline import Call
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store import reading
from ajet_server.store.file_lock import FileLock
from ajet_server.store.group_commit import GroupCommitter
from ajet_server.store.schema import (
    UNDECODABLE,
    connect_reader,
    connect_writer,
    damaged_record,
    ends_transaction,
    store_error,
)
from ajet_server.store.writing import StoreWriter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Opened:
    writer: StoreWriter
    committer: GroupCommitter
    write_connection: sqlite3.Connection
    read_connection: sqlite3.Connection
    read_thread: ThreadPoolExecutor


class SqliteStore(SampleStore):
    """All records of a run in ``<run_dir>/samples.sqlite3``.

    Writes of concurrent callers share transactions (`GroupCommitter`). Prompts are stored as the
    difference to the call they go on from, so that a conversation takes space linear in its tokens.
    Reads have a connection of their own and see everything that was acknowledged.
    """

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._settings = SqliteStoreSettings.model_validate(settings.model_dump())
        self._path = context.run_dir / self._settings.file
        self._lock = FileLock(self._path.with_name(f"{self._path.name}.lock"))
        self._opened: _Opened | None = None

    @property
    def transactions(self) -> int:
        """Transactions committed since the store was opened."""
        return self._need_open().committer.transactions

    async def open(self) -> None:
        """Open or create the database.

        :raises StoreError: it is open already, here or in another process, or it cannot be used.
        """
        if self._opened is not None:
            raise StoreError(f"the store {self._path} is open already")
        writer, writing, reader = await asyncio.to_thread(self._connect)
        committer = GroupCommitter(
            writing, writer, fatal=ends_transaction, translate=self._translate
        )
        self._opened = _Opened(
            writer, committer, writing, reader, ThreadPoolExecutor(1, "store-reader")
        )

    async def close(self) -> None:
        """Commit what was requested before, and close; a store that is not open is left alone."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.committer.close()
            await asyncio.to_thread(self._disconnect, opened)

    async def put_run(self, run: RunRecord) -> None:
        """Write or replace the run."""
        await self._write(lambda writer: writer.put_run(run))

    async def get_run(self) -> RunRecord | None:
        """The run, if one was started."""
        return await self._read(reading.run)

    async def add_episode(self, episode: EpisodeRecord) -> None:
        """Add a claimed episode.

        :raises StoreError: there is one of its id.
        """
        await self._write(lambda writer: writer.add_episode(episode))

    async def prepare_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write the outcome that an open episode of a joint one is to have.

        :return: the episode as it is stored now.
        :raises StoreError: there is no such episode, or `episode` is not prepared.
        """
        return await self._write(lambda writer: writer.prepare_episode(episode))

    async def finish_episode(self, episode: EpisodeRecord) -> EpisodeRecord:
        """Write an episode's outcome, unless it has one.

        :return: the episode as it is stored now.
        :raises StoreError: there is no such episode, or `episode` is still open.
        """
        return await self._write(lambda writer: writer.finish_episode(episode))

    async def give_up(self, episode_id: str) -> EpisodeRecord:
        """Note that nobody will try an aborted episode again.

        :return: the episode as it is stored now.
        :raises StoreError: there is no such episode, or it was not aborted.
        """
        return await self._write(lambda writer: writer.give_up(episode_id))

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """One episode."""
        return await self._read(lambda connection: reading.episode(connection, episode_id))

    async def claimed(self, claim_hash: str) -> EpisodeRecord | None:
        """The episode of a claim."""
        return await self._read(lambda connection: reading.claimed(connection, claim_hash))

    async def joint_parts(self, joint_ids: Sequence[str]) -> dict[str, EpisodeRecord]:
        """The parts of joint episodes, by joint id."""
        return await self._read(lambda connection: reading.joint_parts(connection, joint_ids))

    async def episodes(
        self, *, state: EpisodeState | None = None, batched: bool | None = None
    ) -> list[EpisodeRecord]:
        """Episodes in the order they were claimed."""
        return await self._read(lambda connection: reading.episodes(connection, state, batched))

    async def add_call(self, call: Call) -> None:
        """Record one model call.

        :raises StoreError: its episode is not in the store, its id is, or a token id does not fit into 32 bits.
        """
        await self._write(lambda writer: writer.add_call(call))

    async def calls(self, episode_ids: Sequence[str]) -> dict[str, list[Call]]:
        """Calls by episode."""
        return await self._read(lambda connection: reading.calls(connection, episode_ids))

    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch and give it its episodes, all or nothing.

        :raises StoreError: there is a batch of its id, or an episode is unknown, in another state or has a batch.
        """
        await self._write(lambda writer: writer.add_batch(batch))

    async def batches(self, *, after_step: int, refused: bool = False) -> list[BatchRecord]:
        """Batches for steps after `after_step`, in order of step: those to train, or those that were refused."""
        return await self._read(lambda connection: reading.batches(connection, after_step, refused))

    async def refuse_batch(self, batch_id: str, reason: str) -> None:
        """Note that a batch is not to be trained.

        :raises StoreError: there is no such batch.
        """
        await self._write(lambda writer: writer.refuse_batch(batch_id, reason))

    async def split_batch(self, batch_id: str, aside: BatchRecord) -> None:
        """Move episodes of a batch to another one that is refused, all or nothing.

        :raises StoreError: there is a batch of its id, or an episode is not one of `batch_id` that ended.
        """
        await self._write(lambda writer: writer.split_batch(batch_id, aside))

    async def group_counts(
        self, groups: Sequence[str], *, kind: EpisodeKind, client_id: str
    ) -> dict[str, GroupCount]:
        """The episodes of these groups that a client claimed, by group."""
        return await self._read(
            lambda connection: reading.group_counts(connection, groups, kind, client_id)
        )

    async def evaluation_counts(self, *, pass_reward: float) -> list[EvaluationCount]:
        """All evaluation episodes that are over, counted by client, tag, policy version and task."""
        return await self._read(
            lambda connection: reading.evaluation_counts(connection, pass_reward)
        )

    async def add_step(self, step: StepRecord, scores: Sequence[CallScore] = ()) -> None:
        """Record a finished step and what it made of its calls, replacing one of the same number.

        :raises StoreError: a call is not in the store.
        """
        await self._write(lambda writer: writer.add_step(step, scores))

    async def rewind(self, step: int, *, discard: BatchRecord | None = None) -> None:
        """Forget the steps after `step` and their scores; refuse what is not to be trained again."""
        await self._write(lambda writer: writer.rewind(step, discard))

    async def scores(self, episode_id: str) -> dict[str, CallScore]:
        """The latest score of each call of an episode, by call id."""
        return await self._read(lambda connection: reading.scores(connection, episode_id))

    async def steps(self) -> list[StepRecord]:
        """All finished steps, in order."""
        return await self._read(reading.steps)

    async def counters(self) -> dict[str, int]:
        """Running totals; no table is scanned."""
        return dict(self._need_open().writer.totals)

    def _need_open(self) -> _Opened:
        if self._opened is None:
            raise StoreError(f"the store {self._path} is not open")
        return self._opened

    def _translate(self, error: sqlite3.Error) -> StoreError:
        return store_error(error, self._path)

    async def _write(self, apply: Callable[[StoreWriter], T]) -> T:
        opened = self._need_open()
        return await opened.committer.write(functools.partial(apply, opened.writer))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        opened = self._need_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            opened.read_thread, self._snapshot, opened.read_connection, query
        )

    def _snapshot(
        self, connection: sqlite3.Connection, query: Callable[[sqlite3.Connection], T]
    ) -> T:
        """Run `query`'s statements on one state of the database."""
        try:
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._translate(error) from error
        except UNDECODABLE as error:
            raise damaged_record(error, self._path) from error

    def _connect(self) -> tuple[StoreWriter, sqlite3.Connection, sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the run directory: {error}") from error
        with contextlib.ExitStack() as undo:
            self._lock.acquire()
            undo.callback(self._lock.release)
            writing = connect_writer(self._path, self._settings)
            undo.callback(writing.close)
            reader = connect_reader(self._path, self._settings)
            undo.callback(reader.close)
            try:
                writer = StoreWriter(writing)
            except sqlite3.Error as error:
                raise self._translate(error) from error
            except UNDECODABLE as error:
                raise damaged_record(error, self._path) from error
            undo.pop_all()
        return writer, writing, reader

    def _disconnect(self, opened: _Opened) -> None:
        opened.read_thread.shutdown(wait=True)
        opened.read_connection.close()
        # The last connection to close folds the write-ahead log into the database.
        opened.write_connection.close()
        self._lock.release()
