from pathlib import Path

from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.suites.store_suite import SampleStoreSuite


class TestSqliteStore(SampleStoreSuite):
    async def make_store(self, run_dir: Path) -> SampleStore:
        return SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))

    async def make_small_store(self, run_dir: Path) -> SampleStore:
        return SqliteStore(SqliteStoreSettings(max_mib=2), WorkerContext(run_dir))
