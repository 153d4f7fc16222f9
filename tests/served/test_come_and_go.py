"""Servers that are added and removed while requests run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ajet_core.interfaces import GenerateRequest, SamplingParams, WeightUpdate
from ajet_testing.suites.asking import ask
from tests.served.fake_server import FakeEngine, started

A, B = "http://10.0.0.5:8000", "http://10.0.0.6:8000"


async def until_settled(engine: FakeEngine) -> dict[str, str]:
    while "starting" in (states := await engine.use_servers(None)).values():
        await asyncio.sleep(0)
    return states


async def test_an_added_server_has_the_latest_weights_before_its_first_request(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path)
    await engine.update_weights(WeightUpdate("safetensors_dir", 5, "5"))
    assert await engine.use_servers([A]) == {"server 0": "up", A: "starting"}
    assert await until_settled(engine) == {"server 0": "up", A: "up"}
    assert engine.servers[1].weights == 5
    assert engine.servers[1].requests == []
    for i in range(6):
        assert set((await ask(engine, [i])).ids) == {5}
    await engine.close()
    assert all(server.closed for server in engine.servers)


async def test_a_server_is_added_once(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await engine.use_servers([A, A])
    await engine.use_servers([A])
    assert await until_settled(engine) == {"server 0": "up", A: "up"}
    assert len(engine.servers) == 2
    await engine.close()


async def test_requests_of_a_removed_server_continue_on_another(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await engine.use_servers([A, B])
    await until_settled(engine)
    sampling = SamplingParams(max_tokens=40)

    async def tokens(number: int) -> int:
        request = GenerateRequest(str(number), [number], sampling)
        return sum([len(chunk.token_ids) async for chunk in engine.generate(request)])

    asked = [asyncio.create_task(tokens(number)) for number in range(9)]
    while not all(server.running for server in engine.servers):
        await asyncio.sleep(0)
    assert await engine.use_servers([B]) == {"server 0": "up", B: "up"}
    assert await asyncio.gather(*asked) == [40] * 9
    removed = engine.servers[1]
    assert removed.closed
    assert removed.running == 0
    before = len(removed.requests)
    await ask(engine, [1])
    assert len(removed.requests) == before
    stats = await engine.stats()
    assert stats.sampled_tokens >= 9 * 40, "counters of a removed server are kept"
    await engine.close()


async def test_a_server_that_is_removed_before_its_first_token_costs_no_request(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path)
    await engine.use_servers([A])
    await until_settled(engine)
    for server in engine.servers:
        server.begins.clear()
    asked = [asyncio.create_task(ask(engine, [number])) for number in range(4)]
    while not all(server.requests for server in engine.servers):
        await asyncio.sleep(0)
    await engine.use_servers([])
    engine.servers[0].begins.set()
    for answer in await asyncio.gather(*asked):
        assert answer.ids
    await engine.close()


async def test_a_server_that_does_not_start_is_reported_and_can_be_added_again(
    tmp_path: Path,
) -> None:
    engine = await started(tmp_path)
    # A URL that has never answered is tried once.
    engine.plan = ["no model server responded"]
    await engine.use_servers([A])
    assert await until_settled(engine) == {"server 0": "up", A: "no model server responded"}
    await engine.use_servers([A])
    assert await until_settled(engine) == {"server 0": "up", A: "up"}
    await engine.close()


async def test_a_server_that_is_removed_while_it_starts_is_ended(tmp_path: Path) -> None:
    engine = await started(tmp_path)
    await engine.use_servers([A])
    assert await engine.use_servers([]) == {"server 0": "up"}
    await ask(engine, [1])
    await engine.close()
    assert all(server.closed for server in engine.servers)
