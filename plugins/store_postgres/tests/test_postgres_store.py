"""The store suite on a real PostgreSQL server."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from ajet_store_postgres.connecting import application_name
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.store import PostgresStore
from postgres_server import PostgresServer

from ajet_core.interfaces import SampleStore, WorkerContext
from ajet_testing.suites.store_suite import SampleStoreSuite

pytestmark = pytest.mark.postgres


class TestPostgresStore(SampleStoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.settings = PostgresStoreSettings(dsn=postgres.dsn)

    async def make_store(self, run_dir: Path) -> SampleStore:
        return PostgresStore(self.settings, WorkerContext(run_dir))

    async def interrupt(self, store: SampleStore) -> None:
        """Let the server end all connections of the store, as an administrator can."""
        with psycopg.connect(self.settings.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = %s AND pid <> pg_backend_pid()",
                (application_name(),),
            )
