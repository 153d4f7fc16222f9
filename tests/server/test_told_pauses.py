"""A client that waits for a paused run logs the reason."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentjet import AsyncSwarmClient
from ajet_core.errors import DeadlineError
from ajet_testing.servers import CONTROL, TOKENS, Running


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
        assert told(caplog) == [
            "begin_episode('a') waits, because the run is paused: the disk is full"
        ]
        await paused(server, "the grader is broken")
        await wait()
        assert len(told(caplog)) == 2
        assert told(caplog)[-1].endswith("paused: the grader is broken")
