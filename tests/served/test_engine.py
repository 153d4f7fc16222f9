"""What engines on model servers share: weights change on all or none, requests outlive servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import groupby
from pathlib import Path

import pytest

from ajet_core.errors import EngineError
from ajet_core.interfaces import EngineInfo, WeightUpdate
from ajet_core.protocol.run import ModelConfig
from ajet_engines.served import Piece
from ajet_testing.suites.asking import ask, make_request, until
from tests.served.fake_server import FakeEngine, FakeServer, started


def update(version: int) -> WeightUpdate:
    return WeightUpdate("safetensors_dir", version, str(version))


async def running(engine: FakeEngine, number: int = 1, tokens: int = 60) -> list[asyncio.Task]:
    """Requests that have sampled something, but not much."""
    begun = (await engine.stats()).sampled_tokens
    tasks = [asyncio.create_task(ask(engine, [i], max_tokens=tokens)) for i in range(number)]
    await until(engine, lambda stats: stats.sampled_tokens - begun >= 2 * number)
    return tasks


async def test_every_token_has_the_version_that_sampled_it(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    tasks = await running(engine, 6)
    for version in (1, 2):
        await engine.update_weights(update(version))
        more = await running(engine, 1)
        tasks += more
    for answer in await asyncio.gather(*tasks):
        # The fake samples the number of its weights.
        assert answer.ids == answer.versions
        assert len(answer.ids) == 60
        assert answer.reason == "length"
    await engine.close()


async def test_what_goes_on_is_asked_for_with_what_was_sampled(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    (task,) = await running(engine)
    await engine.update_weights(update(1))
    answer = await task
    first, second = engine.servers[0].requests[-2:]
    done = answer.versions.count(0)
    assert second.prompt_ids == [*first.prompt_ids, *[0] * done]
    assert second.sampling.max_tokens == 60 - done
    await engine.close()


async def test_servers_are_told_what_was_sampled_before(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    task = asyncio.create_task(ask(engine, [1], max_tokens=60, seed=5))
    await until(engine, lambda stats: stats.sampled_tokens > 2)
    await engine.update_weights(update(1))
    await task
    first, second = engine.servers[0].requests[-2:]
    assert first.sampling.seed == 5
    assert second.sampling.seed == 5
    assert second.sampled > 2
    await engine.close()


async def test_a_request_on_its_way_to_a_halted_server_is_sent_again(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    engine.servers[0].begins.clear()
    task = asyncio.create_task(ask(engine, [1]))
    while not engine.servers[0].requests:
        await asyncio.sleep(0)
    await engine.update_weights(update(3))
    engine.servers[0].begins.set()
    assert set((await task).versions) == {3}
    await engine.close()


async def test_a_server_that_dies_is_replaced_and_its_requests_go_on(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await engine.update_weights(update(4))
    tasks = await running(engine, 3)
    engine.servers[0].dead = True
    for answer in await asyncio.gather(*tasks):
        assert answer.ids == [4] * 60
        assert set(answer.versions) == {4}
    assert len(engine.servers) == 2
    assert engine.servers[0].closed
    await engine.close()


async def test_requests_go_on_at_another_replica_meanwhile(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    tasks = await running(engine, 4)
    engine.plan = ["no"] * 3
    engine.servers[0].dead = True
    await asyncio.gather(*tasks)
    assert len((await ask(engine, [1])).ids) == 8
    assert len(engine.servers) == 2
    await engine.close()


async def test_the_engine_fails_when_no_server_can_be_brought_back(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    (task,) = await running(engine)
    engine.plan = ["first", "second", "no memory is left"]
    engine.servers[0].dead = True
    with pytest.raises(EngineError, match="no memory is left"):
        await task
    with pytest.raises(EngineError, match="no memory is left"):
        await engine.stats()
    await engine.close()


async def test_what_answers_in_a_servers_place_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def page(_: FakeServer) -> EngineInfo:
        raise json.JSONDecodeError("Expecting value", "<html>", 0)

    engine = await started(tmp_path)
    (task,) = await running(engine)
    monkeypatch.setattr(FakeServer, "prepare", page)
    engine.servers[0].dead = True
    with pytest.raises(EngineError, match="sent an invalid response: JSONDecodeError"):
        await task
    assert len(engine.servers) == 4
    await engine.close()
    with pytest.raises(EngineError, match="sent an invalid response: JSONDecodeError"):
        await started(tmp_path)


async def test_one_in_whose_place_another_answers_an_update_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path, 2)
    first, second = engine.servers

    async def page() -> None:
        raise json.JSONDecodeError("Expecting value", "<html>", 0)

    monkeypatch.setattr(first, "halt", page)
    await engine.update_weights(update(7))
    assert first.closed
    assert not second.closed
    assert set((await ask(engine, [1])).ids) == {7}
    await engine.close()


async def test_a_request_that_kills_every_server_is_given_up(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    task = asyncio.create_task(ask(engine, [1], max_tokens=60))
    for life in range(3):
        while not (len(engine.servers) > life and engine.servers[life].requests):
            await asyncio.sleep(0)
        engine.servers[life].dead = True
    with pytest.raises(
        EngineError, match="3 servers of fake failed while processing the same request"
    ):
        await task
    assert len((await ask(engine, [1])).ids) == 8
    await engine.close()


async def test_a_replica_that_dies_of_an_update_comes_back_with_the_new_weights(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path, 2)
    engine.servers[1].loads = ["die"]
    tasks = await running(engine, 4)
    await engine.update_weights(update(7))
    await asyncio.gather(*tasks)
    while len(engine.servers) < 3 or engine.servers[2].weights != 7:
        await asyncio.sleep(0)
    assert {server.weights for server in engine.servers if not server.dead} == {7}
    await engine.close()


async def test_one_that_refuses_what_another_has_taken_is_replaced(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    engine.servers[1].loads = ["refuse"]
    await engine.update_weights(update(7))
    answers = await asyncio.gather(*(ask(engine, [i]) for i in range(8)))
    assert {token for answer in answers for token in answer.ids} == {7}
    await engine.close()


@pytest.mark.parametrize("updating", [False, True])
async def test_a_server_that_hangs_is_noticed_told_of_and_replaced(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    updating: bool,
) -> None:
    monkeypatch.setattr("ajet_engines.served.watch.LOOK_SECONDS", 0.0)
    engine = await started(tmp_path)
    tasks = await running(engine, 3)
    engine.servers[0].hangs = True
    if updating:
        # It does not answer this either.
        await engine.update_weights(update(7))
    for answer in await asyncio.gather(*tasks):
        assert len(answer.ids) == 60
        assert set(answer.versions) <= {0, 7}
    assert len(engine.servers) == 2
    assert "server 0 of fake is replaced: it sent nothing for its 3 requests" in caplog.text
    await engine.close()


async def test_a_server_that_hangs_with_nothing_to_do_does_not_hold_up_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ajet_engines.served.watch.LOOK_SECONDS", 0.0)
    engine = await started(tmp_path, 2)
    first, second = engine.servers
    first.hangs = True
    await engine.update_weights(update(7))
    assert first.closed
    assert not second.closed
    assert "server 0 of fake is replaced: it does not respond" in caplog.text
    assert set((await ask(engine, [1])).ids) == {7}
    await engine.close()


async def test_a_new_server_does_not_pay_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path)
    (first,) = engine.servers
    probed, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> bool:
        probed.set()
        await go_on.wait()
        return False

    monkeypatch.setattr(first, "healthy", slow)
    first.dead = True
    looking = asyncio.create_task(engine.stats())
    await probed.wait()
    # Somebody else has noticed too.
    engine.fleet.lose(engine.fleet.replicas[0], "it is dead")
    await engine.fleet.until_up()
    go_on.set()
    await looking
    assert len(engine.servers) == 2
    assert engine.fleet.up
    await engine.close()


async def test_a_server_that_is_slow_and_well_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ajet_engines.served.watch.LOOK_SECONDS", 0.0)
    engine = await started(tmp_path)
    server = engine.servers[0]
    server.begins.clear()
    asked = 0

    async def healthy() -> bool:
        nonlocal asked
        asked += 1
        if asked == 20:
            server.begins.set()
        return True

    monkeypatch.setattr(FakeServer, "healthy", lambda _: healthy())
    assert len((await ask(engine, [1])).ids) == 8
    assert asked >= 20
    assert engine.servers == [server]
    await engine.close()


async def test_a_request_that_a_server_ends_without_a_token_is_not_asked_for_ever(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path)
    engine.servers[0].refuses = True
    with pytest.raises(EngineError, match="ended a request before its first token"):
        await ask(engine, [1])
    engine.servers[0].refuses = False
    assert len((await ask(engine, [1])).ids) == 8
    await engine.close()


async def test_an_answer_that_is_not_understood_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nonsense(_: FakeServer, __: object) -> AsyncIterator[Piece]:
        yield Piece([1], [0.0])
        raise KeyError("logprobs")

    engine = await started(tmp_path)
    monkeypatch.setattr(FakeServer, "sample", nonsense)
    with pytest.raises(KeyError, match="logprobs"):
        await ask(engine, [1])
    await engine.close()


async def test_the_only_server_may_die_of_an_update(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    engine.servers[0].loads = ["die"]
    (task,) = await running(engine)
    await engine.update_weights(update(7))
    answer = await task
    assert [version for version, _ in groupby(answer.versions)] == [0, 7]
    await engine.close()


async def test_what_fails_because_its_server_was_given_up_is_no_refusal(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    (first,) = engine.servers
    first.loads = ["last"]
    updating = asyncio.create_task(engine.update_weights(update(7)))
    while first.loads:
        await asyncio.sleep(0)
    first.dead = True
    await engine.stats()
    await updating
    assert set((await ask(engine, [1])).ids) == {7}
    await engine.close()


async def test_an_update_that_is_given_up_leaves_no_server_between_two_weights(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path, 2)
    await engine.update_weights(update(5))
    begun = list(engine.servers)
    begun[0].loads = ["last"]
    updating = asyncio.create_task(engine.update_weights(update(7)))
    while begun[1].weights != 7:
        await asyncio.sleep(0)
    updating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await updating
    answers = await asyncio.gather(*(ask(engine, [i]) for i in range(8)))
    assert {token for answer in answers for token in answer.ids} == {5}
    assert {version for answer in answers for version in answer.versions} == {5}
    assert all(server.closed for server in begun)
    await engine.close()


async def test_weights_that_all_refuse_are_not_served(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    await engine.update_weights(update(5))
    for server in engine.servers:
        server.loads = ["refuse"]
    tasks = await running(engine, 4)
    with pytest.raises(EngineError, match="version 7 were refused"):
        await engine.update_weights(update(7))
    for answer in await asyncio.gather(*tasks):
        assert set(answer.ids) == set(answer.versions) == {5}
    # What a server has after it refused is not known.
    assert len(engine.servers) == 4
    await engine.close()


async def test_weights_that_one_refuses_and_another_dies_of_are_not_served(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    await engine.update_weights(update(5))
    engine.servers[0].loads, engine.servers[1].loads = ["refuse"], ["die"]
    tasks = await running(engine, 4)
    with pytest.raises(EngineError, match="version 7 were refused"):
        await engine.update_weights(update(7))
    for answer in await asyncio.gather(*tasks):
        assert set(answer.ids) == set(answer.versions) == {5}
    await engine.close()


async def test_a_server_that_dies_while_all_sleep_is_started_when_they_wake(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path, 2)
    await engine.sleep()
    engine.servers[0].dead = True
    await engine.stats()
    task = asyncio.create_task(ask(engine, [1]))
    await until(engine, lambda stats: stats.waiting == 1)
    assert len(engine.servers) == 2
    await engine.wake()
    assert (await task).ids
    while len(engine.servers) < 3:
        await asyncio.sleep(0)
    await engine.close()


async def test_no_server_is_disturbed_by_an_update_that_cannot_be(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    (task,) = await running(engine)
    with pytest.raises(EngineError, match="there are no weights"):
        await engine.update_weights(WeightUpdate("safetensors_dir", 7, "nowhere"))
    await task
    assert len(engine.servers[0].requests) == 1
    await engine.close()


async def test_a_server_that_runs_already_is_given_the_models_weights(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, 1)
    await engine.start(ModelConfig(path="42"))
    assert (await ask(engine, [1])).ids == [42] * 8
    await engine.close()


async def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path, 2)
    engine.plan = ["", "no room"]
    with pytest.raises(EngineError, match="no room"):
        await engine.start(ModelConfig(path="0"))
    assert all(server.closed for server in engine.servers)


async def test_counters_go_on_over_the_death_of_a_server(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await ask(engine, [1], max_tokens=30)
    assert (await engine.stats()).sampled_tokens == 30
    engine.servers[0].dead = True
    await ask(engine, [1], max_tokens=10)
    assert (await engine.stats()).sampled_tokens == 40
    await engine.close()


async def test_a_slow_reader_does_not_hold_up_an_update(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    chunks = engine.generate(make_request([1], max_tokens=60))
    first = await anext(chunks)
    await engine.update_weights(update(1))
    ids = first.token_ids + [token async for chunk in chunks for token in chunk.token_ids]
    assert len(ids) == 60
    assert ids == sorted(ids)
    await engine.close()


async def test_closing_wakes_those_who_wait_for_a_server(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await engine.pause()
    task = asyncio.create_task(ask(engine, [1]))
    await until(engine, lambda stats: stats.waiting == 1)
    await engine.close()
    assert (await task).reason == "abort"
