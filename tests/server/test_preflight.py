"""The first batch of a run is checked before training; a failure pauses the run unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_core.protocol import PreflightReport, ServerState
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory
from tests.support.runs import events, finish_batch, status, until_state

pytestmark = pytest.mark.processes

LONG = {"reply_length": 12}


def checks(report: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in report["checks"]}


def found(report: dict[str, Any], name: str) -> str:
    (text,) = [c["found"] + "; " + c["way_out"] for c in report["checks"] if c["name"] == name]
    return str(text)


async def report_of(server: Running) -> dict[str, Any]:
    await server.service.board.wait_until(lambda: bool(events(server, "preflight")))
    report: dict[str, Any] = (await status(server))["preflight"]
    return report


async def test_the_first_batch_is_tried_and_then_trained(server: Running) -> None:
    await server.roll(engine=LONG)
    await server.batch()
    report = await report_of(server)
    assert report["step"] == 1
    # The scripted engine makes its tokens up, which no template writes.
    assert checks(report) == {
        "logprobs": "pass",
        "seal": "pass",
        "template": "warn",
        "tools": "pass",
        "memory": "pass",
        "rewards": "pass",
    }
    assert "1 server(s) proved 1 tensors" in found(report, "seal")
    # The next ones are not.
    await server.batch()
    assert server.service.coordinator.step == 2
    assert len(events(server, "preflight")) == 1


async def test_a_run_may_do_without(server: Running) -> None:
    await server.roll(engine=LONG, preflight={"enabled": False})
    await server.batch()
    assert server.service.coordinator.step == 1
    assert not events(server, "preflight")
    assert (await status(server))["preflight"] is None


@pytest.mark.parametrize(
    ("trainer", "check", "says"),
    [
        ({"rehearsed_gap": 0.05}, "logprobs", "above preflight.max_logprob_gap 0.1"),
        ({"memory": 8}, "memory", "do not fit into the memory"),
    ],
    ids=["gap", "memory"],
)
async def test_a_trainer_that_cannot_train_it_pauses_the_run_before_any_weights_change(
    server: Running, trainer: dict[str, Any], check: str, says: str
) -> None:
    await server.roll(engine=LONG, trainer=trainer)
    await finish_batch(server)
    await until_state(server, ServerState.PAUSED)
    report = await report_of(server)
    assert checks(report)[check] == "fail"
    assert says in found(report, check)
    said = (await status(server))["paused"]
    assert "the preflight of step 1 failed before anything was trained" in said
    assert says in said
    assert server.service.coordinator.step == 0
    # When somebody says so it is trained nevertheless, as far as it can be.
    answer = await server.http.post("/v1/run/resume", headers=CONTROL)
    assert answer.status_code == 200
    await server.service.board.wait_until(
        lambda: server.service.coordinator.step == 1 or bool(events(server, "refused"))
    )
    assert server.service.coordinator.step == (0 if check == "memory" else 1)


@pytest.mark.parametrize("asked", [False, True])
async def test_equal_rewards_fail_it_and_pause_the_run_if_somebody_asked(
    server: Running, asked: bool
) -> None:
    (await server.put_run(engine=LONG)).raise_for_status()
    await server.http.post(f"/v1/run/{'preflight' if asked else 'start'}", headers=CONTROL)
    await asyncio.gather(*(server.episode(task, 1.0) for task in "aabb"))
    report = await report_of(server)
    assert checks(report)["rewards"] == "fail"
    assert "all 4 rewards are 1" in found(report, "rewards")
    if asked:
        await until_state(server, ServerState.PAUSED)
    else:
        # Nothing is learned from it, and no harm is done.
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)


async def test_a_failed_preflight_is_not_repeated_after_a_restart(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll(engine=LONG, trainer={"rehearsed_gap": 0.05})
        await finish_batch(server)
        await until_state(server, ServerState.PAUSED)
    async with servers.running() as server:
        await until_state(server, ServerState.PAUSED)
        await server.http.post("/v1/run/resume", headers=CONTROL)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        assert not events(server, "preflight")


async def test_one_that_is_asked_for_starts_the_run_and_tries_the_next_batch(
    server: Running,
) -> None:
    (await server.put_run(engine=LONG, preflight={"enabled": False})).raise_for_status()
    answer = await server.http.post("/v1/run/preflight", headers=CONTROL)
    assert answer.status_code == 200
    await until_state(server, ServerState.ROLLING)
    await server.batch()
    assert (await report_of(server))["step"] == 1
    await server.http.post("/v1/run/preflight", headers=CONTROL)
    assert (await status(server))["preflight"] is None
    await server.batch()
    assert (await status(server))["preflight"]["step"] == 2


async def test_one_without_a_run_says_what_to_do_first(server: Running) -> None:
    answer = await server.http.post("/v1/run/preflight", headers=CONTROL)
    assert answer.status_code == 409
    assert "no run is configured" in answer.text


async def test_a_client_token_neither_asks_for_one_nor_reads_it(server: Running) -> None:
    await server.roll(engine=LONG)
    assert (await server.http.post("/v1/run/preflight", headers=CLIENT)).status_code == 403
    await server.batch()
    await report_of(server)
    answer = await server.http.get("/v1/status", headers=CLIENT)
    assert answer.json()["preflight"] is None


async def ajet_preflight(server: Running, *arguments: str) -> Result:
    """The command, against the server's socket."""
    environment = {"AJET_TOKEN": CONTROL["authorization"].removeprefix("Bearer ")}
    command = ["preflight", "--url", server.url, *arguments]
    return await asyncio.to_thread(
        CliRunner(env=environment).invoke, cli, command, prog_name="ajet"
    )


async def test_the_command_prints_every_check_and_its_way_out(server: Running) -> None:
    (await server.put_run(engine=LONG)).raise_for_status()
    asked = asyncio.create_task(ajet_preflight(server))
    await until_state(server, ServerState.ROLLING)
    await server.batch()
    result = await asked
    assert result.exit_code == 0, result.output
    assert "pass  logprobs  mean difference 0 nats" in result.stdout
    assert "-> set model.renderer to the model's own renderer" in result.stdout
    assert "preflight of step 1: warn" in result.stdout
    assert f"run your clients against {server.url}" in result.stderr


async def test_the_command_says_by_its_status_that_a_check_failed(server: Running) -> None:
    (await server.put_run(engine=LONG, trainer={"memory": 8})).raise_for_status()
    asked = asyncio.create_task(ajet_preflight(server, "--json"))
    await until_state(server, ServerState.ROLLING)
    await finish_batch(server)
    result = await asked
    assert result.exit_code == 1
    assert PreflightReport.model_validate_json(result.stdout).verdict == "fail"


async def test_the_command_without_clients_ends_with_one_line_and_the_way_out(
    server: Running,
) -> None:
    (await server.put_run(engine=LONG)).raise_for_status()
    result = await ajet_preflight(server, "--wait", "0")
    assert result.exit_code == 2
    (_, line) = result.stderr.splitlines()
    assert line.startswith("ajet: error: no batch to check within 0 s: ")
    assert "Run a client that rolls out episodes of your tasks" in line


async def test_the_command_without_a_run_says_so(server: Running) -> None:
    result = await ajet_preflight(server)
    assert result.exit_code == 2
    assert "no run is configured" in result.stderr
