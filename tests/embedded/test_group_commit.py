"""What happens to a group of writes when its transaction, or one of them, fails."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from ajet_core.errors import StoreError
from ajet_stores.group_commit import GroupCommitter


class Groups:
    """A database that keeps groups of numbers.

    A negative number fails alone, 99 fails the transaction, and 98 is a defect.
    """

    def __init__(self) -> None:
        self.committed: list[list[int]] = []

    def commit(self, writes: Sequence[int]) -> list[Exception | None]:
        """Commit a group."""
        if 99 in writes:
            raise StoreError("the disk is full") from OSError("28")
        if 98 in writes:
            raise ZeroDivisionError("a defect")
        self.committed.append([number for number in writes if number >= 0])
        return [StoreError(f"{number} is bad") if number < 0 else None for number in writes]


@pytest.fixture
def groups() -> Groups:
    """The database."""
    return Groups()


@pytest.fixture
async def committer(groups: Groups) -> AsyncIterator[GroupCommitter[int]]:
    """A committer of groups of at most four."""
    committer = GroupCommitter(groups.commit, max_waiting=4)
    yield committer
    await committer.close()


async def test_a_transaction_that_fails_fails_all_its_writers(
    committer: GroupCommitter[int], groups: Groups
) -> None:
    results = await asyncio.gather(committer.write(1), committer.write(99), return_exceptions=True)
    assert [type(result) for result in results] == [StoreError, StoreError]
    assert [str(result) for result in results] == ["the disk is full"] * 2
    assert results[0] is not results[1]
    assert all(isinstance(result.__cause__, OSError) for result in results if result)
    assert committer.transactions == 0
    await committer.write(1)
    assert groups.committed == [[1]]


async def test_a_write_that_fails_alone_does_not_stop_the_others(
    committer: GroupCommitter[int], groups: Groups
) -> None:
    results = await asyncio.gather(committer.write(-1), committer.write(2), return_exceptions=True)
    assert isinstance(results[0], StoreError)
    assert results[1] is None
    assert groups.committed == [[2]]
    assert committer.transactions == 1


async def test_a_defect_does_not_end_the_thread(
    committer: GroupCommitter[int], groups: Groups
) -> None:
    with pytest.raises(ZeroDivisionError):
        await committer.write(98)
    await committer.write(1)
    assert groups.committed == [[1]]


async def test_a_transaction_is_bounded_and_waiters_keep_their_order(
    committer: GroupCommitter[int], groups: Groups
) -> None:
    await asyncio.gather(*map(committer.write, range(10)))
    assert [number for group in groups.committed for number in group] == list(range(10))
    assert committer.transactions == 3


async def test_a_writer_that_waits_for_a_place_when_the_store_closes_gets_an_error(
    committer: GroupCommitter[int],
) -> None:
    writes = [asyncio.ensure_future(committer.write(1)) for _ in range(5)]
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
