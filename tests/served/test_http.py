"""What model servers send, and what of it is taken for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ajet_engines.served import Address, HttpClient, ServerGoneError, ServerRefusedError

pytestmark = pytest.mark.processes

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def plain(status: str, body: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)

    return answer


def parts(*bodies: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for body in (STREAM, *bodies):
            writer.write(body)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


@asynccontextmanager
async def client(
    directory: Path, answer: Answer, heads: list[bytes] | None = None
) -> AsyncIterator[HttpClient]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await reader.readexactly(int(line.split(b":")[1]))
        await answer(writer)
        writer.close()

    socket = directory / "s"
    server = await asyncio.start_unix_server(serve, socket)
    found = HttpClient(Address("http://server", socket))
    yield found
    await found.close()
    server.close()
    await server.wait_closed()


async def collect(http: HttpClient) -> list[object]:
    return [event async for event in http.events("/stream", {})]


async def test_events_are_read_however_they_are_cut(tmp_path: Path) -> None:
    whole = b'data: {"n": 1}\n\n: still here\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n'
    for size in (1, 7, 1000):
        cut = [whole[i : i + size] for i in range(0, len(whole), size)]
        async with client(tmp_path, parts(*cut)) as http:
            assert await collect(http) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("traceparent", ["00-1-2-01", ""])
async def test_a_model_server_gets_the_span_of_its_request(
    tmp_path: Path, traceparent: str
) -> None:
    heads: list[bytes] = []
    async with client(tmp_path, parts(b"data: [DONE]\n\n"), heads) as http:
        assert [event async for event in http.events("/stream", {}, traceparent)] == []
    assert (b"traceparent: 00-1-2-01" in heads[0]) == bool(traceparent)
    assert (b"traceparent" in heads[0]) == bool(traceparent)


async def test_a_stream_without_its_end_is_one_that_broke_off(tmp_path: Path) -> None:
    async with client(tmp_path, parts(b'data: {"n": 1}\n\n')) as http:
        events = http.events("/stream", {})
        assert await anext(events) == {"n": 1}
        with pytest.raises(ServerGoneError):
            await anext(events)


async def test_a_server_that_is_not_there_is_gone(tmp_path: Path) -> None:
    http = HttpClient(Address("http://server", tmp_path / "nothing"))
    for asking in (http.post("/"), http.get("/"), collect(http)):
        with pytest.raises(ServerGoneError):
            await asking
    assert not await http.answers("/")
    await http.close()


async def test_a_server_that_was_given_up_is_gone_for_whoever_still_asks_it(tmp_path: Path) -> None:
    async with client(tmp_path, plain("200 OK")) as http:
        await http.close()
        for asking in (http.post("/"), http.get("/"), collect(http)):
            with pytest.raises(ServerGoneError, match="closed"):
                await asking
        assert not await http.answers("/")


@pytest.mark.parametrize("ask", [lambda http: http.post("/"), lambda http: http.get("/"), collect])
async def test_closing_ends_what_is_being_asked(
    tmp_path: Path, ask: Callable[[HttpClient], Awaitable[object]]
) -> None:
    asked, over = asyncio.Event(), asyncio.Event()

    async def silent(_: asyncio.StreamWriter) -> None:
        asked.set()
        await over.wait()

    async with client(tmp_path, silent) as http:
        asking = asyncio.ensure_future(ask(http))
        await asked.wait()
        await http.close()
        with pytest.raises(ServerGoneError):
            await asking
        over.set()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "too long", "code": 400}}', "too long"),
        (b'{"error": "no such thing"}', "no such thing"),
        (b'{"detail": "x"}', '{"detail": "x"}'),
        (b"<html>", "<html>"),
        (b"", ""),
    ],
)
async def test_a_refusal_says_why(tmp_path: Path, body: bytes, message: str) -> None:
    async with client(tmp_path, plain("400 Bad Request", body)) as http:
        for asking in (lambda: http.post("/"), lambda: http.get("/"), lambda: collect(http)):
            with pytest.raises(ServerRefusedError) as refused:
                await asking()
            assert (refused.value.status, refused.value.message) == (400, message)
        assert not await http.answers("/")


async def test_an_answer_may_be_empty(tmp_path: Path) -> None:
    async with client(tmp_path, plain("200 OK")) as http:
        assert await http.post("/") is None
        assert await http.answers("/")


async def test_closing_the_events_closes_the_connection(tmp_path: Path) -> None:
    closed = asyncio.Event()

    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + b'data: {"n": 1}\n\n')
        await writer.drain()
        while not writer.transport.is_closing():
            writer.write(b": on and on\n\n")
            await asyncio.sleep(0)
        closed.set()

    async with client(tmp_path, endless) as http:
        events: Any = http.events("/stream", {})
        assert await anext(events) == {"n": 1}
        await events.aclose()
        await closed.wait()


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Address("http://server", api_key="secret"))
