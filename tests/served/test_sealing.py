"""Servers that falsely report loaded weights are replaced before they sample a token."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_core.errors import EngineError, SealError
from ajet_core.interfaces import Probe, WeightUpdate
from ajet_testing.suites.asking import ask
from ajet_testing.weights.planted import PLANTED, Planted
from tests.served.fake_server import FakeEngine, said_of_probe, started


def update(version: int, *checksums: str) -> WeightUpdate:
    return WeightUpdate(
        "safetensors_dir",
        version,
        str(version),
        checksums={"weights": checksums or (str(version),)},
    )


def probed(version: int) -> WeightUpdate:
    """As a trainer publishes it whose logprobs differ a little from the servers'."""
    logprobs = [one + 1e-4 * (-1) ** n for n, one in enumerate(said_of_probe(version, version, 64))]
    return WeightUpdate(
        "safetensors_dir", version, str(version), probe=Probe(list(range(65)), logprobs)
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
    assert "from policy version 4" in breach
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


@pytest.mark.parametrize("fault", PLANTED)
async def test_a_server_that_says_no_checksums_is_replaced_if_the_probe_says_so(
    tmp_path: Path, fault: Planted
) -> None:
    engine = await started(tmp_path, 2, tells=False, scores=True)
    for version in (4, 5):
        await engine.update_weights(probed(version))
    report = await engine.seal()
    assert (report.proof, report.servers, report.breaches) == ("probe", 2, ())
    assert report.change > 0.05 > 1e-3 > report.noise > 0
    engine.servers[1].loads = [fault]
    await engine.update_weights(probed(6))
    (breach,) = (await engine.seal()).breaches
    assert "server 1 of fake does not serve the weights of policy version 6" in breach
    assert ("still serves policy version 5" in breach) is (fault == "stale")
    await all_up(engine)
    assert engine.servers[1].closed
    assert not engine.servers[1].requests
    # The successor is held to the probe too.
    report = await engine.seal()
    assert (report.policy_version, report.proof, report.servers) == (6, "probe", 2)
    answers = await asyncio.gather(*(ask(engine, [n]) for n in range(8)))
    assert {token for answer in answers for token in answer.ids} == {6}
    await engine.close()


async def test_a_probe_that_no_server_passes_leaves_the_weights_before(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2, tells=False, scores=True)
    for version in (4, 5):
        await engine.update_weights(probed(version))
    for server in engine.servers:
        server.loads = ["swapped"]
    with pytest.raises(SealError, match="or other weights"):
        await engine.update_weights(probed(6))
    await all_up(engine)
    assert set((await ask(engine, [1])).ids) == {5}
    # They have proven what they serve instead.
    report = await engine.seal()
    assert (report.policy_version, report.proof, report.servers) == (5, "probe", 2)
    await engine.close()


async def test_a_probe_is_not_asked_for_where_checksums_tell(tmp_path: Path) -> None:
    engine = await started(tmp_path, 1, tells=True, scores=True)
    both = replace(probed(4), checksums={"weights": ("4",)})
    await engine.update_weights(both)
    report = await engine.seal()
    assert (report.proof, report.noise) == ("checksums", 0)
    await engine.close()


async def test_servers_that_answer_no_probe_are_said_to_be_unproven(tmp_path: Path) -> None:
    engine = await started(tmp_path, 2, tells=False)
    for version in (4, 5):
        await engine.update_weights(probed(version))
    report = await engine.seal()
    assert (report.proof, report.servers, report.noise) == ("none", 0, 0)
    await engine.close()
