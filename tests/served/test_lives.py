"""Servers that start, hang and end at any time: no call waits for ever, no process is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ajet_core.errors import EngineError
from ajet_core.interfaces import EngineStats, WeightUpdate
from ajet_core.protocol.run import ModelConfig
from ajet_engines.served import Launched, Piece, Replica
from ajet_engines.served.flight import Flight
from ajet_testing.suites.asking import ask
from tests.served.fake_server import FakeEngine, FakeServer, started


def update(version: int) -> WeightUpdate:
    return WeightUpdate("safetensors_dir", version, str(version))


async def impatient(directory: Path, replicas: int) -> FakeEngine:
    """An engine that gives servers up that take long."""
    engine = FakeEngine(directory, replicas)
    engine.patience = 1.0
    await engine.start(ModelConfig(path="0"))
    return engine


async def lost(engine: FakeEngine, server: FakeServer) -> None:
    server.dead = True
    await engine.stats()


@pytest.mark.parametrize("question", ["prepare", "load"])
async def test_a_successor_that_hangs_before_it_is_up_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    engine = await impatient(tmp_path, 2)
    await engine.update_weights(update(5))
    real = getattr(FakeServer, question)
    begun = list(engine.servers)

    async def hangs(server: FakeServer, *args: object) -> object:
        if server not in begun and server is engine.servers[2]:
            await asyncio.Event().wait()
        return await real(server, *args)

    monkeypatch.setattr(FakeServer, question, hangs)
    await lost(engine, begun[0])
    while len(engine.servers) < 3:
        await asyncio.sleep(0)
    await engine.update_weights(update(7))
    assert set((await ask(engine, [1])).ids) == {7}
    while len(engine.fleet.up) < 2:
        await asyncio.sleep(0)
    assert engine.servers[2].closed
    assert [server.weights for server in engine.servers if not server.closed] == [7, 7]
    await engine.close()


async def test_a_server_that_hangs_over_weights_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await impatient(tmp_path, 2)
    first, second = engine.servers

    async def hangs(_: WeightUpdate) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(first, "load", hangs)
    await engine.update_weights(update(7))
    assert first.closed
    assert not second.closed
    assert set((await ask(engine, [1])).ids) == {7}
    await engine.close()


async def assert_started_when_woken(engine: FakeEngine) -> None:
    """Of two servers one has died; its successor is started now, and not before."""
    assert len(engine.servers) == 2
    await engine.wake()
    while len(engine.fleet.up) < 2:
        await asyncio.sleep(0)
    assert len(engine.servers) == 3


async def test_no_server_boots_while_all_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path, 2)
    booting = asyncio.Event()
    launch = engine.launch

    async def long(replica: Replica, model: ModelConfig) -> Launched:
        booting.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(engine, "launch", long)
    await lost(engine, engine.servers[0])
    await booting.wait()
    await engine.sleep()
    # The boot is not waited for, but given up.
    monkeypatch.setattr(engine, "launch", launch)
    await assert_started_when_woken(engine)
    await engine.close()


async def test_a_server_that_dies_of_being_told_to_sleep_is_not_started_meanwhile(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path, 2)
    first = engine.servers[0]
    first.dead = True
    await engine.sleep()
    await assert_started_when_woken(engine)
    await engine.close()


async def test_who_cannot_pause_does_not_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path)

    async def cannot() -> None:
        raise EngineError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "pause", cannot)
        with pytest.raises(EngineError, match="not now"):
            await engine.sleep()
    await lost(engine, engine.servers[0])
    assert (await ask(engine, [1])).ids
    await engine.close()


async def test_tokens_of_a_server_that_is_gone_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path)
    await ask(engine, [1], max_tokens=40)
    (first,) = engine.servers
    asked, answer = asyncio.Event(), asyncio.Event()

    async def late() -> EngineStats:
        asked.set()
        await answer.wait()
        return EngineStats(sampled_tokens=40)

    monkeypatch.setattr(first, "stats", late)
    looking = asyncio.create_task(engine.stats())
    await asked.wait()
    engine.fleet.replicas[0].totals.latest = EngineStats(sampled_tokens=40)
    engine.fleet.lose(engine.fleet.replicas[0], "it refused")
    await engine.fleet.until_up()
    answer.set()
    await looking
    assert (await engine.stats()).sampled_tokens == 40
    await engine.close()


async def test_closing_while_a_server_is_ended_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path)
    (first,) = engine.servers
    closing, go_on, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        closing.set()
        await go_on.wait()
        closed.set()

    monkeypatch.setattr(first, "close", slow)
    await lost(engine, first)
    await closing.wait()
    ended = asyncio.create_task(engine.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ended.done()
    go_on.set()
    await ended
    assert closed.is_set()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("broken")])
async def test_whatever_a_boot_fails_of_somebody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    engine = await started(tmp_path)

    async def fails(*_: object) -> Launched:
        raise error

    monkeypatch.setattr(engine, "launch", fails)
    asking = asyncio.create_task(ask(engine, [1]))
    updating = asyncio.create_task(engine.update_weights(update(7)))
    engine.servers[0].dead = True
    for task in (asking, updating):
        with pytest.raises(EngineError, match=r"can be restarted. First reason: \w+"):
            await task
    await engine.close()


async def test_closing_ends_an_update_that_waits_for_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path)
    booting = asyncio.Event()

    async def long(*_: object) -> Launched:
        booting.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(engine, "launch", long)
    engine.servers[0].dead = True
    updating = asyncio.create_task(engine.update_weights(update(7)))
    await booting.wait()
    await engine.close()
    with pytest.raises(EngineError, match="was closed"):
        await updating


async def test_a_request_whose_server_is_lost_as_it_is_let_go_on_waits(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await engine.pause()
    asking = asyncio.create_task(ask(engine, [1]))
    await asyncio.sleep(0)
    # What waits was told to go on, and goes on in the next turn.
    engine._paused = False
    engine._refresh()
    engine.fleet.lose(engine.fleet.replicas[0], "just now")
    assert (await asking).ids
    await engine.close()


async def test_an_engine_that_was_not_resumed_wholly_is_still_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path, 2)
    await engine.pause()
    asked = asyncio.Event()

    async def hangs() -> None:
        asked.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(engine.servers[0], "go_on", hangs)
        resuming = asyncio.create_task(engine.resume())
        await asked.wait()
        resuming.cancel()
        await asyncio.wait([resuming])
    asking = asyncio.create_task(ask(engine, [1]))
    await lost(engine, engine.servers[1])
    await engine.fleet.until_up()
    assert not asking.done()
    await engine.resume()
    assert (await asking).ids
    await engine.close()


async def test_a_flight_that_is_ended_before_it_begins_is_over() -> None:
    async def pieces() -> AsyncIterator[Piece]:
        yield Piece([1], [-1.0], None)

    flight = Flight(pieces(), 0)
    flight.drop_unless_begun()
    assert [piece async for piece in flight.pieces()] == []


async def test_a_server_that_is_asked_how_it_is_and_says_nonsense_is_not_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_engines.served.watch.LOOK_SECONDS", 0.0)
    engine = await started(tmp_path)

    async def nonsense() -> bool:
        raise KeyError("status")

    monkeypatch.setattr(engine.servers[0], "healthy", nonsense)
    engine.servers[0].hangs = True
    assert (await ask(engine, [1])).ids
    assert len(engine.servers) == 2
    await engine.close()
