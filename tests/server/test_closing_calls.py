"""Calls that come, or begin, while their episode is being closed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from ajet_core.errors import EpisodeClosedError
from ajet_server.episodes.open_episodes import OpenEpisode
from ajet_testing.servers import Running, error_of, key

pytestmark = pytest.mark.processes

ASKED = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}


async def open_episode(server: Running) -> tuple[dict[str, Any], OpenEpisode]:
    await server.roll()
    grant = await server.claim()
    return grant, server.service.episodes.open[grant["episode_id"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_whose_body_comes_after_the_end_is_not_made(
    server: Running, stream: bool
) -> None:
    grant, live = await open_episode(server)
    live.seen_at -= 50.0
    before = live.seen_at
    body = json.dumps({**ASKED, "stream": stream}).encode()
    ended = asyncio.Event()

    async def slowly() -> Any:
        yield body[:10]
        await ended.wait()
        yield body[10:]

    async with httpx2.AsyncClient(base_url=server.url, timeout=60.0) as other:
        call = asyncio.create_task(
            other.post("/v1/chat/completions", headers=key(grant), content=slowly())
        )
        while live.seen_at == before:
            await asyncio.sleep(0)
        assert (await server.end(grant, 1.0)).status_code == 200
        ended.set()
        answer = await call
    assert answer.status_code == 410
    assert error_of(answer)["code"] == "episode_closed"
    found = await server.service.store.calls([grant["episode_id"]])
    assert found[grant["episode_id"]] == []


async def test_no_call_begins_while_calls_are_being_ended(server: Running) -> None:
    _, live = await open_episode(server)
    began = []

    async def work() -> None:
        began.append(True)

    async with live.closing:
        with pytest.raises(EpisodeClosedError):
            with server.service.episodes.running_call(live, work()):
                pass
    # Closing may fail, and the episode is open then as it was.
    with server.service.episodes.running_call(live, work()) as task:
        await task
    assert began == [True]


class ClosedAtOnce(set[asyncio.Task[Any]]):
    """Running calls of an episode that is closed in the same turn of the loop as they begin."""

    def add(self, task: asyncio.Task[Any]) -> None:
        super().add(task)
        task.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_ended_before_its_first_step_is_answered(
    server: Running, stream: bool
) -> None:
    grant, live = await open_episode(server)
    live.calls_running = ClosedAtOnce()
    answer = await server.chat(grant, stream=stream)
    assert answer.status_code == 410
    assert error_of(answer)["code"] == "episode_closed"
    # It takes no place of another one.
    live.calls_running = set()
    assert (await server.chat(grant, stream=stream)).status_code == 200
    assert not live.calls_running
