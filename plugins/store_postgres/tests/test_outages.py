"""PostgreSQL that is killed, restarted, replaced by its standby, or of another version."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterator
from pathlib import Path

import psycopg
import pytest
from ajet_store_postgres import schema
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.store import PostgresStore
from postgres_server import PostgresServer
from proxies import Network

from ajet_core.errors import StoreError, StoreUnavailableError
from ajet_core.interfaces import WorkerContext
from ajet_server.store.patient_store import PatientStore
from ajet_testing.suites.samples import conversation, make_episode
from ajet_testing.suites.store_suite import ended, stored_episodes

pytestmark = pytest.mark.postgres
TURNS = 4


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    """A running server that the test may stop; it writes to the disk as a real one does."""
    with PostgresServer() as server:
        server.start()
        yield server


def make_store(run_dir: Path, dsn: str, **settings: object) -> PostgresStore:
    plain = {"dsn": dsn, "connect_seconds": 2, **settings}
    return PostgresStore(PostgresStoreSettings.model_validate(plain), WorkerContext(run_dir))


class Load:
    """Writes episodes with their calls, until it is stopped."""

    def __init__(self, store: PatientStore) -> None:
        self._store = store
        self._going = True
        self.acknowledged: dict[str, int] = {}
        self.written = 0
        self._more = asyncio.Event()
        self._players = [asyncio.create_task(self._play(number)) for number in range(8)]

    async def after(self, writes: int) -> None:
        """Wait for so many more acknowledged writes."""
        wanted = self.written + writes
        while self.written < wanted:
            self._more.clear()
            await self._more.wait()

    async def stop(self) -> None:
        """Finish the episodes that were begun."""
        self._going = False
        await asyncio.gather(*self._players)

    async def check(self) -> None:
        """Compare what was acknowledged with what is in the store."""
        stored = {e.episode_id: e for e in await stored_episodes(self._store)}
        assert set(stored) == set(self.acknowledged)
        calls = await self._store.calls(list(stored))
        for name, count in self.acknowledged.items():
            assert calls[name] == conversation(TURNS, episode_id=name)
            assert count == TURNS
            assert stored[name].state == "ended"
        assert (await self._store.call_totals()).calls == TURNS * len(stored)

    async def _play(self, number: int) -> None:
        turn = 0
        while self._going:
            name = f"{number}-{turn}"
            turn += 1
            await self._store.append(make_episode(name))
            self.acknowledged[name] = 0
            for call in conversation(TURNS, episode_id=name):
                await self._store.append(call)
                self.acknowledged[name] += 1
            await self._store.append(ended(name))
            self.written += TURNS + 2
            self._more.set()


@pytest.mark.parametrize("way", ["kill", "immediate", "fast"])
async def test_a_server_that_dies_during_commits_loses_and_doubles_nothing(
    own: PostgresServer, tmp_path: Path, way: str
) -> None:
    store = PatientStore(make_store(tmp_path, own.dsn), "the store")
    await store.open()
    load = Load(store)
    for _ in range(3):
        await load.after(200)
        await asyncio.to_thread(own.kill if way == "kill" else lambda: own.stop(way))
        await asyncio.to_thread(own.start)
    await load.after(200)
    await load.stop()
    await load.check()
    assert store.trouble is None
    await store.close()


async def test_a_standby_takes_over_without_a_loss(own: PostgresServer, tmp_path: Path) -> None:
    with PostgresServer(copy_of=own) as standby:
        standby.start()
        with psycopg.connect(own.dsn, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        dsn = f"host={own.directory},{standby.directory} user=ajet dbname=postgres"
        store = PatientStore(make_store(tmp_path, dsn), "the store")
        await store.open()
        load = Load(store)
        await load.after(200)
        await asyncio.to_thread(own.kill)
        await asyncio.to_thread(standby.promote)
        await load.after(200)
        await load.stop()
        await load.check()
        await store.close()


async def test_a_server_that_stays_away_is_named(own: PostgresServer, tmp_path: Path) -> None:
    store = make_store(tmp_path, own.dsn)
    await store.open()
    own.stop("immediate")
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match=rf"schema ajet_.* on {own.directory}"):
            await store.append(make_episode())
        with pytest.raises(StoreUnavailableError):
            await store.get_run()
    own.start()
    await store.append(make_episode())
    assert await store.get_episode("episode") == make_episode()
    await store.close()


async def test_a_lock_that_another_server_took_meanwhile_stays_with_it(
    own: PostgresServer, tmp_path: Path
) -> None:
    first, second = (make_store(tmp_path, own.dsn, schema_name="one_run") for _ in range(2))
    await first.open()
    with pytest.raises(StoreUnavailableError, match=r"another server \(ajet "):
        await second.open()
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        )
    await second.open()
    # A server that was cut off does not write beside the one that has taken over.
    for why in ("cannot be reached", "another server"):
        with pytest.raises(StoreUnavailableError, match=why):
            await first.append(make_episode("late"))
    await second.append(make_episode("kept"))
    assert [e.episode_id for e in await stored_episodes(second)] == ["kept"]
    await first.close()
    await second.close()


async def test_a_schema_that_disappears_is_not_created_again(
    own: PostgresServer, tmp_path: Path
) -> None:
    store = make_store(tmp_path, own.dsn, schema_name="one_run")
    await store.open()
    await store.append(make_episode("kept"))
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        connection.execute("ALTER SCHEMA one_run RENAME TO elsewhere")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        )
        patient = PatientStore(store, "the store")
        with pytest.raises(StoreError, match="does not exist"):
            await patient.append(make_episode("lost"))
        connection.execute("ALTER SCHEMA elsewhere RENAME TO one_run")
    await patient.append(make_episode("next"))
    assert [e.episode_id for e in await stored_episodes(patient)] == ["kept", "next"]
    await patient.close()


async def test_a_schema_is_migrated(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, postgres.dsn)
    await store.open()
    await store.append(make_episode())
    await store.close()
    # A broken migration changes nothing; a good one is made once.
    added = "ALTER TABLE episodes ADD COLUMN note TEXT NOT NULL DEFAULT 'none'"
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, f"{added}; SELECT nonsense"])
    with pytest.raises(StoreError, match="nonsense"):
        await store.open()
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS[:-1], added])
    reader = make_store(tmp_path, postgres.dsn)
    with pytest.raises(StoreError, match="start the run's server once"):
        await reader.open(read_only=True)
    for _ in range(2):
        await store.open()
        assert await store.get_episode("episode") == make_episode()
        await store.close()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="newer agentjet"):
        await store.open()


async def test_a_schema_of_something_else_is_refused(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA theirs")
        connection.execute("CREATE TABLE theirs.things (id INTEGER)")
    store = make_store(tmp_path, postgres.dsn, schema_name="theirs")
    with pytest.raises(StoreError, match="not an agentjet store"):
        await store.open()


@pytest.mark.parametrize(
    ("dsn", "why"),
    [
        ("host=/nowhere user=ajet", "cannot be reached"),
        ("nonsense", "not a connection string"),
        ("host=/nowhere port=x", "port"),
    ],
)
async def test_a_bad_connection_string_is_explained(tmp_path: Path, dsn: str, why: str) -> None:
    store = make_store(tmp_path, dsn)
    with pytest.raises(StoreError, match=why):
        await store.open()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "dsn", ["password=abc geheim", "postgresql://ajet:geheim%zz@h/db", "password='geheim"]
)
async def test_secrets_of_a_damaged_connection_string_are_in_no_message(
    tmp_path: Path, dsn: str
) -> None:
    with pytest.raises(StoreError, match="not a connection string") as caught:
        await make_store(tmp_path, dsn).open()
    assert "geheim" not in caught.value.message
    assert caught.value.__cause__ is None


async def test_a_server_that_hangs_counts_as_unavailable(
    own: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_store_postgres.connecting._GRACE", 0)
    store = make_store(tmp_path, own.dsn, statement_seconds=1)
    await store.open()
    await store.append(make_episode())
    own.freeze()
    try:
        with pytest.raises(StoreUnavailableError):
            await store.append(make_episode("later"))
        with pytest.raises(StoreUnavailableError):
            await store.get_run()
    finally:
        own.thaw()
    patient = PatientStore(store, "the store")
    await patient.append(make_episode("last"))
    assert (await patient.get_episode("last")) is not None
    await patient.close()


async def test_operations_wait_together_for_a_network_that_is_silent(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_store_postgres.connecting._GRACE", 0)

    async def all_fail(*operations: Awaitable[object]) -> None:
        for answer in await asyncio.gather(*operations, return_exceptions=True):
            assert isinstance(answer, StoreUnavailableError), answer

    async with Network(postgres) as network:
        store = make_store(tmp_path, network.dsn, statement_seconds=1)
        await store.open()
        network.fall_silent()
        begun = network.connections
        # The first finds its connection dead, and the others do not try one each.
        await all_fail(*(store.get_run() for _ in range(20)))
        assert network.connections == begun
        await all_fail(*(store.get_run() for _ in range(20)))
        assert network.connections == begun + 1
        # Writes that wait make one transaction.
        await all_fail(*(store.append(make_episode(str(number))) for number in range(20)))
        assert network.connections == begun + 1
        network.speak()
        patient = PatientStore(store, "the store")
        assert await patient.get_run() is None
        await patient.append(make_episode())
        await patient.close()


async def test_a_commit_that_waits_for_a_standby_counts_as_unavailable(
    own: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_store_postgres.connecting._GRACE", 0)
    store = make_store(tmp_path, own.dsn, statement_seconds=1)
    await store.open()
    with psycopg.connect(own.dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nothing'")
        connection.execute("SELECT pg_reload_conf()")
        acknowledged: list[str] = []

        async def write() -> None:
            # PostgreSQL reads the setting some time later.
            for number in itertools.count():
                await store.append(make_episode(f"{number}"))
                acknowledged.append(f"{number}")

        with pytest.raises(StoreUnavailableError):
            await write()
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
        connection.execute("SELECT pg_reload_conf()")
    patient = PatientStore(store, "the store")
    await patient.append(make_episode("next"))
    # The commit that was waited for is in the store, or it is not: never half of it.
    stored = [e.episode_id for e in await stored_episodes(patient)]
    doubtful = [f"{len(acknowledged)}"]
    assert stored in ([*acknowledged, "next"], [*acknowledged, *doubtful, "next"])
    await patient.close()


async def test_secrets_of_the_connection_string_are_in_no_message(tmp_path: Path) -> None:
    settings = PostgresStoreSettings(dsn="host=/nowhere user=ajet password=geheim")
    assert "geheim" not in repr(settings)
    store = PostgresStore(settings, WorkerContext(tmp_path))
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert "geheim" not in caught.value.message
    assert "geheim" not in str(caught.value.__cause__)
