"""A client that waits for a paused run logs the reason."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentjet import AsyncSwarmClient
from ajet_core.errors import DeadlineError
from ajet_testing.servers import CONTROL, TOKENS, Running, new_token

pytestmark = pytest.mark.processes


async def paused(server: Running, reason: str) -> None:
    answer = await server.http.post("/v1/run/pause", headers=CONTROL, json={"reason": reason})
    assert answer.status_code == 200, answer.text


async def waits(client: AsyncSwarmClient) -> None:
    with pytest.raises(DeadlineError):
        await client.begin_episode("a", timeout=0.5)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [r.getMessage() for r in caplog.records if "the run is paused" in r.getMessage()]


async def test_the_reason_is_logged_once_and_again_when_it_changes(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="ajet.client")
    await server.roll()
    await paused(server, "the disk is full")
    now = [0.0]
    async with AsyncSwarmClient(server.url, TOKENS.control, clock=lambda: now[0]) as client:

        async def wait() -> None:
            now[0] += 100.0
            await waits(client)

        await wait()
        await wait()
        resume = f"`ajet resume {server.service.settings.server.run_dir.resolve()}`"
        (text,) = told(caplog)
        assert text == (
            "begin_episode('a') waits, because the run is paused since before this client began: "
            f"the disk is full. Once that is fixed, run {resume}"
        )
        await paused(server, "the grader is broken")
        await wait()
        assert len(told(caplog)) == 2
        assert f"the grader is broken. Once that is fixed, run {resume}" in told(caplog)[-1]


async def test_a_pause_during_a_run_is_not_said_to_be_older(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="ajet.client")
    await server.roll()
    async with AsyncSwarmClient(server.url, TOKENS.control) as client:
        await client.begin_episode("a")
        await paused(server, "the disk is full")
        await waits(client)
    (text,) = told(caplog)
    assert "is paused: the disk is full. Once that is fixed, run `ajet resume /" in text


async def test_a_reason_that_names_the_command_gets_the_directory(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="ajet.client")
    await server.roll()
    await paused(server, "no signal: run `ajet resume --from-step 2`.")
    async with AsyncSwarmClient(server.url, TOKENS.control) as client:
        await waits(client)
    (text,) = told(caplog)
    run_dir = server.service.settings.server.run_dir.resolve()
    assert text.endswith(f"no signal: run `ajet resume {run_dir} --from-step 2`")


async def test_a_long_wait_repeats_the_reason(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="ajet.client")
    await server.roll()
    await paused(server, "the disk is full")
    now = [0.0]

    def clock() -> float:
        now[0] += 10.0
        return now[0]

    async with AsyncSwarmClient(server.url, TOKENS.control, clock=clock) as client:
        with pytest.raises(DeadlineError):
            await client.begin_episode("a", timeout=100.0)
    waited = [r.getMessage() for r in caplog.records if "has waited" in r.getMessage()]
    assert waited
    assert all("the disk is full" in each and "ajet resume" in each for each in waited)


async def test_the_run_directory_is_for_control_tokens_alone(server: Running) -> None:
    await server.roll()
    _, viewer = await new_token(server, "viewer", scope="view")
    _, client = await new_token(server, "agents", scope="client")
    shown = {}
    for name, headers in (("control", CONTROL), ("view", viewer), ("client", client)):
        shown[name] = (await server.http.get("/v1/status", headers=headers)).json()["run_dir"]
    assert shown["control"] == str(server.service.settings.server.run_dir.resolve())
    assert (shown["view"], shown["client"]) == (None, None)
