"""A server whose store fails: short outages cost their time, long ones pause the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ajet_core.errors import StoreError, StoreFullError, StoreUnavailableError
from ajet_core.interfaces import (
    BatchRecord,
    EpisodeRecord,
    Record,
    RunRecord,
    StepRecord,
)
from ajet_core.protocol import ServerState
from ajet_core.timeline import Call
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory, error_of
from tests.support.failing_store import STORE, FailingStore, plugins_with_failing_store
from tests.support.runs import abort, finish_batch, status, until_state

pytestmark = pytest.mark.processes


@pytest.fixture
def failing(servers: ServerFactory) -> ServerFactory:
    """Makes servers with a failing store."""
    servers.plugins = plugins_with_failing_store
    return servers


def fails(kind: type[Record], times: int, error: type[StoreError]) -> Callable[..., None]:
    """Raise `error` the first `times` times that a record of `kind` is written."""
    left = times

    def before(records: Sequence[Record]) -> None:
        nonlocal left
        if left and any(isinstance(record, kind) for record in records):
            left -= 1
            raise error("the database is away")

    return before


@pytest.mark.parametrize("kind", [EpisodeRecord, Call, BatchRecord, StepRecord, RunRecord])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_short_outage_ends_nothing(
    failing: ServerFactory, kind: type[Record], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = fails(kind, 2, StoreUnavailableError)
    monkeypatch.setitem(FailingStore.faults, when, failure)
    async with failing.running(store=STORE) as server:
        await server.roll()
        await server.batch()
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        found = await status(server)
        assert found["counters"]["episodes_ended"] == 4
        assert found["counters"]["calls"] == 4
        assert found["paused"] is None
        assert len(await server.service.store.batches(after_step=0)) == 1


@pytest.mark.parametrize("kind", [BatchRecord, StepRecord])
async def test_a_write_that_failed_but_was_carried_out_is_trained_once(
    failing: ServerFactory, kind: type[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with failing.running(store={**STORE, "retry_seconds": 0.05}) as server:
        await server.roll()
        failure = fails(kind, 10**6, StoreUnavailableError)
        monkeypatch.setitem(FailingStore.faults, "after", failure)
        await finish_batch(server)
        await until_state(server, ServerState.PAUSED)
        monkeypatch.delitem(FailingStore.faults, "after")
        answer = await server.http.post("/v1/run/resume", headers=CONTROL)
        assert answer.status_code == 200, answer.text
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        await server.batch()
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 2)
        await trained_once(server, batches=2)


async def test_an_end_that_failed_but_was_carried_out_stands(
    failing: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with failing.running(store={**STORE, "retry_seconds": 0.05}) as server:
        await server.roll()
        grant = await server.claim()
        failure = fails(EpisodeRecord, 10**6, StoreUnavailableError)
        monkeypatch.setitem(FailingStore.faults, "after", failure)
        answer = await server.end(grant, 1.0)
        assert error_of(answer)["type"] == "store_unavailable"
        monkeypatch.delitem(FailingStore.faults, "after")
        # The first outcome stands: it was stored.
        said = await abort(server, grant, reason="why", cause="error")
        assert (said["state"], said["reward"]) == ("ended", 1.0)
        counters = (await status(server))["counters"]
        assert (counters["episodes_ended"], counters["episodes_aborted"]) == (1, 0)


async def test_a_claim_whose_answer_was_lost_in_a_long_outage_is_the_episode_that_was_recorded(
    failing: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"task_id": "a", "claim_id": "c" * 32}
    async with failing.running(store={**STORE, "retry_seconds": 0.05}) as server:
        await server.roll()

        def away(_: Sequence[Record] = ()) -> None:
            raise StoreUnavailableError("the database is away")

        for when in ("after", "read"):
            monkeypatch.setitem(FailingStore.faults, when, away)
        for _ in range(2):
            answer = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
            assert error_of(answer)["type"] == "store_unavailable"
        assert len(server.service.episodes.open) == 0
        for when in ("after", "read"):
            monkeypatch.delitem(FailingStore.faults, when)
        grants = await asyncio.gather(*(server.claim("a", claim_id="c" * 32) for _ in range(3)))
        assert grants[0] == grants[1] == grants[2]
        (stored,) = await server.service.store.episodes()
        assert stored.episode_id == grants[0]["episode_id"]
        assert len(server.service.episodes.open) == 1
        # It holds one of the two slots of its task, and is trained like any other.
        other = await server.claim("a")
        third = {"task_id": "a", "wait_seconds": 0.0}
        full = await server.http.post("/v1/episodes", headers=CLIENT, json=third)
        assert full.status_code == 503
        for number, grant in enumerate([grants[0], other]):
            assert (await server.chat(grant)).status_code == 200
            assert (await server.end(grant, float(number))).status_code == 200
        await asyncio.gather(server.episode("b", 0.0), server.episode("b", 1.0))
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        await trained_once(server, batches=1)
        assert (await status(server))["counters"]["episodes"] == 4


async def test_a_claim_that_was_not_recorded_in_a_long_outage_is_a_new_episode(
    failing: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"task_id": "a", "claim_id": "c" * 32}
    async with failing.running(store={**STORE, "retry_seconds": 0.05}) as server:
        await server.roll()
        failure = fails(EpisodeRecord, 10**6, StoreUnavailableError)
        monkeypatch.setitem(FailingStore.faults, "before", failure)
        answer = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
        assert error_of(answer)["type"] == "store_unavailable"
        monkeypatch.delitem(FailingStore.faults, "before")
        grant = await server.claim("a", claim_id="c" * 32)
        assert grant == await server.claim("a", claim_id="c" * 32)
        (stored,) = await server.service.store.episodes()
        assert stored.episode_id == grant["episode_id"]


@pytest.mark.parametrize("error", [StoreUnavailableError, StoreFullError, StoreError])
@pytest.mark.parametrize("kind", [BatchRecord, StepRecord])
async def test_a_long_outage_pauses_the_run_until_it_is_resumed(
    failing: ServerFactory,
    kind: type[Record],
    error: type[StoreError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with failing.running(store={**STORE, "retry_seconds": 0.05}) as server:
        await server.roll()
        # The store fails for whatever the run writes, also for its pause.
        out = [kind, RunRecord]

        def before(records: Sequence[Record]) -> None:
            if any(isinstance(record, tuple(out)) for record in records):
                raise error("the database is away")

        monkeypatch.setitem(FailingStore.faults, "before", before)
        await finish_batch(server)
        await until_state(server, ServerState.PAUSED)
        found = await status(server)
        assert "the database is away" in found["paused"]
        assert "last checkpoint" in found["paused"]
        assert found["error"] is None
        if error is not StoreError:
            (trouble,) = [f for f in found["findings"] if f["code"] == "store_unavailable"]
            assert "store 'failing' of plugin 'failing-store'" in trouble["message"]
            assert "the database is away" in trouble["message"]
        answer = await server.http.post("/v1/run/resume", headers=CONTROL)
        assert answer.status_code == error.status
        assert error_of(answer)["type"] == error.type
        assert server.service.board.state is ServerState.PAUSED
        out.clear()
        answer = await server.http.post("/v1/run/resume", headers=CONTROL)
        assert answer.status_code == 200, answer.text
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        await server.batch()
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 2)
        await trained_once(server, batches=2)


async def trained_once(server: Running, *, batches: int) -> None:
    """Check that all episodes ended, and each was trained in one step."""
    store = server.service.store
    steps = await store.steps()
    assert [step.step for step in steps] == list(range(1, batches + 1))
    trained = {b.batch_id: b.episode_ids for b in await store.batches(after_step=0)}
    ids = [episode_id for step in steps for episode_id in trained[step.batch_id]]
    assert len(ids) == len(set(ids)) == 4 * batches


async def test_a_run_paused_by_its_store_can_be_stopped(
    failing: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with failing.running(store={**STORE, "retry_seconds": 0.05}) as server:
        await server.roll()
        failure = fails(StepRecord, 10**6, StoreUnavailableError)
        monkeypatch.setitem(FailingStore.faults, "before", failure)
        await finish_batch(server)
        await until_state(server, ServerState.PAUSED)
        answer = await server.http.post("/v1/run/stop", headers=CONTROL)
        assert answer.status_code == 503
        assert error_of(answer)["type"] == "store_unavailable"
        await until_state(server, ServerState.OFFLINE)
    # What ended is in the store, and the run was stopped: it does not continue by itself.
    monkeypatch.undo()
    async with failing.running(store=STORE) as server:
        assert server.service.board.state is ServerState.OFFLINE
        assert (await status(server))["counters"]["episodes_ended"] == 4


async def test_a_server_waits_for_its_store_to_start(
    failing: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, left = FailingStore.open, [None, None]

    async def open_later(self: FailingStore, *, read_only: bool = False) -> None:
        if left:
            left.pop()
            raise StoreUnavailableError("the database starts")
        await plain(self, read_only=read_only)

    monkeypatch.setattr(FailingStore, "open", open_later)
    async with failing.running(store=STORE) as server:
        assert left == []
        await server.roll()


async def test_a_store_that_fails_to_close_leaves_the_rest_to_be_closed(
    failing: ServerFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = FailingStore.close

    async def close(self: FailingStore) -> None:
        await plain(self)
        raise RuntimeError("the database does not say goodbye")

    async with failing.running(store=STORE) as server:
        await server.roll()
        tokens, closed = server.service.tokens, []
        keep = tokens.close
        monkeypatch.setattr(tokens, "close", lambda: (closed.append(True), keep())[1])
        monkeypatch.setattr(FailingStore, "close", close)
    assert closed == [True]
    (said,) = [r.getMessage() for r in caplog.records if "does not say goodbye" in r.getMessage()]
    assert "plugin 'failing-store'" in said
