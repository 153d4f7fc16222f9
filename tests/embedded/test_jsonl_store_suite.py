"""The suite for stores takes a store that is nothing like SQLite."""

from pathlib import Path

from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_testing.suites.store_suite import SampleStoreSuite
from tests.embedded.jsonl_store import JsonlStore, JsonlStoreSettings


class TestJsonlStore(SampleStoreSuite):
    async def make_store(self, run_dir: Path) -> SampleStore:
        return JsonlStore(JsonlStoreSettings(), WorkerContext(run_dir))
