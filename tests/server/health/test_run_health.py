"""A run that pauses for what is wrong with its training, on real sockets and worker processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet_cli.commands.run.status import render
from ajet_core.protocol import ServerState, ServerStatus
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory
from tests.support.runs import events, status, until_state

pytestmark = pytest.mark.processes


async def equal_batch(server: Running) -> None:
    """A batch without signal; what becomes of it is not waited for."""
    await asyncio.gather(*(server.episode(task, 1.0) for task in "aabb"))


async def trained(server: Running, step: int) -> None:
    coordinator = server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step >= step or coordinator.paused is not None
    )


async def resume(server: Running) -> None:
    (await server.http.post("/v1/run/resume", headers=CONTROL)).raise_for_status()


def found(told: dict[str, Any], code: str) -> dict[str, Any]:
    (finding,) = [f for f in told["findings"] if f["code"] == code]
    return dict(finding)


async def test_a_batch_too_many_without_signal_is_held_back_until_somebody_has_looked(
    server: Running,
) -> None:
    await server.roll(failures={"zero_signal_steps": 2})
    await server.batch()
    await equal_batch(server)
    await trained(server, 2)
    await equal_batch(server)
    await until_state(server, ServerState.PAUSED)
    told = await status(server)
    assert told["step"] == 2
    assert (
        "the batch of step 3 was not trained: 2 batches in a row have no signal" in told["paused"]
    )
    finding = found(told, "zero_signal")
    # The first step without signal is the second; there is a checkpoint of it, and none of the step
    # before.
    assert (finding["since_step"], finding["good_step"]) == (2, 0)
    assert told["checks"]["zero_signal"] == "found"
    begun = [e for e in events(server, "finding") if e["what"] == "begun"]
    assert [e["code"] for e in begun] == ["zero_signal"]
    scraped = (await server.http.get("/metrics", headers=CONTROL)).text
    assert 'ajet_finding_seconds{code="zero_signal",stuck="false"}' in scraped
    await resume(server)
    await trained(server, 3)
    # Somebody has looked: the same finding pauses nothing again.
    assert server.service.coordinator.paused is None
    # The sentence about the batch alone is left out: it would repeat the finding.
    (sentence,) = (await status(server))["last_step"]["findings"]
    assert "2 batches in a row" in sentence
    assert "all rewards of the last one are 1" in sentence
    await server.batch()
    assert found_codes(await status(server)) == []
    assert [e["what"] for e in events(server, "finding")] == ["begun", "ended"]


def found_codes(told: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in told["findings"]]


async def test_a_batch_that_is_held_back_outlives_a_restart(servers: ServerFactory) -> None:
    limits = {"zero_signal_steps": 1}
    async with servers.running() as server:
        await server.roll(failures=limits)
        await server.batch()
        await equal_batch(server)
        await until_state(server, ServerState.PAUSED)
        # What it can be gone back to: the weights that the batch was not trained on.
        assert server.service.coordinator.loop is not None
        assert (servers.run_dir / "checkpoints" / "step-000001").is_dir()
    async with servers.running() as server:
        await until_state(server, ServerState.PAUSED)
        assert "was not trained" in (await status(server))["paused"]
        assert len(await server.service.store.batches(after_step=1)) == 1


async def test_what_only_the_trainer_can_tell_pauses_after_the_step(server: Running) -> None:
    gaps = (0.001, 0.001, 0.001, 0.4)
    await server.roll(trainer={"reports": {"logprob_gap_mean": gaps}}, checkpoint_every=1)
    for _ in range(3):
        await server.batch()
    await server.batch()
    await until_state(server, ServerState.PAUSED)
    told = await status(server)
    assert told["step"] == 4
    assert "after step 4: the engine's logprobs differ from the trainer's by 0.4" in told["paused"]
    assert "run `ajet resume --from-step 3` to return to it" in told["paused"]
    assert (found(told, "logprob_gap")["since_step"], found(told, "logprob_gap")["good_step"]) == (
        4,
        3,
    )


async def test_what_is_good_is_kept_while_newer_checkpoints_come(server: Running) -> None:
    gaps = (0.001, 0.001, 0.4)
    await server.roll(
        trainer={"reports": {"logprob_gap_mean": gaps}},
        checkpoint_every=1,
        failures={"pause_on": []},
    )
    for _ in range(9):
        await server.batch()
    told = await status(server)
    assert (told["state"], found(told, "logprob_gap")["good_step"]) == ("ROLLING", 2)
    loop = server.service.coordinator.loop
    assert loop is not None
    assert {2, 8, 9} <= set(loop._checkpoints.steps())


async def test_the_status_shows_findings_once_with_where_to_go_back_to(server: Running) -> None:
    await server.roll(failures={"max_cut_off": 0.1, "pause_on": []}, checkpoint_every=1)
    grants = [await server.claim(task) for task in "aabb"]
    for number, grant in enumerate(grants):
        await server.chat(grant, "hello", max_tokens=1)
        await server.end(grant, float(number % 2))
    await trained(server, 1)
    told = ServerStatus.model_validate(await status(server))
    cells = render(told, "url", checks=True).columns
    text = " | ".join(str(cell) for column in cells for cell in column._cells)
    assert text.count("were cut off by max_tokens") == 1
    assert (
        "(since step 1; last good checkpoint: none, only the model that the run started with)"
        in text
    )
    assert "check kl" in text
    seen = await server.http.get("/v1/status", headers=CLIENT)
    # It quotes nobody.
    assert "cut_off" in found_codes(seen.json())
