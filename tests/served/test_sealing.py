"""Servers that say they have loaded weights and have not: they are replaced before they are asked for a token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ajet_core.errors import EngineError, SealError
from ajet_core.interfaces import WeightUpdate
from ajet_core.testing.asking import ask
from tests.served.fake_server import FakeEngine, started


def update(version: int, *checksums: str) -> WeightUpdate:
    return WeightUpdate(
        "safetensors_dir",
        version,
        str(version),
        checksums={"weights": checksums or (str(version),)},
    )


async def all_up(engine: FakeEngine) -> None:
    while len(engine.fleet.up) < len(engine.fleet.replicas):
        await asyncio.sleep(0)


async def test_a_stale_server_is_replaced_and_the_others_go_on(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    await engine.update_weights(update(4))
    engine.servers[1].loads = ["stale"]
    await engine.update_weights(update(5))
    (breach,) = (await engine.seal()).breaches
    assert "server 1 of fake does not serve the weights of policy version 5" in breach
    assert "those of policy version 4" in breach
    await all_up(engine)
    assert engine.servers[1].closed
    assert not engine.servers[1].requests
    answers = await asyncio.gather(*(ask(engine, [n]) for n in range(8)))
    assert {token for answer in answers for token in answer.ids} == {5}
    report = await engine.seal()
    assert (report.proof, report.tensors, report.servers) == ("checksums", 1, 2)
    assert not report.breaches
    await engine.close()


async def test_a_successor_is_asked_for_nothing_before_it_has_proven_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await started(tmp_path, 2)
    await engine.update_weights(update(5))
    launch = engine.launch

    async def launch_stale(*arguments: object) -> object:
        launched = await launch(*arguments)  # type: ignore[arg-type]
        if len(engine.servers) == 3:
            engine.servers[2].loads = ["stale"]
        return launched

    monkeypatch.setattr(engine, "launch", launch_stale)
    engine.servers[0].dead = True
    await engine.stats()
    await all_up(engine)
    assert len(engine.servers) == 4
    assert engine.servers[2].closed
    assert not engine.servers[2].requests
    assert engine.servers[3].weights == 5
    assert len((await engine.seal()).breaches) == 1
    await engine.close()


async def test_weights_that_no_server_can_prove_are_not_served(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    await engine.update_weights(update(4))
    with pytest.raises(SealError, match="policy version 6: 1 of 1 tensors"):
        await engine.update_weights(update(6, "something else"))
    await all_up(engine)
    assert all(server.closed for server in engine.servers[:2])
    answer = await ask(engine, [1])
    assert (set(answer.ids), set(answer.versions)) == ({4}, {4})
    assert len((await engine.seal()).breaches) == 2
    await engine.close()


async def test_a_server_that_never_proves_its_weights_is_given_up(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    engine.servers[1].loads = ["stale"]
    launch = engine.launch

    async def launch_stale(*arguments: object) -> object:
        launched = await launch(*arguments)  # type: ignore[arg-type]
        engine.servers[-1].loads = ["stale"]
        return launched

    engine.launch = launch_stale  # type: ignore[assignment, method-assign]
    await engine.update_weights(update(5))
    while not engine.fleet.replicas[1].failure:
        await asyncio.sleep(0)
    assert "does not serve the weights of policy version 5" in engine.fleet.replicas[1].failure
    assert set((await ask(engine, [1])).ids) == {5}
    await engine.close()
    with pytest.raises(EngineError, match="not running"):
        await engine.seal()


async def test_servers_that_cannot_tell_are_said_to_be_unproven(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2)
    engine.servers[1].tells = False
    await engine.update_weights(update(5))
    report = await engine.seal()
    assert (report.proof, report.servers, report.breaches) == ("none", 1, ())
    await engine.close()
