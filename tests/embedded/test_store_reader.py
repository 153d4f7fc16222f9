"""Reading a run beside its server."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.errors import EpisodeNotFoundError, RequestError, StoreError
from ajet_core.interfaces import BatchRecord, CallScore, RunRecord, StepRecord, WorkerContext
from ajet_core.plugin import PluginManager
from ajet_installation.settings import StoreSettings
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.sqlite_store import SqliteStore
from ajet_server.store.store_reader import EpisodeChoice, StoreReader
from ajet_testing.suites.samples import conversation, make_episode

EPISODES = ("ep-1", "ep-12", "ep_2", "other")


def new_store(run_dir: Path) -> SqliteStore:
    return SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))


async def fill(store: SqliteStore) -> None:
    """ep-1 and ep-12 are trained in this order in step 2; ep_2 is open; other has another task."""
    await store.append(RunRecord("run", "{}", 1.0))
    for episode_id in EPISODES:
        group = "elsewhere" if episode_id == "other" else "task"
        await store.append(make_episode(episode_id, group=group))
        for call in conversation(2, episode_id=episode_id):
            await store.append(call)
    for episode_id in ("ep-12", "ep-1"):
        await store.append(replace(make_episode(episode_id), state="ended", reward=1.0))
    await store.append(BatchRecord("b", 2, ["ep-12", "ep-1"], 1.0))
    scores = [CallScore("ep-1-0", 0.5, [-1.0] * 3)]
    await store.append(StepRecord(2, "b", {}, 1.0, scores))


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


def reading(run_dir: Path, file: str = "samples.sqlite3") -> StoreReader:
    return StoreReader(SqliteStore(SqliteStoreSettings(file=file), WorkerContext(run_dir)), run_dir)


@pytest.fixture
async def reader(run_dir: Path) -> AsyncIterator[StoreReader]:
    async with reading(run_dir) as opened:
        yield opened


async def test_it_reads_while_a_server_writes(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    await store.open()
    try:
        await fill(store)
        async with reading(tmp_path) as reader:
            assert len((await reader.load("ep-1")).calls) == 2
            await store.append(make_episode("later"))
            assert await reader.find("lat") == "later"
    finally:
        await store.close()


async def test_a_server_can_start_while_it_reads(run_dir: Path) -> None:
    async with reading(run_dir) as reader:
        store = new_store(run_dir)
        await store.open()
        await store.append(make_episode("later"))
        await store.close()
        assert await reader.count(EpisodeChoice()) == len(EPISODES) + 1


async def test_it_gives_what_was_stored(reader: StoreReader) -> None:
    stored = await reader.load("ep-1")
    assert stored.calls == conversation(2, episode_id="ep-1")
    assert stored.step == 2
    assert stored.scores == {"ep-1-0": CallScore("ep-1-0", 0.5, [-1.0] * 3)}
    assert stored.record.reward == 1.0
    run = await reader.run()
    assert run is not None
    assert run.run_id == "run"


async def test_an_episode_without_a_batch_has_no_step(reader: StoreReader) -> None:
    assert (await reader.load("ep_2")).step is None


async def test_what_was_aborted_while_a_batch_was_filled_is_of_no_step(run_dir: Path) -> None:
    store = new_store(run_dir)
    await store.open()
    await store.append(replace(make_episode("ep_2"), state="aborted", cause="error"))
    await store.append(BatchRecord("next", 3, [], 1.0, aborted_ids=["ep_2"]))
    await store.append(StepRecord(3, "next", {}, 1.0))
    await store.close()
    async with reading(run_dir) as reader:
        assert await reader.episode_ids(EpisodeChoice(step=3)) == []
        assert (await reader.load("ep_2")).step is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (EpisodeChoice(), list(EPISODES)),
        (EpisodeChoice(state="open"), ["ep_2", "other"]),
        (EpisodeChoice(task_id="elsewhere-1"), ["other"]),
        (EpisodeChoice(step=2), ["ep-12", "ep-1"]),
        (EpisodeChoice(step=2, state="open"), []),
        (EpisodeChoice(step=3), []),
    ],
)
async def test_episodes_are_chosen(
    reader: StoreReader, query: EpisodeChoice, expected: list[str]
) -> None:
    assert await reader.episode_ids(query) == expected
    assert await reader.count(query) == len(expected)


async def test_the_newest_come_first_if_asked(reader: StoreReader) -> None:
    found = await reader.episode_ids(EpisodeChoice(), newest_first=True, limit=2)
    assert found == ["other", "ep_2"]


async def test_the_beginning_of_an_id_is_enough(reader: StoreReader) -> None:
    assert await reader.find("o") == "other"


async def test_an_id_that_others_begin_with_is_found(reader: StoreReader) -> None:
    assert await reader.find("ep-1") == "ep-1"


async def test_an_ambiguous_beginning_names_the_episodes(reader: StoreReader) -> None:
    with pytest.raises(RequestError, match=r"several episode ids begin with 'ep-': ep-1, ep-12;"):
        await reader.find("ep-")


@pytest.mark.parametrize("prefix", ["ep%", "x"])
async def test_an_unknown_beginning_is_an_error(reader: StoreReader, prefix: str) -> None:
    with pytest.raises(EpisodeNotFoundError, match=prefix):
        await reader.find(prefix)


async def test_an_underscore_stands_for_itself(reader: StoreReader) -> None:
    assert await reader.find("ep_") == "ep_2"


async def test_the_file_itself_may_be_named(run_dir: Path) -> None:
    path = (run_dir / "samples.sqlite3").rename(run_dir / "copy.db")
    store = store_of_run(path, StoreSettings(), PluginManager())
    async with StoreReader(store, path) as reader:
        assert await reader.find("other") == "other"


async def test_a_directory_above_is_told_where_the_run_is(run_dir: Path) -> None:
    with pytest.raises(StoreError, match=f"{run_dir} contains one"):
        await reading(run_dir.parent).__aenter__()


def block_the_log(run_dir: Path) -> None:
    """Make the files beside the database impossible, as a directory without leave to write does."""
    for suffix in ("-wal", "-shm"):
        path = run_dir / f"samples.sqlite3{suffix}"
        path.unlink(missing_ok=True)
        path.mkdir()


async def test_an_idle_store_is_read_where_nothing_can_be_written(run_dir: Path) -> None:
    block_the_log(run_dir)
    async with reading(run_dir) as reader:
        assert await reader.count(EpisodeChoice()) == len(EPISODES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_an_idle_store_is_read_in_a_directory_of_someone_else(run_dir: Path) -> None:
    run_dir.chmod(0o555)
    try:
        async with reading(run_dir) as reader:
            assert await reader.count(EpisodeChoice()) == len(EPISODES)
    finally:
        run_dir.chmod(0o755)


# SQLite itself asks for the log a hundred times, with pauses of ten seconds in all.
@pytest.mark.slow
async def test_a_log_that_cannot_be_read_is_explained(run_dir: Path) -> None:
    block_the_log(run_dir)
    (run_dir / "samples.sqlite3-wal").rmdir()
    (run_dir / "samples.sqlite3-wal").write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="copy the run directory"):
        await reading(run_dir).__aenter__()


async def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(StoreError, match="not an agentjet store"):
        await reading(tmp_path).__aenter__()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "samples.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="is damaged"):
        await reading(tmp_path).__aenter__()


async def test_another_schema_is_refused(run_dir: Path) -> None:
    connection = sqlite3.connect(run_dir / "samples.sqlite3")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreError, match="schema 999"):
        await reading(run_dir).__aenter__()


async def test_refused_batches_are_apart_from_the_step_that_took_their_number(
    tmp_path: Path,
) -> None:
    store = new_store(tmp_path)
    await store.open()
    try:
        for episode_id in ("refused", "trained"):
            await store.append(make_episode(episode_id))
            await store.append(replace(make_episode(episode_id), state="ended", reward=1.0))
            await store.append(BatchRecord(f"b-{episode_id}", 1, [episode_id], 1.0))
        refused = BatchRecord("b-refused", 1, ["refused"], 1.0, refused="its loss is NaN")
        await store.append(refused)
        await store.append(StepRecord(1, "b-trained", {}, 1.0))
        async with reading(tmp_path) as reader:
            assert await reader.episode_ids(EpisodeChoice(step=1)) == ["trained"]
            assert await reader.episode_ids(EpisodeChoice(refused=True)) == ["refused"]
            assert await reader.episode_ids(EpisodeChoice(step=1, refused=True)) == ["refused"]
            assert await reader.episode_ids(EpisodeChoice(step=2, refused=True)) == []
            assert (await reader.load("refused")).step is None
            assert [(b.batch_id, b.refused) for b in await reader.refused()] == [
                ("b-refused", "its loss is NaN")
            ]
    finally:
        await store.close()
