"""Group commit, full disks, damaged files, second openers, and death while writing."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.errors import StoreError, StoreFullError
from ajet_core.interfaces import EpisodeQuery, WorkerContext
from ajet_core.timeline import Call
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.schema import connect_writer
from ajet_server.store.sqlite_store import SqliteStore
from ajet_server.store.writing import StoreWriter
from ajet_testing.suites.samples import conversation, make_call, make_episode


def make_store(run_dir: Path, **settings: object) -> SqliteStore:
    return SqliteStore(SqliteStoreSettings.model_validate(settings), WorkerContext(run_dir))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = make_store(tmp_path)
    await store.open()
    await store.append(make_episode())
    yield store
    await store.close()


async def test_concurrent_writes_share_a_transaction(store: SqliteStore) -> None:
    before = store.transactions
    await asyncio.gather(*(store.append(call) for call in conversation(64)))
    assert store.transactions == before + 1


def commits_fail(connection: sqlite3.Connection) -> None:
    """Make SQLite refuse to commit."""

    def deny(action: int, what: str | None, *_: str | None) -> int:
        commits = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if commits else sqlite3.SQLITE_OK

    connection.set_authorizer(deny)


def test_rows_of_a_transaction_that_failed_are_not_known_any_more(tmp_path: Path) -> None:
    connection = connect_writer(tmp_path / "samples.sqlite3", SqliteStoreSettings())
    writer = StoreWriter(connection, tmp_path)
    call = make_call("call", [1], [2])
    commits_fail(connection)
    for _ in range(2):
        with pytest.raises(StoreError, match="not authorized"):
            writer.commit([[make_episode()], [call]])
        assert not connection.in_transaction
    connection.set_authorizer(None)
    (error,) = writer.commit([[call]])
    assert isinstance(error, StoreError)
    assert "is not in the store" in str(error)
    connection.close()


async def test_writes_one_after_the_other_are_each_committed(store: SqliteStore) -> None:
    before = store.transactions
    for call in conversation(3):
        await store.append(call)
    assert store.transactions == before + 3


async def test_more_writers_than_places_are_all_served_in_order(store: SqliteStore) -> None:
    done: list[int] = []
    calls = [make_call(f"call-{i}", [i], [1], index=i) for i in range(3000)]

    async def write(call: Call) -> None:
        await store.append(call)
        done.append(call.index)

    await asyncio.gather(*map(write, calls))
    assert done == list(range(3000))
    assert (await store.calls(["episode"]))["episode"] == calls


async def test_a_cancelled_writer_leaves_its_write_and_its_place(store: SqliteStore) -> None:
    task = asyncio.ensure_future(store.append(make_call("call", [1], [2])))
    await asyncio.sleep(0)
    task.cancel()
    await store.append(make_call("next", [1], [2], index=1))
    assert [c.call_id for c in (await store.calls(["episode"]))["episode"]] == ["call", "next"]


async def test_a_conversation_takes_space_linear_in_its_tokens(
    store: SqliteStore, tmp_path: Path
) -> None:
    calls = conversation(200)
    for call in calls:
        await store.append(call)
    with sqlite3.connect(tmp_path / "samples.sqlite3") as connection:
        (stored,) = connection.execute("SELECT sum(length(suffix) + length(sampled)) FROM calls")
    connection.close()
    assert stored[0] == 4 * len(calls[-1].token_ids)


@pytest.mark.parametrize("bad", [[-1], [2**32], ["token"]])
async def test_a_token_id_that_does_not_fit_is_refused(store: SqliteStore, bad: list[int]) -> None:
    with pytest.raises(ValueError, match="a token id is invalid"):
        make_call("call", bad, [2])
    with pytest.raises(StoreError, match="token ids"):
        await store.append(make_call("call", [1], bad))
    await store.append(make_call("call", [2**32 - 1, 0], [2**32 - 1]))


def big_call(number: int) -> Call:
    return make_call(f"big-{number}", list(range(20_000)), [1], index=number)


async def fill(store: SqliteStore) -> int:
    """Write until the store is full; the number of calls that were kept."""
    for number in range(1000):
        try:
            await store.append(big_call(number))
        except StoreFullError:
            return number
    raise AssertionError("the quota was not kept")


async def test_a_long_prompt_is_stored_compressed(store: SqliteStore, tmp_path: Path) -> None:
    first = big_call(0)
    longer = replace(
        make_call("longer", [], [5], index=1),
        base=first,
        shared=first.length,
        suffix_ids=[7] * 9000,
    )
    short = make_call("short", longer.prompt_ids, [6], index=2, parent=longer)
    # Each is written after its base, even though packing the base takes longer.
    await asyncio.gather(*map(store.append, (first, longer, short)))
    assert (await store.calls(["episode"]))["episode"] == [first, longer, short]
    with sqlite3.connect(tmp_path / "samples.sqlite3") as connection:
        (stored,) = connection.execute("SELECT sum(length(suffix)) FROM calls").fetchone()
    connection.close()
    assert stored < 4 * longer.length / 2


async def test_a_cancelled_writer_of_a_long_prompt_leaves_its_write(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.open()
    await store.append(make_episode())
    task = asyncio.ensure_future(store.append(big_call(0)))
    await asyncio.sleep(0)
    task.cancel()
    await store.close()
    await store.open()
    assert (await store.calls(["episode"]))["episode"] == [big_call(0)]
    await store.close()


async def test_a_full_store_keeps_what_it_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    store = make_store(tmp_path, max_mib=1)
    await store.open()
    await store.append(make_episode())
    kept = await fill(store)
    assert kept > 0
    with pytest.raises(StoreFullError, match="max_mib"):
        await store.append(big_call(kept))
    totals = await store.call_totals()
    assert totals.calls == kept
    assert len((await store.calls(["episode"]))["episode"]) == kept
    results = await asyncio.gather(
        *(store.append(big_call(500 + i)) for i in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreFullError] * 3
    assert await store.call_totals() == totals
    await store.close()
    assert (tmp_path / "samples.sqlite3").stat().st_size <= 2**20


async def test_a_full_store_goes_on_when_the_quota_is_raised(tmp_path: Path) -> None:
    store = make_store(tmp_path, max_mib=1)
    await store.open()
    await store.append(make_episode())
    kept = await fill(store)
    await store.close()
    store = make_store(tmp_path, max_mib=8)
    await store.open()
    await store.append(big_call(kept))
    assert (await store.call_totals()).calls == kept + 1
    await store.close()


async def test_small_writes_go_on_after_one_that_was_too_large(tmp_path: Path) -> None:
    store = make_store(tmp_path, max_mib=1)
    await store.open()
    await store.append(make_episode())
    first = make_call("first", [1, 2], [3])
    await store.append(first)
    with pytest.raises(StoreFullError):
        await store.append(
            make_call("huge", random.Random(0).choices(range(2**32), k=400_000), [1])
        )
    # Its parent is no longer held after the rollback: the prompt is stored in full.
    second = make_call("second", [1, 2, 3, 4], [5], index=1, parent=first)
    await store.append(second)
    assert (await store.calls(["episode"]))["episode"] == [first, second]
    await store.close()


async def test_a_second_opener_is_told_who_has_the_store(
    store: SqliteStore, tmp_path: Path
) -> None:
    second = make_store(tmp_path)
    with pytest.raises(StoreError, match=str(os.getpid())):
        await second.open()
    await store.append(make_call("call", [1], [2]))


async def test_a_store_is_opened_once(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match="already open"):
        await store.open()


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.open()
    await store.close()
    connection = sqlite3.connect(tmp_path / "samples.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="newer agentjet"):
        await store.open()


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "samples.sqlite3")
    connection.execute("CREATE TABLE theirs (a)")
    connection.close()
    with pytest.raises(StoreError, match="not an agentjet store"):
        await make_store(tmp_path).open()


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "samples.sqlite3").write_bytes(b"not a database, but long enough to be read" * 100)
    with pytest.raises(StoreError, match=r"damaged.*backup"):
        await make_store(tmp_path).open()


async def test_a_damaged_page_is_reported_when_it_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await store.open()
    await store.append(make_episode())
    for call in conversation(200):
        await store.append(call)
    await store.close()
    path = tmp_path / "samples.sqlite3"
    # The file header and schema stay; every page after them is garbage.
    data = bytearray(path.read_bytes())
    data[20 * 4096 :] = b"\xa5" * (len(data) - 20 * 4096)
    path.write_bytes(data)
    await store.open()
    with pytest.raises(StoreError, match="damaged"):
        await store.calls(["episode"])
    await store.close()


async def test_a_missing_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="run directory"):
        await make_store(tmp_path / "file").open()


WRITER = """
import asyncio, sys
from pathlib import Path
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_core.interfaces import WorkerContext
from ajet_testing.suites.samples import conversation, make_episode
from dataclasses import replace

async def episode(store, name):
    await store.append(make_episode(name))
    for call in conversation(12, episode_id=name):
        await store.append(call)
        print("call", name, call.index, flush=True)
    await store.append(replace(make_episode(name), state="ended", reward=0.5))
    print("end", name, 0, flush=True)

async def main():
    store = SqliteStore(SqliteStoreSettings(), WorkerContext(Path(sys.argv[1])))
    await store.open()
    for turn in range(10_000):
        await asyncio.gather(*(episode(store, f"{turn}-{i}") for i in range(8)))

asyncio.run(main())
"""


def write_and_die(run_dir: Path, acks: int) -> list[list[str]]:
    """Kill a writing process after some acknowledgements; return all: [kind, episode, index]."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run_dir)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(acks)]
    os.kill(writer.pid, signal.SIGKILL)
    rest, _ = writer.communicate()
    # The last line may be cut off; what is complete was acknowledged.
    lines += rest[: rest.rfind("\n") + 1].splitlines()
    return [line.split() for line in lines]


@pytest.mark.processes
@pytest.mark.parametrize("acks", [1, 33, 137, 401])
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, acks: int) -> None:
    acknowledged = await asyncio.to_thread(write_and_die, tmp_path, acks)
    store = make_store(tmp_path)
    await store.open()
    names = [e.episode_id async for e in store.episodes()]
    stored = await store.calls(names)
    ended = {e.episode_id async for e in store.episodes(EpisodeQuery(state="ended"))}
    for what, name, index in acknowledged:
        if what == "call":
            assert int(index) < len(stored[name])
        else:
            assert name in ended
    for name, calls in stored.items():
        # In order and whole: no call is there without those that were requested before it.
        assert calls == conversation(12, episode_id=name)[: len(calls)]
        assert name not in ended or len(calls) == 12
    assert (await store.call_totals()).calls == sum(map(len, stored.values()))
    await store.append(make_episode("after"))
    await store.close()


async def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path) -> None:
    """After a power cut the log is there up to the last sync, and nonsense may follow it.

    With ``synchronous = FULL`` SQLite syncs the log before a commit returns; so whatever of the log
    an acknowledged write had behind it when it was acknowledged is there.
    """
    store = make_store(tmp_path / "run")
    await store.open()
    database = tmp_path / "run" / "samples.sqlite3"
    log = database.with_name(f"{database.name}-wal")
    writing = store._connected.writing
    assert writing is not None
    (level,) = writing.execute("PRAGMA synchronous").fetchone()
    assert level == 2
    before = database.read_bytes()
    synced: list[int] = []
    for number in range(24):
        await store.append(make_episode(f"e{number}"))
        synced.append(log.stat().st_size)
    image = log.read_bytes()
    assert database.read_bytes() == before
    await store.close()
    rng = random.Random(0)
    for number, length in enumerate(synced):
        # Somewhere between this write's sync and the next one's, with a torn page behind it.
        following = synced[number + 1] if number + 1 < len(synced) else length
        cut = rng.randrange(length, max(length, following - 1) + 1)
        crashed = tmp_path / f"crash-{number}"
        crashed.mkdir()
        (crashed / database.name).write_bytes(before)
        (crashed / log.name).write_bytes(image[:cut] + rng.randbytes(700))
        again = make_store(crashed)
        await again.open()
        names = [e.episode_id async for e in again.episodes()]
        assert names == [f"e{n}" for n in range(number + 1)]
        await again.append(make_episode("after"))
        await again.close()


async def test_a_failed_opening_leaves_the_lock_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "samples.sqlite3").write_bytes(b"not a database, but long enough to be read" * 100)
    with pytest.raises(StoreError):
        await make_store(tmp_path).open()
    (tmp_path / "samples.sqlite3").unlink()
    store = make_store(tmp_path)
    await store.open()
    await store.close()


async def test_a_database_another_program_has_locked_is_reported(
    store: SqliteStore, tmp_path: Path
) -> None:
    await store.close()
    store = make_store(tmp_path, busy_timeout_ms=0)
    await store.open()
    other = sqlite3.connect(tmp_path / "samples.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked by another program"):
        await store.append(make_call("call", [1], [2]))
    other.execute("ROLLBACK")
    other.close()
    await store.append(make_call("call", [1], [2]))
    await store.close()
