from pathlib import Path

from ajet_core.embedded.settings import SqliteStoreSettings
from ajet_core.embedded.sqlite_store import SqliteStore
from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_core.testing.store_suite import SampleStoreSuite


class TestSqliteStore(SampleStoreSuite):
    async def make_store(self, run_dir: Path) -> SampleStore:
        return SqliteStore(SqliteStoreSettings(), WorkerContext(run_dir))
