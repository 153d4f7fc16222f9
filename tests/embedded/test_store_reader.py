"""Reading a run beside its server."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.errors import EpisodeNotFoundError, RequestError, StoreError
from ajet_core.interfaces import BatchRecord, CallScore, RunRecord, StepRecord, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_server.store.store_reader import EpisodeQuery, StoreReader
from ajet_testing.suites.samples import conversation, make_episode

EPISODES = ("ep-1", "ep-12", "ep_2", "other")


def new_store(run_dir: Path) -> SqliteStore:
    return SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))


async def fill(store: SqliteStore) -> None:
    """ep-1 and ep-12 are ended and trained in this order in step 2, ep_2 is open, other is of another task."""
    await store.put_run(RunRecord("run", "{}", 1.0))
    for episode_id in EPISODES:
        group = "elsewhere" if episode_id == "other" else "task"
        await store.add_episode(make_episode(episode_id, group=group))
        for call in conversation(2, episode_id=episode_id):
            await store.add_call(call)
    for episode_id in ("ep-12", "ep-1"):
        await store.finish_episode(replace(make_episode(episode_id), state="ended", reward=1.0))
    await store.add_batch(BatchRecord("b", 2, ["ep-12", "ep-1"], 1.0))
    await store.add_step(StepRecord(2, "b", {}, 1.0), [CallScore("ep-1-0", 0.5, [-1.0] * 3)])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "run"

    async def write() -> None:
        store = new_store(directory)
        await store.open()
        await fill(store)
        await store.close()

    asyncio.run(write())
    return directory


@pytest.fixture
def reader(run_dir: Path) -> Iterator[StoreReader]:
    with StoreReader(run_dir) as opened:
        yield opened


async def test_it_reads_while_a_server_writes(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    await store.open()
    try:
        await fill(store)
        with StoreReader(tmp_path) as reader:
            assert len(reader.load("ep-1").calls) == 2
            await store.add_episode(make_episode("later"))
            assert reader.find("lat") == "later"
    finally:
        await store.close()


async def test_a_server_can_start_while_it_reads(run_dir: Path) -> None:
    with StoreReader(run_dir) as reader:
        store = new_store(run_dir)
        await store.open()
        await store.add_episode(make_episode("later"))
        await store.close()
        assert reader.count(EpisodeQuery()) == len(EPISODES) + 1


def test_it_gives_what_was_stored(reader: StoreReader) -> None:
    stored = reader.load("ep-1")
    assert stored.calls == conversation(2, episode_id="ep-1")
    assert stored.step == 2
    assert stored.scores == {"ep-1-0": CallScore("ep-1-0", 0.5, [-1.0] * 3)}
    assert stored.record.reward == 1.0
    run = reader.run()
    assert run is not None
    assert run.run_id == "run"


def test_an_episode_without_a_batch_has_no_step(reader: StoreReader) -> None:
    assert reader.load("ep_2").step is None


async def test_what_was_aborted_while_a_batch_was_filled_is_of_no_step(run_dir: Path) -> None:
    store = new_store(run_dir)
    await store.open()
    await store.finish_episode(replace(make_episode("ep_2"), state="aborted", cause="error"))
    await store.add_batch(BatchRecord("next", 3, [], 1.0, aborted_ids=["ep_2"]))
    await store.add_step(StepRecord(3, "next", {}, 1.0))
    await store.close()
    with StoreReader(run_dir) as reader:
        assert reader.episode_ids(EpisodeQuery(step=3)) == []
        assert reader.load("ep_2").step is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (EpisodeQuery(), list(EPISODES)),
        (EpisodeQuery(state="open"), ["ep_2", "other"]),
        (EpisodeQuery(task_id="elsewhere-1"), ["other"]),
        (EpisodeQuery(step=2), ["ep-12", "ep-1"]),
        (EpisodeQuery(step=2, state="open"), []),
        (EpisodeQuery(step=3), []),
    ],
)
def test_episodes_are_chosen(reader: StoreReader, query: EpisodeQuery, expected: list[str]) -> None:
    assert reader.episode_ids(query) == expected
    assert reader.count(query) == len(expected)


def test_the_newest_come_first_if_asked(reader: StoreReader) -> None:
    found = reader.episode_ids(EpisodeQuery(), newest_first=True, limit=2)
    assert found == ["other", "ep_2"]


def test_the_beginning_of_an_id_is_enough(reader: StoreReader) -> None:
    assert reader.find("o") == "other"


def test_an_id_that_others_begin_with_is_found(reader: StoreReader) -> None:
    assert reader.find("ep-1") == "ep-1"


def test_an_ambiguous_beginning_names_the_episodes(reader: StoreReader) -> None:
    with pytest.raises(RequestError, match=r"several episodes begin with 'ep-': ep-1, ep-12;"):
        reader.find("ep-")


@pytest.mark.parametrize("prefix", ["ep%", "x"])
def test_an_unknown_beginning_is_an_error(reader: StoreReader, prefix: str) -> None:
    with pytest.raises(EpisodeNotFoundError, match=prefix):
        reader.find(prefix)


def test_an_underscore_stands_for_itself(reader: StoreReader) -> None:
    assert reader.find("ep_") == "ep_2"


def test_the_file_itself_may_be_named(run_dir: Path) -> None:
    with StoreReader(run_dir / "samples.sqlite3") as reader:
        assert reader.find("other") == "other"


def test_a_directory_above_is_told_where_the_run_is(run_dir: Path) -> None:
    with pytest.raises(StoreError, match=f"there is one in {run_dir}"):
        StoreReader(run_dir.parent)


def block_the_log(run_dir: Path) -> None:
    """Make the files beside the database impossible, as a directory without leave to write does."""
    for suffix in ("-wal", "-shm"):
        path = run_dir / f"samples.sqlite3{suffix}"
        path.unlink(missing_ok=True)
        path.mkdir()


def test_an_idle_store_is_read_where_nothing_can_be_written(run_dir: Path) -> None:
    block_the_log(run_dir)
    with StoreReader(run_dir) as reader:
        assert reader.count(EpisodeQuery()) == len(EPISODES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_idle_store_is_read_in_a_directory_of_someone_else(run_dir: Path) -> None:
    run_dir.chmod(0o555)
    try:
        with StoreReader(run_dir) as reader:
            assert reader.count(EpisodeQuery()) == len(EPISODES)
    finally:
        run_dir.chmod(0o755)


def test_a_log_that_cannot_be_read_is_explained(run_dir: Path) -> None:
    block_the_log(run_dir)
    (run_dir / "samples.sqlite3-wal").rmdir()
    (run_dir / "samples.sqlite3-wal").write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="copy the run directory"):
        StoreReader(run_dir)


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(StoreError, match="not a store of agentjet"):
        StoreReader(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="is damaged"):
        StoreReader(tmp_path)


def test_another_schema_is_refused(run_dir: Path) -> None:
    connection = sqlite3.connect(run_dir / "samples.sqlite3")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreError, match="schema 999"):
        StoreReader(run_dir)


async def test_refused_batches_are_apart_from_the_step_that_took_their_number(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path)
    await store.open()
    try:
        for episode_id in ("refused", "trained"):
            await store.add_episode(make_episode(episode_id))
            await store.finish_episode(replace(make_episode(episode_id), state="ended", reward=1.0))
            await store.add_batch(BatchRecord(f"b-{episode_id}", 1, [episode_id], 1.0))
        await store.refuse_batch("b-refused", "its loss is NaN")
        await store.add_step(StepRecord(1, "b-trained", {}, 1.0))
        with StoreReader(tmp_path) as reader:
            assert reader.episode_ids(EpisodeQuery(step=1)) == ["trained"]
            assert reader.episode_ids(EpisodeQuery(refused=True)) == ["refused"]
            assert reader.episode_ids(EpisodeQuery(step=1, refused=True)) == ["refused"]
            assert reader.episode_ids(EpisodeQuery(step=2, refused=True)) == []
            assert reader.load("refused").step is None
            assert [(b.batch_id, b.refused) for b in reader.refused()] == [
                ("b-refused", "its loss is NaN")
            ]
    finally:
        await store.close()
