"""A gateway ends while it answers a call that another gateway has sent on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import Message, Receive, Scope, Send

from ajet_server.processes.forwarding import Forwarding
from ajet_server.processes.gateway_episodes import EpisodeAtError

pytestmark = pytest.mark.processes


@asynccontextmanager
async def gateway(answer: bytes) -> AsyncIterator[str]:
    """Listen, write these bytes to whoever asks, and close the connection."""

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(once, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def ask(answer: bytes) -> list[Message]:
    """Return what an agent is sent whose call is forwarded to a gateway that answers this."""
    sent: list[Message] = []
    unread: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        return await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async with gateway(answer) as url:

        async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
            raise EpisodeAtError("ep-1", url)

        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "headers": [],
        }
        await Forwarding(elsewhere, lambda _: None)(scope, receive, send)
    return sent


def body(sent: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


def ended(sent: list[Message]) -> bool:
    return sent[-1]["type"] == "http.response.body" and not sent[-1].get("more_body", False)


async def test_an_answer_is_sent_back() -> None:
    sent = await ask(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    assert sent[0]["status"] == 200
    assert body(sent) == b"hello"
    assert ended(sent)


async def test_an_answer_without_its_body_can_be_repeated() -> None:
    for part in (b"", b"he"):
        sent = await ask(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + part)
        assert sent[0]["status"] == 503
        assert "has ended" in json.loads(body(sent))["error"]["message"]
        assert (b"retry-after", b"1") in sent[0]["headers"]
        assert ended(sent)


async def test_a_stream_that_breaks_has_no_end() -> None:
    sent = await ask(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n")
    assert sent[0]["status"] == 200
    assert body(sent) == b"he"
    assert not ended(sent)
