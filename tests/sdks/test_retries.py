"""An SDK's retry gets the first answer; equal requests that are no retries do not."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from openai import AsyncOpenAI

from ajet_testing.faults import HoldGate
from ajet_testing.servers import ServerFactory
from tests.support.sdks import Agent

pytestmark = pytest.mark.processes

RETRY = {"x-stainless-retry-count": "1"}
NAMED = {"idempotency-key": "a"}
ASKED = [{"role": "user", "content": "x"}]
BODY = {"messages": ASKED, "max_tokens": 20}
PATHS = ["/v1/chat/completions", "/v1/messages"]


async def ask(agent: Agent, path: str, **more: str) -> str:
    """The id of an answer."""
    headers = {"x-api-key": agent.grant["api_key"], **more}
    answer = await agent.server.http.post(path, headers=headers, json=BODY)
    answer.raise_for_status()
    name: str = answer.json()["id"]
    return name


async def hang_up(agent: Agent, path: str, *, reads: bool) -> None:
    """Ask, wait until there is an answer, and close the connection."""
    loop = asyncio.get_running_loop()
    # As httpx2 writes it, so that it is the same request.
    body = json.dumps(BODY, separators=(",", ":"), ensure_ascii=False).encode()
    host, _, port = agent.server.url.removeprefix("http://").partition(":")
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {agent.grant['api_key']}\r\n"
    with socket.socket() as client:
        client.setblocking(False)
        await loop.sock_connect(client, (host, int(port)))
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(client, head.encode() + body)
        readable = asyncio.Event()
        loop.add_reader(client, readable.set)
        await readable.wait()
        loop.remove_reader(client)
        if reads:
            answer = b""
            while not answer.endswith(b"}"):
                answer += await loop.sock_recv(client, 65536)
            assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_was_lost_is_given_to_the_one_who_asks_again(
    agent: Agent, path: str
) -> None:
    await hang_up(agent, path, reads=False)
    first = await ask(agent, path, **RETRY)
    second = await ask(agent, path, **RETRY)
    assert [call.call_id for call in await agent.calls()] == [first, second]


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_that_was_read_is_given_to_nobody_else(agent: Agent, path: str) -> None:
    await hang_up(agent, path, reads=True)
    second = await ask(agent, path, **RETRY)
    # The same question, asked once more.
    third = await ask(agent, path)
    fourth = await ask(agent, path, **RETRY)
    assert [call.call_id for call in await agent.calls()][1:] == [second, third, fourth]


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_with_a_name_is_made_once(agent: Agent, path: str) -> None:
    first = await ask(agent, path, **NAMED)
    assert await ask(agent, path, **NAMED, **RETRY) == first
    assert await ask(agent, path, **RETRY) != first
    assert len(await agent.calls()) == 2


async def test_alike_requests_of_which_some_are_turned_away_are_calls_of_their_own(
    servers: ServerFactory,
) -> None:
    async with servers.running(max_calls_at_once=1) as server:
        with HoldGate(server.run_dir, "engine") as gate:
            await server.roll(engine={"hangs_at": 1})
            agent = Agent(server, await server.claim())
            client = AsyncOpenAI(
                base_url=agent.grant["base_url"], api_key=agent.grant["api_key"], max_retries=50
            )
            async with client:
                asking = [
                    asyncio.create_task(
                        client.chat.completions.create(model="any", messages=ASKED, temperature=0.0)
                    )
                    for _ in range(4)
                ]
                while server.service.throttled.recent()[0] < 3:
                    await asyncio.sleep(0)
                gate.release()
                answers = await asyncio.gather(*asking)
    assert len({answer.id for answer in answers}) == 4
