"""What happens to a group of writes when its transaction, or one of them, fails."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from ajet_core.errors import StoreError
from ajet_server.store.group_commit import GroupCommitter, savepoint
from ajet_server.store.schema import ends_transaction, store_error


class Owner:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def before_commit(self) -> None:
        self.calls.append("before_commit")

    def committed(self) -> None:
        self.calls.append("committed")

    def rolled_back(self) -> None:
        self.calls.append("rolled_back")


@pytest.fixture
def connection() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    # Checked when the transaction commits, and so the way to make a COMMIT itself fail.
    connection.execute(
        "CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER "
        "REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    return connection


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
async def committer(connection: sqlite3.Connection, owner: Owner) -> AsyncIterator[GroupCommitter]:
    committer = GroupCommitter(
        connection,
        owner,
        fatal=ends_transaction,
        translate=lambda error: store_error(error, Path("store")),
        max_waiting=4,
    )
    yield committer
    await committer.close()
    connection.close()


def children(connection: sqlite3.Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT id FROM children ORDER BY id")]


async def test_a_commit_that_fails_fails_its_writers_and_leaves_nothing(
    committer: GroupCommitter, connection: sqlite3.Connection, owner: Owner
) -> None:
    def good() -> None:
        connection.execute("INSERT INTO children VALUES (1, NULL)")

    def bad() -> None:
        connection.execute("INSERT INTO children VALUES (2, 99)")

    results = await asyncio.gather(
        committer.write(good), committer.write(bad), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreError, StoreError]
    assert results[0] is not results[1]
    assert children(connection) == []
    assert committer.transactions == 0
    assert owner.calls == ["before_commit", "rolled_back"]
    await committer.write(good)
    assert children(connection) == [1]


async def test_a_defect_in_one_write_does_not_stop_the_others(
    committer: GroupCommitter, connection: sqlite3.Connection
) -> None:
    def good() -> str:
        connection.execute("INSERT INTO children VALUES (1, NULL)")
        return "stored"

    def defect() -> None:
        raise ZeroDivisionError("a defect")

    results = await asyncio.gather(
        committer.write(defect), committer.write(good), return_exceptions=True
    )
    assert isinstance(results[0], ZeroDivisionError)
    assert results[1] == "stored"
    assert committer.transactions == 1


async def test_a_savepoint_undoes_its_own_statements_only(
    committer: GroupCommitter, connection: sqlite3.Connection
) -> None:
    def insert(*ids: int) -> None:
        with savepoint(connection):
            for number in ids:
                connection.execute("INSERT INTO children VALUES (?, NULL)", (number,))

    results = await asyncio.gather(
        committer.write(lambda: insert(1)),
        committer.write(lambda: insert(2, 3, 1)),
        committer.write(lambda: insert(4)),
        return_exceptions=True,
    )
    assert isinstance(results[1], StoreError)
    assert children(connection) == [1, 4]


async def test_a_transaction_is_bounded_and_waiters_keep_their_order(
    committer: GroupCommitter,
) -> None:
    order: list[int] = []
    await asyncio.gather(*(committer.write(partial(order.append, i)) for i in range(10)))
    assert order == list(range(10))
    assert committer.transactions == 3


async def test_a_writer_that_waits_for_a_place_when_the_store_closes_is_told(
    committer: GroupCommitter,
) -> None:
    writes = [asyncio.ensure_future(committer.write(lambda: None)) for _ in range(5)]
    await asyncio.sleep(0)
    await committer.close()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert results[:4] == [None] * 4
    assert isinstance(results[4], StoreError)


LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_core.errors import StoreError
from ajet_core.interfaces import WorkerContext
from ajet_testing.suites.samples import make_call, make_episode

async def main():
    store = SqliteStore(SqliteStoreSettings(), WorkerContext(Path(sys.argv[1])))
    await store.open()
    await store.append(make_episode())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    kept = failed = 0
    for i in range(40):
        try:
            await store.append(make_call(f"call-{i}", list(range(20_000)), [1], index=i))
            kept += 1
        except StoreError:
            failed += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.append(make_call("after", [1], [2], index=99))
    assert kept and failed, (kept, failed)
    assert (await store.call_totals()).calls == kept + 1
    await store.close()
    await store.open()
    assert len((await store.calls(["episode"]))["episode"]) == kept + 1
    await store.close()

asyncio.run(main())
"""


@pytest.mark.processes
def test_a_disk_that_refuses_to_write_fails_the_writers_until_it_writes_again(
    tmp_path: Path,
) -> None:
    # The kernel refuses to let files grow past the limit: pages are written when a transaction
    # commits.
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
