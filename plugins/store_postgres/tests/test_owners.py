"""One writer at a time: what a server that was cut off may no longer do."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from ajet_store_postgres.settings import PostgresStoreSettings
from ajet_store_postgres.store import PostgresStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import PostgresServer
from proxies import Pooler, pgbouncer

from ajet_core.errors import StoreError, StoreUnavailableError
from ajet_core.interfaces import WorkerContext
from ajet_server.store.patient_store import PatientStore
from ajet_testing.servers import CLIENT, ServerFactory, error_of, write_scripted_model
from ajet_testing.suites.samples import conversation, make_episode
from ajet_testing.suites.store_suite import stored_episodes

pytestmark = pytest.mark.postgres


@pytest.fixture
def schema() -> str:
    """The schema of a run."""
    return f"run_{secrets.token_hex(4)}"


def make_store(run_dir: Path, dsn: str, schema: str) -> PostgresStore:
    plain = {"dsn": dsn, "connect_seconds": 2, "schema_name": schema}
    return PostgresStore(PostgresStoreSettings.model_validate(plain), WorkerContext(run_dir))


def cut_off(dsn: str, schema: str) -> None:
    """End the connection that holds the lock of a run, as a network can."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory' "
            "AND ((classid::bigint << 32) | objid::bigint) = hashtextextended(%s, 0)",
            (f"ajet {schema}",),
        )


async def test_a_store_does_not_write_after_another_even_if_that_has_ended(
    postgres: PostgresServer, tmp_path: Path, schema: str
) -> None:
    first, second = (make_store(tmp_path, postgres.dsn, schema) for _ in range(2))
    await first.open()
    await first.append(make_episode("before"))
    cut_off(postgres.dsn, schema)
    await second.open()
    await second.append(make_episode("between"))
    await second.close()
    patient = PatientStore(first, "the store")
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"{schema}.* used by another server since \(ajet "):
            await patient.append(make_episode("late"))
    # It holds no lock any more, so a third can begin; opened again, it knows the run.
    await second.open()
    await second.close()
    await first.close()
    await first.open()
    await first.append(make_episode("after"))
    stored = [e.episode_id for e in await stored_episodes(first)]
    assert stored == ["before", "between", "after"]
    await first.close()


async def test_each_transaction_checks_its_owner(
    postgres: PostgresServer, tmp_path: Path, schema: str
) -> None:
    store = make_store(tmp_path, postgres.dsn, schema)
    await store.open()
    await store.append(make_episode())
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema}.store SET owner = 'somebody else'")
    # The connection and its lock are intact.
    calls = conversation(2)
    with pytest.raises(StoreError, match=r"another server since \(somebody else\)"):
        await store.append(*calls)
    assert await store.calls(["episode"]) == {"episode": []}
    await store.close()


async def test_the_next_owner_waits_for_the_transaction_of_the_one_before(
    postgres: PostgresServer, tmp_path: Path, schema: str
) -> None:
    store = make_store(tmp_path, postgres.dsn, schema)
    await store.open()
    with psycopg.connect(postgres.dsn) as writing, psycopg.connect(postgres.dsn) as taking:
        writing.execute(f"SET search_path = {schema}")
        (owner,) = writing.execute("SELECT owner FROM store").fetchone() or ("",)
        writing.execute("SELECT require_owner(%s)", (owner,))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            taking.execute(f"SET lock_timeout = 1; UPDATE {schema}.store SET owner = 'me'")
    await store.close()


async def test_a_claim_has_one_episode(
    postgres: PostgresServer, tmp_path: Path, schema: str
) -> None:
    store = make_store(tmp_path, postgres.dsn, schema)
    await store.open()
    one, three = (replace(make_episode(name), claim_hash="c") for name in ("one", "three"))
    await store.append(one, make_episode("two"))
    with pytest.raises(StoreError, match="cannot add episode three: duplicate key"):
        await store.append(three)
    await store.append(make_episode("four"))
    assert [e.episode_id for e in await stored_episodes(store)] == ["one", "two", "four"]
    await store.close()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["open", "write", "write", "close", "cut"]), st.integers(0, 1)),
        max_size=16,
    )
)
def test_writes_of_two_servers_never_interleave(
    operations: list[tuple[str, int]],
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Only the server that opened the run last writes to it, whatever is cut off in between."""
    schema = f"run_{secrets.token_hex(4)}"

    async def go() -> None:
        run_dir = tmp_path_factory.mktemp("run")
        stores = [make_store(run_dir, postgres.dsn, schema) for _ in range(2)]
        opened, holds = [False, False], [False, False]
        owner: int | None = None
        kept = []
        for number, (what, who) in enumerate(operations):
            store, name = stores[who], f"{number}-{who}"
            if what == "open" and not opened[who]:
                if any(holds):
                    with pytest.raises(StoreUnavailableError, match="used by another server"):
                        await store.open()
                else:
                    await store.open()
                    owner, opened[who], holds[who] = who, True, True
            elif what == "close" and opened[who]:
                await store.close()
                opened[who] = holds[who] = False
            elif what == "write" and opened[who]:
                try:
                    await PatientStore(store, "the store", retry_seconds=0.3).append(
                        make_episode(name)
                    )
                except StoreError:
                    assert who != owner
                    assert not holds[who]
                else:
                    assert who == owner
                    holds[who] = True
                    kept.append(name)
            elif what == "cut":
                await asyncio.to_thread(cut_off, postgres.dsn, schema)
                holds = [False, False]
        for store in stores:
            await store.close()
        if kept:
            await stores[0].open(read_only=True)
            assert [e.episode_id for e in await stored_episodes(stores[0])] == kept
            await stores[0].close()

    asyncio.run(go())


async def test_of_two_servers_on_one_run_the_one_that_was_cut_off_is_refused_by_name(
    postgres: PostgresServer, tmp_path: Path, schema: str
) -> None:
    model = write_scripted_model(tmp_path / "models" / "m")
    store = {
        "name": "postgres",
        "retry_seconds": 0.05,
        "settings": {"dsn": postgres.dsn, "schema_name": schema},
    }
    # Two machines: each has a run directory of its own.
    here, there = (ServerFactory(model, tmp_path / name) for name in ("here", "there"))
    async with here.running(store=store) as first:
        await first.roll()
        grant = await first.claim("a")
        assert (await first.chat(grant)).status_code == 200
        with pytest.raises(StoreUnavailableError, match=r"another server \(ajet "):
            async with there.running(store=store):
                pass
        await asyncio.to_thread(cut_off, postgres.dsn, schema)
        async with there.running(store=store) as second:
            assert len(await second.service.store.episodes()) == 1
            assert (await first.chat(grant)).status_code == 503
        body = {"task_id": "b", "wait_seconds": 0.0}
        answer = await first.http.post("/v1/episodes", headers=CLIENT, json=body)
        assert answer.status_code == 500
        assert "has been used by another server since" in error_of(answer)["message"]
        assert len(await first.service.store.episodes()) == 1


needs_pgbouncer = pytest.mark.skipif(
    pgbouncer() is None, reason="PgBouncer is not installed (Debian: apt-get install pgbouncer)"
)


@needs_pgbouncer
async def test_a_store_works_through_a_pooler_that_keeps_sessions(
    postgres: PostgresServer, tmp_path: Path, schema: str
) -> None:
    with Pooler(postgres, "session") as pooler:
        first, second = (make_store(tmp_path, pooler.dsn, schema) for _ in range(2))
        await first.open()
        calls = conversation(4)
        await first.append(make_episode())
        for call in calls:
            await first.append(call)
        # A write that fails alone, in the middle of a pipeline.
        with pytest.raises(StoreError, match="duplicate key"):
            await first.append(make_episode("other"), calls[0])
        assert await first.calls(["episode"]) == {"episode": calls}
        with pytest.raises(StoreUnavailableError, match="used by another server"):
            await second.open()
        await asyncio.to_thread(cut_off, postgres.dsn, schema)
        await PatientStore(first, "the store").append(make_episode("later"))
        await first.close()
        await second.open()
        assert [e.episode_id for e in await stored_episodes(second)] == ["episode", "later"]
        await second.close()


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("turns", [0, 1])
@pytest.mark.parametrize("read_only", [False, True])
async def test_a_pooler_that_shares_sessions_is_refused(
    postgres: PostgresServer, tmp_path: Path, schema: str, mode: str, turns: int, read_only: bool
) -> None:
    direct = make_store(tmp_path, postgres.dsn, schema)
    await direct.open()
    await direct.close()
    round_robin = f"server_round_robin = {turns}"
    with Pooler(postgres, mode, round_robin, "min_pool_size = 3") as pooler:
        store = make_store(tmp_path, pooler.dsn, schema)
        with pytest.raises(StoreError, match=r"shares sessions.*pool_mode = session"):
            await store.open(read_only=read_only)
        # The sessions of the pooler, which others use, are as they were.
        with psycopg.connect(pooler.dsn, autocommit=True) as connection:
            for _ in range(6):
                shown = connection.execute("SHOW search_path").fetchone()
                assert shown == ('"$user", public',)
