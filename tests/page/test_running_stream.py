"""What running calls write, as a stream from a server on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ajet_testing.servers import CONTROL, Running, new_token, revoke
from tests.page.held_engine import half_answered
from tests.page.test_page_routes import HOSTILE

pytestmark = pytest.mark.processes

TEXT = "hello there, how are you today?"


@asynccontextmanager
async def following(
    server: Running, grant: dict[str, Any], headers: dict[str, str] = CONTROL
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of a stream."""
    path = f"/v1/timelines/{grant['episode_id']}/running"
    async with server.http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) async for line in answer.aiter_lines() if line[:6] == "data: ")


def streams(server: Running) -> int:
    """The number of open streams."""
    return server.service.tenants._streams.total()


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_come_while_the_call_runs(server: Running, stream: bool) -> None:
    await server.roll()
    grant = await server.claim()
    async with following(server, grant) as events:
        assert await anext(events) == {"calls": [], "more": 0, "open": True}
        async with half_answered(server, grant, TEXT, 5, stream=stream) as (engine, calling):
            # Without it, an engine may return all tokens at the end.
            assert engine.requests[0].stream
            seen = [await anext(events)]
            while not seen[-1]["calls"] or seen[-1]["calls"][0]["tokens"] < 5:
                seen.append(await anext(events))
            (call,) = seen[-1]["calls"]
            assert (call["tokens"], call["version"]) == (5, 7)
            assert sum(len(one["messages"]) for said in seen for one in said["calls"]) == 1
            assert not calling.done()
            assert engine.hold is not None
            engine.hold.set()
            async for said in events:
                if not said["calls"]:
                    break
        # Whoever sees that the call has ended can read it.
        path = f"/v1/timelines/{grant['episode_id']}/messages"
        messages = (await server.http.get(path, headers=CONTROL)).json()
        assert messages["calls"][0]["answer"]["content"] == TEXT
        await server.end(grant, 1.0)
        assert [said async for said in events] == [{"calls": [], "more": 0, "open": False}]
    await _closed(server)


async def test_a_late_viewer_sees_what_was_written_before(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    messages = [{"role": "user", "content": HOSTILE}]
    request = {"messages": messages, "stream": True}
    async with half_answered(server, grant, TEXT, 6, **request) as (engine, _):
        async with following(server, grant) as events:
            (call,) = (await anext(events))["calls"]
            (shown,) = call["messages"]
            assert (shown["role"], shown["content"]) == ("user", HOSTILE)
            assert (call["first"], call["tokens"]) == (0, 6)
            assert TEXT.startswith(call["text"])
            assert call["text"]
            assert engine.hold is not None
            engine.hold.set()


async def test_a_call_that_nobody_watches_is_not_streamed(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    async with half_answered(server, grant, TEXT, 3) as (engine, _):
        assert not engine.requests[0].stream


async def test_a_stream_ends_with_its_token(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    token_id, viewer = await new_token(server, "viewer", scope="view")
    async with following(server, grant, viewer) as events:
        await anext(events)
        await revoke(server, token_id)
        assert [said async for said in events] == []
    await _closed(server)


async def test_a_viewer_that_leaves_ends_its_stream(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    async with following(server, grant) as events:
        await anext(events)
        assert streams(server) == 1
    await _closed(server)


async def test_an_episode_that_is_over_has_no_running_calls(server: Running) -> None:
    await server.roll()
    grant = await server.episode("a", 1.0)
    async with following(server, grant) as events:
        assert [said async for said in events] == [{"calls": [], "more": 0, "open": False}]


async def test_an_unknown_episode_is_an_error(server: Running) -> None:
    answer = await server.http.get("/v1/timelines/nothing/running", headers=CONTROL)
    assert answer.status_code == 404


async def test_agents_and_clients_may_not_watch(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    _, client = await new_token(server, "client", scope="client")
    path = f"/v1/timelines/{grant['episode_id']}/running"
    assert (await server.http.get(path, headers=client)).status_code == 403


async def _closed(server: Running) -> None:
    async with asyncio.timeout(30):
        while streams(server):
            await asyncio.sleep(0)
