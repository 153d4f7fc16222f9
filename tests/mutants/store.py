"""Mutations of stores: SQLite's, and the one of lines of JSON."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ajet_core.errors import StoreError
from ajet_core.interfaces import (
    ALL_EPISODES,
    BatchRecord,
    EpisodeQuery,
    EpisodeRecord,
    Record,
    RewindRecord,
    StepRecord,
)
from ajet_core.timeline import Call
from ajet_server.store import file_lock, schema, sqlite_store, writing
from ajet_server.store.writing import StoreWriter
from ajet_stores import codec, group_commit, sql_reading, sql_store
from tests.embedded import jsonl_store
from tests.embedded.jsonl_store import JsonlStore, Records
from tests.mutants.planting import Mutants, around, put

sqlite = Mutants("store", "tests/embedded/test_sqlite_store_suite.py::TestSqliteStore")
jsonl = Mutants("store", "tests/embedded/test_jsonl_store_suite.py::TestJsonlStore")
ALL = (sqlite, jsonl)


@sqlite
def a_rewind_deletes_batches() -> None:
    def rewind(original: Any, self: Any, record: RewindRecord) -> None:
        original(self, record)
        self._connection.execute("UPDATE episodes SET batch_id = NULL")
        self._connection.execute("DELETE FROM batches WHERE step > ?", (record.step,))

    around(StoreWriter, "_rewind", rewind)


@sqlite
def a_rewind_keeps_the_scores_of_later_steps() -> None:
    def rewind(_: Any, self: Any, record: RewindRecord) -> None:
        self._connection.execute("DELETE FROM steps WHERE step > ?", (record.step,))

    around(StoreWriter, "_rewind", rewind)


@sqlite
def the_oldest_score_of_a_call_counts() -> None:
    sql_reading._SCORES += " DESC"


@sqlite
def two_servers_write_one_run() -> None:
    put(file_lock.FileLock, "acquire", lambda self: None)
    put(file_lock.FileLock, "release", lambda self: None)


@sqlite
def all_run_directories_share_a_database() -> None:
    shared = Path(tempfile.mkdtemp())

    def make(original: Any, self: Any, settings: Any, context: Any) -> None:
        # A new one for each test, but the same for all of its runs.
        test = next(p for p in (context.run_dir, *context.run_dir.parents) if "test_" in p.name)
        original(self, settings, replace(context, run_dir=shared / test.name))

    around(sqlite_store.SqliteStore, "__init__", make)


@sqlite
def texts_end_at_nul() -> None:
    put(codec, "pack_text", lambda text: text.partition("\0")[0].encode(errors="replace").decode())


@sqlite
def rewards_are_rounded_to_six_digits() -> None:
    def row(original: Any, episode: EpisodeRecord) -> codec.Row:
        reward = None if episode.reward is None else round(episode.reward, 6)
        return original(replace(episode, reward=reward))

    around(codec, "episode_row", row)


@sqlite
def logprobs_are_float32() -> None:
    def row(original: Any, *arguments: Any) -> Any:
        import struct

        values = list(original(*arguments))
        logprobs = codec.unpack_logprobs(values[8])
        narrow = struct.unpack(f"{len(logprobs)}f", struct.pack(f"{len(logprobs)}f", *logprobs))
        values[8] = codec.pack_logprobs(narrow)
        return tuple(values)

    around(codec, "call_row", row)


@sqlite
def the_base_of_a_call_is_lost() -> None:
    def row(original: Any, call: Call, episode: int, base: int | None, *rest: Any) -> Any:
        values = list(original(call, episode, base, *rest))
        values[4:6] = None, 0
        return tuple(values)

    around(codec, "call_row", row)


@sqlite
def a_call_without_its_base_keeps_only_its_own_tokens() -> None:
    def row(original: Any, call: Call, episode: int, base: int | None, *rest: Any) -> Any:
        if base is None and call.base is not None:
            call = replace(call, base=None, shared=0)
        return original(call, episode, base, *rest)

    around(codec, "call_row", row)


@sqlite
def calls_come_in_the_order_of_their_writes() -> None:
    def calls(original: Any, episode_id: str, rows: Any) -> list[Call]:
        rows = list(rows)
        order = {row[2]: place for place, row in enumerate(rows)}
        return sorted(original(episode_id, rows), key=lambda call: order[call.call_id])

    around(codec, "calls_from_rows", calls)


@sqlite
def tools_are_those_of_the_base() -> None:
    def row(original: Any, call: Call, episode: int, base: int | None, *rest: Any) -> Any:
        values = list(original(call, episode, base, *rest))
        if base is not None:
            values[18] = None
        return tuple(values)

    around(codec, "call_row", row)


@sqlite
def a_write_is_acknowledged_when_it_is_requested() -> None:
    async def write(original: Any, self: Any, records: Any) -> None:
        writes = asyncio.ensure_future(original(self, records))
        writes.add_done_callback(lambda done: done.cancelled() or done.exception())

    around(group_commit.GroupCommitter, "write", write)


@sqlite
def a_write_is_committed_with_the_next_one() -> None:
    def transaction(original: Any, self: Any, waiting: Any) -> Any:
        # Checked at once, and written when there is more.
        kept = getattr(self, "_kept", [])
        self._kept = [one.write for one in waiting]
        try:
            for write in kept:
                self._commit([write])
        except Exception as error:  # noqa: BLE001
            return [error for _ in waiting]
        return [None for _ in waiting]

    around(group_commit.GroupCommitter, "_transaction", transaction)


@sqlite
def a_cancelled_caller_takes_its_write_along() -> None:
    def hand_over(original: Any, self: Any) -> None:
        self._requested = [one for one in self._requested if not one.answer.cancelled()]
        original(self)

    around(group_commit.GroupCommitter, "_hand_over", hand_over)


@sqlite
def closing_drops_what_waits() -> None:
    async def close(original: Any, self: Any) -> None:
        for one in self._requested:
            one.answer.set_result(None)
        self._requested = []
        await original(self)

    around(group_commit.GroupCommitter, "close", close)


@sqlite
def a_failed_append_leaves_its_first_records() -> None:
    def append(_: Any, self: Any, records: Any) -> None:
        for record in records:
            self._put[type(record)](record)

    around(StoreWriter, "append", append)


@sqlite
def totals_count_what_was_undone() -> None:
    around(StoreWriter, "_forget", lambda original, self, pending: original(self, self._pending))


@sqlite
def row_ids_of_what_was_undone_are_remembered() -> None:
    def forget(_: Any, self: Any, pending: dict[str, int]) -> None:
        self._pending = pending

    around(StoreWriter, "_forget", forget)


@sqlite
def an_open_episode_replaces_another() -> None:
    writing._INSERT_EPISODE = writing._PUT_EPISODE


@sqlite
def an_outcome_takes_an_episode_out_of_its_batch() -> None:
    writing._PUT_EPISODE += ", batch_id = NULL"


@sqlite
def an_outcome_moves_an_episode_to_the_end() -> None:
    writing._PUT_EPISODE = writing._INSERT_EPISODE.replace("INSERT", "REPLACE", 1)


@sqlite
def a_batch_keeps_the_episodes_it_had() -> None:
    writing._RELEASE_EPISODES += " AND 0"


@sqlite
def a_batch_takes_episodes_in_any_state() -> None:
    writing._TAKE_EPISODE = writing._TAKE_EPISODE.replace("state = ?", "? != ''")


@sqlite
def episodes_of_a_batch_are_sorted() -> None:
    def members(original: Any, *arguments: Any) -> list[str]:
        return sorted(original(*arguments))

    around(sql_reading, "_members", members)


@sqlite
def refused_batches_are_trained() -> None:
    def batches(original: Any, execute: Any, after_step: int, refused: bool) -> Any:
        found = original(execute, after_step, refused)
        return found if refused else [*found, *original(execute, after_step, True)]

    around(sql_reading, "batches", batches)


@sqlite
def batches_of_the_step_itself_are_later_ones() -> None:
    def batches(original: Any, execute: Any, after_step: int, refused: bool) -> Any:
        return original(execute, after_step - 1, refused)

    around(sql_reading, "batches", batches)


@sqlite
def prefixes_are_patterns() -> None:
    def rows(original: Any, execute: Any, query: EpisodeQuery, *rest: Any, **named: Any) -> Any:
        def like(statement: str, parameters: Any = ()) -> Any:
            if query.prefix:
                parameters = list(parameters)
                statement = statement.replace("substr(episode_id, 1, ?) = ?", "episode_id LIKE ?")
                place = parameters.index(len(query.prefix))
                parameters[place : place + 2] = [f"{query.prefix}%"]
            return execute(statement, parameters)

        return original(like, query, *rest, **named)

    around(sql_reading, "episode_rows", rows)


@sqlite
def pages_lose_an_episode_between_them() -> None:
    def rows(original: Any, execute: Any, query: Any, after: Any, limit: int) -> Any:
        found = original(execute, query, after, limit)
        return found if after is None else [*found[1:], *found[:0]]

    around(sql_reading, "episode_rows", rows)


@sqlite
def the_newest_episodes_come_first_in_each_page_alone() -> None:
    def rows(original: Any, execute: Any, query: EpisodeQuery, after: Any, limit: int) -> Any:
        if not query.newest_first:
            return original(execute, query, after, limit)
        found = original(execute, replace(query, newest_first=False), after, limit)
        return found[::-1] if len(found) < limit else [*found[-2::-1], found[-1]]

    around(sql_reading, "episode_rows", rows)


@sqlite
def a_transaction_is_held_while_episodes_are_read() -> None:
    async def episodes(original: Any, self: Any, query: EpisodeQuery = ALL_EPISODES) -> Any:
        async with self._iterating:
            async for episode in original(self, query):
                yield episode

    async def append(original: Any, self: Any, *records: Record) -> None:
        async with self._iterating:
            await original(self, *records)

    async def opened(original: Any, self: Any, **named: Any) -> None:
        self._iterating = asyncio.Lock()
        await original(self, **named)

    store = sql_store.SqlStore
    for name, by in (("open", opened), ("append", append), ("episodes", episodes)):
        around(store, name, by)


@sqlite
def a_reader_locks_out_the_server() -> None:
    def connect(original: Any, self: Any, *, read_only: bool) -> None:
        if read_only:
            self._lock.acquire()
        original(self, read_only=read_only)

    around(sqlite_store.SqliteStore, "connect", connect)


@sqlite
def a_reader_creates_the_store() -> None:
    def connect(original: Any, self: Any, *, read_only: bool) -> None:
        if read_only:
            self._path.touch()
        original(self, read_only=read_only)

    around(sqlite_store.SqliteStore, "connect", connect)


@sqlite
def scores_of_a_step_are_added_to_those_before() -> None:
    def put(original: Any, self: Any, step: StepRecord) -> None:
        statements = self._connection.execute

        class Connection:
            def execute(self, statement: str, parameters: Sequence[object] = ()) -> Any:
                if statement.startswith("DELETE"):
                    return None
                return statements(
                    statement.replace("INSERT INTO scores", "REPLACE INTO scores"), parameters
                )

        whole, self._connection = self._connection, Connection()
        try:
            original(self, step)
        finally:
            self._connection = whole

    around(StoreWriter, "_put_step", put)


@sqlite
def a_full_disk_is_any_error() -> None:
    put(schema, "StoreFullError", StoreError)


@sqlite
def a_full_disk_keeps_a_part_of_an_append() -> None:
    def append(original: Any, self: Any, *records: Record) -> Any:
        async def one_by_one() -> None:
            for record in records:
                await original(self, record)

        return one_by_one()

    around(sql_store.SqlStore, "append", append)


@jsonl
def lines_stay_in_the_buffer_of_the_process() -> None:
    def opened(original: Any, self: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        file = original(self, mode, *rest, **named)
        if mode == "a" and self.suffix == ".jsonl":
            return _Unflushed(file)
        return file

    around(Path, "open", opened)


class _Unflushed:
    def __init__(self, file: Any) -> None:
        self.write, self.close = file.write, file.close

    def flush(self) -> None:
        pass


@jsonl
def what_is_requested_is_applied_before_it_is_checked() -> None:
    put(Records, "copy", lambda self: self)


@jsonl
def a_base_of_another_store_is_referred_to() -> None:
    class Known(dict[str, Any]):
        def __contains__(self, _: object) -> bool:
            return True

    def plain(original: Any, record: Record, known: Any) -> Any:
        return original(record, Known(known))

    around(jsonl_store, "_to_plain", plain)


@jsonl
def a_step_that_was_trained_again_is_listed_where_it_was_written() -> None:
    async def steps(_: Any, self: Any) -> list[StepRecord]:
        return [replace(step, scores=()) for step in self._now.steps.values()]

    around(JsonlStore, "steps", steps)


@jsonl
def an_episode_is_in_two_batches() -> None:
    def put(_: Any, self: Records, batch: BatchRecord) -> None:
        self.batches[batch.batch_id] = batch
        for episode_id in (*batch.episode_ids, *batch.aborted_ids):
            episode = self.episodes.get(episode_id)
            if episode is None or episode.state not in ("ended", "aborted"):
                raise StoreError(f"episode {episode_id} is not over")
            self.episodes[episode_id] = replace(episode, batch_id=batch.batch_id)

    around(Records, "_put_batch", put)


@jsonl
def an_episode_says_its_own_batch() -> None:
    def put(original: Any, self: Records, record: Record) -> None:
        original(self, record)
        if isinstance(record, EpisodeRecord):
            self.episodes[record.episode_id] = record

    around(Records, "put", put)


@jsonl
def a_closed_store_is_still_read() -> None:
    async def close(original: Any, self: Any) -> None:
        records = self._records
        await original(self)
        self._records = records

    around(JsonlStore, "close", close)


@jsonl
def opening_empties_the_store() -> None:
    async def opened(original: Any, self: Any, *, read_only: bool = False) -> None:
        if not read_only:
            self._path.unlink(missing_ok=True)
        await original(self, read_only=read_only)

    around(JsonlStore, "open", opened)
