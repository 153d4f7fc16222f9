"""The store passes the suite of agentjet, also while it makes checkpoints all the time."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from ajet_duckdb.settings import DuckdbStoreSettings
from ajet_duckdb.store import DuckdbStore

from ajet_core.errors import StoreError, StoreFullError
from ajet_core.interfaces import RunRecord, SampleStore, WorkerContext
from ajet_testing.suites.store_suite import SampleStoreSuite

RUN = RunRecord("run", "{}", 1.0)


def make(run_dir: Path, **settings: object) -> DuckdbStore:
    return DuckdbStore(DuckdbStoreSettings.model_validate(settings), WorkerContext(run_dir))


class TestDuckdbStore(SampleStoreSuite):
    async def make_store(self, run_dir: Path) -> SampleStore:
        return make(run_dir)

    async def interrupt(self, store: SampleStore) -> None:
        """Close the database behind the store's back, as a fatal error of DuckDB does."""
        assert isinstance(store, DuckdbStore) and store._database is not None
        store._database.connection.close()


class TestWithCheckpoints(SampleStoreSuite):
    """Each commit is followed by a checkpoint, so processes are killed while they make one."""

    async def make_store(self, run_dir: Path) -> SampleStore:
        return DuckdbStore(DuckdbStoreSettings(checkpoint_mib=1e-6), WorkerContext(run_dir))


async def read(run_dir: Path) -> RunRecord | None:
    store = make(run_dir)
    await store.open(read_only=True)
    try:
        return await store.get_run()
    finally:
        await store.close()


async def test_a_log_may_end_anywhere(tmp_path: Path) -> None:
    """A tool may copy the log in the middle of a commit, and the power may fail there."""
    live, copied = tmp_path / "live", tmp_path / "copied"
    copied.mkdir()
    store = make(live)
    await store.open()
    await store.append(RUN)
    acknowledged = len((live / "samples.duckdb.wal").read_bytes())
    await store.append(RunRecord("run", json.dumps({"text": "x" * 64}), 2.0))
    log = (live / "samples.duckdb.wal").read_bytes()
    (copied / "samples.duckdb").write_bytes((live / "samples.duckdb").read_bytes())
    await store.close()
    found = set()
    # All of the last bytes, and some of those before.
    ends = {*range(acknowledged, len(log), 17), *range(len(log) - 8, len(log) + 1)}
    for end in sorted(ends):
        (copied / "samples.duckdb.wal").write_bytes(log[:end])
        run = await read(copied)
        assert run is not None
        found.add((end, run.created_at))
    assert found == {(end, 2.0 if end == len(log) else 1.0) for end in ends}


async def test_duckdb_itself_refuses_a_second_process(tmp_path: Path) -> None:
    """The reason for copies: this fails if DuckDB learns to read beside a writer."""
    store = make(tmp_path)
    await store.open()
    code = "import duckdb, sys; duckdb.connect(sys.argv[1], read_only=True)"
    command = [sys.executable, "-c", code, str(tmp_path / "samples.duckdb")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    await store.close()
    assert "Conflicting lock" in refused.stderr


async def test_the_log_is_not_merged_while_a_tool_copies(tmp_path: Path) -> None:
    store = make(tmp_path, checkpoint_mib=1e-6)
    await store.open()
    await store.append(RUN)
    database, log = tmp_path / "samples.duckdb", tmp_path / "samples.duckdb.wal"
    with (tmp_path / "samples.duckdb.copying").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        before = database.read_bytes()
        for second in range(20):
            await store.append(RunRecord("run", "{}", float(second)))
        assert database.read_bytes() == before
        assert log.stat().st_size > 0
    await store.append(RUN)
    assert database.read_bytes() != before
    await store.close()


async def test_the_lock_of_the_store_outlasts_a_copy_in_the_same_process(tmp_path: Path) -> None:
    """DuckDB's own lock does not: closing any descriptor of the file drops it."""
    store = make(tmp_path)
    await store.open()
    await store.append(RUN)
    assert await read(tmp_path) == RUN
    with pytest.raises(StoreError, match="another server"):
        await make(tmp_path).open()
    await store.close()


FULL = """
import asyncio, resource, sys
from pathlib import Path
from ajet_core.errors import StoreFullError
from ajet_core.interfaces import RunRecord, WorkerContext
from ajet_duckdb.settings import DuckdbStoreSettings
from ajet_duckdb.store import DuckdbStore


async def main():
    store = DuckdbStore(DuckdbStoreSettings(), WorkerContext(Path(sys.argv[1])))
    await store.open()
    written = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        while True:
            await store.append(RunRecord("run", "x" * 5_000, float(written + 1)))
            written += 1
    except StoreFullError:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    run = await store.get_run()
    assert run.created_at == written, (run.created_at, written)
    await store.append(RunRecord("run", "{}", -1.0))
    print(written)


asyncio.run(main())
"""


async def test_a_full_disk_loses_nothing_and_can_be_freed(tmp_path: Path) -> None:
    """The limit on the size of a file fails a write as a full disk does."""
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
    run = await read(tmp_path)
    assert run is not None and run.created_at == -1.0
    assert issubclass(StoreFullError, StoreError)


async def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "samples.duckdb")) as connection:
        connection.execute("CREATE TABLE other (x INTEGER)")
    before = (tmp_path / "samples.duckdb").read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="not a store of agentjet"):
            await make(tmp_path).open(read_only=read_only)
    assert (tmp_path / "samples.duckdb").read_bytes() == before


async def test_a_later_version_of_the_tables_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open()
    await store.close()
    with duckdb.connect(str(tmp_path / "samples.duckdb")) as connection:
        connection.execute("UPDATE format SET version = 2")
    with pytest.raises(StoreError, match="version 2"):
        await make(tmp_path).open()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden"])
def test_the_file_stays_in_the_run_directory(name: str) -> None:
    with pytest.raises(ValueError, match="file"):
        DuckdbStoreSettings(file=name)
