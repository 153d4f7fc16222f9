"""Slow senders, floods of headers and connections: attacks without any token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from ajet_server.http.connection import MAX_HEAD_BYTES, MAX_HEADERS, MAX_URL_BYTES
from ajet_testing.servers import CLIENT, Running, ServerFactory, key
from tests.security.raw import head, raw
from tests.support.scripted_server import server_process

pytestmark = pytest.mark.processes

CLAIM = head("POST", "/v1/episodes", {**CLIENT, "content-length": "1000"})
STATUS = head("GET", "/v1/status", CLIENT)


@pytest.fixture
def quick(servers: ServerFactory) -> contextlib.AbstractAsyncContextManager[Running]:
    """A server that gives clients little time."""
    return servers.running(request_seconds=1.0)


async def serves(server: Running) -> bool:
    """Whether the server goes on answering."""
    return (await server.http.get("/v1/status", headers=CLIENT)).status_code == 200


# --- Slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"", b"\r\n", b"GET /v1/status HT", STATUS[:-2], CLAIM, CLAIM + b"{"]
)
async def test_a_request_that_does_not_come_on_is_ended(
    quick: contextlib.AbstractAsyncContextManager[Running],
    sent: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with quick as server, raw(server.url) as connection:
        await connection.send(sent)
        answer = await connection.rest()
        if sent.strip():
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"request_timeout" in answer
            assert b"connection: close" in answer
        assert await serves(server)
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_a_request_that_trickles_is_ended_however_steadily_it_does(
    quick: contextlib.AbstractAsyncContextManager[Running],
) -> None:
    async with quick as server, raw(server.url) as connection:
        ended = asyncio.create_task(connection.rest())
        await connection.send(b"GET /v1/status HTTP/1.1\r\n")
        while not ended.done():
            await connection.send(b"x: y\r\n")
            await asyncio.wait([ended], timeout=0.02)
        assert (await ended).startswith(b"HTTP/1.1 408 ")


async def test_the_body_of_a_model_call_that_trickles_is_ended(
    quick: contextlib.AbstractAsyncContextManager[Running], caplog: pytest.LogCaptureFixture
) -> None:
    async with quick as server:
        await server.roll()
        grant = await server.claim()
        async with raw(server.url) as connection:
            headers = {**key(grant), "content-length": "1000000"}
            await connection.send(head("POST", "/v1/chat/completions", headers))
            ended = asyncio.create_task(connection.rest())
            while not ended.done():
                await connection.send(b" ")
                await asyncio.wait([ended], timeout=0.02)
            answer = await ended
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"x-should-retry" in answer
        assert (await server.chat(grant)).status_code == 200
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_a_second_request_has_its_own_time_and_its_own_limit(
    quick: contextlib.AbstractAsyncContextManager[Running],
) -> None:
    async with quick as server, raw(server.url) as connection:
        await connection.send(STATUS)
        assert (await connection.answer()).startswith(b"HTTP/1.1 200 ")
        await connection.send(b"GET /v1/sta")
        assert b"HTTP/1.1 408 " in await connection.rest()


async def test_a_long_poll_is_not_taken_for_a_slow_sender(
    quick: contextlib.AbstractAsyncContextManager[Running],
) -> None:
    async with quick as server:
        await server.roll(batch={"tasks": 1, "episodes_per_task": 2, "full_by": "episodes"})
        for _ in range(2):
            await server.claim()
        body = {"task_id": "a", "wait_seconds": 2.0}
        answer = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "not_rolling"


async def test_a_reader_that_stops_reading_is_cut_off(
    quick: contextlib.AbstractAsyncContextManager[Running],
) -> None:
    async with quick as server, raw(server.url) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(head("GET", "/v1/events", CLIENT))
        while not server.service.tenants._streams:
            await asyncio.sleep(0)
        while server.service.tenants._streams:
            server.service.events.emit("run", {"what": "x" * 65536})
            await asyncio.sleep(0.01)
        assert await serves(server)


# --- Large ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        head("GET", "/v1/status", CLIENT, *(f"x-{n}: y" for n in range(MAX_HEADERS))),
        head("GET", "/v1/status", CLIENT, "x: " + "y" * MAX_HEAD_BYTES),
        head("GET", "/v1/status?" + "q" * MAX_URL_BYTES, CLIENT),
    ],
    ids=["many headers", "a long header", "a long URL"],
)
async def test_a_head_that_is_too_large_is_a_431(server: Running, request_: bytes) -> None:
    async with raw(server.url) as connection:
        await connection.send(request_)
        answer = await connection.rest()
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"head_too_large" in answer
    assert await serves(server)


@pytest.mark.parametrize("piece", [b"x: y\r\n" * 1000, b"y" * 8192], ids=["headers", "one value"])
async def test_a_head_without_an_end_is_not_kept(server: Running, piece: bytes) -> None:
    sent = 0
    async with raw(server.url) as connection:
        ended = asyncio.create_task(connection.rest())
        await connection.send(b"GET /v1/status HTTP/1.1\r\nx: ")
        while not ended.done():
            await connection.send(piece)
            sent += len(piece)
            await asyncio.sleep(0)
            assert sent < 64 * MAX_HEAD_BYTES
        assert (await ended).startswith(b"HTTP/1.1 431 ")
    assert await serves(server)


@pytest.mark.parametrize(
    "piece", [b"x: y\r\n" * 1000, b"y" * 8192], ids=["trailers", "one trailer"]
)
async def test_fields_after_a_body_are_neither_headers_nor_without_end(
    server: Running, piece: bytes
) -> None:
    chunked = {**CLIENT, "transfer-encoding": "chunked"}
    async with raw(server.url) as connection:
        ended = asyncio.create_task(connection.rest())
        await connection.send(head("POST", "/v1/episodes", chunked) + b"1\r\n{\r\n0\r\nz: ")
        sent = 0
        while not ended.done():
            await connection.send(piece)
            sent += len(piece)
            await asyncio.sleep(0)
            assert sent < 64 * MAX_HEAD_BYTES
        assert (await ended).startswith(b"HTTP/1.1 431 ")
    assert await serves(server)


async def test_a_token_in_a_trailer_is_none(server: Running) -> None:
    token = CLIENT["authorization"]
    async with raw(server.url) as connection:
        request = head(
            "POST", "/v1/episodes", {"transfer-encoding": "chunked"}, "connection: close"
        )
        await connection.send(request + f"0\r\nauthorization: {token}\r\n\r\n".encode())
        assert (await connection.rest()).startswith(b"HTTP/1.1 401 ")


async def test_a_body_of_a_byte_a_chunk_is_read(server: Running) -> None:
    body = b'{"task_id": "a"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    async with raw(server.url) as connection:
        chunked = {**CLIENT, "transfer-encoding": "chunked", "connection": "close"}
        request = head("POST", "/v1/episodes", chunked)
        await connection.send(request)
        for start in range(0, len(chunks), 7):
            await connection.send(chunks[start : start + 7])
        assert b"not_rolling" in await connection.rest()


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head("POST", "/v1/episodes", CLIENT, "content-length: 5", "content-length: 6"),
        head("POST", "/v1/episodes", CLIENT, "content-length: -1"),
        head("POST", "/v1/episodes", CLIENT, "content-length: 1", "transfer-encoding: chunked"),
        head("POST", "/v1/episodes", CLIENT, "transfer-encoding: chunked") + b"zz\r\n",
        head("GET", "/v1/status", CLIENT, "x: a\x00b"),
        head("GET", "/v1/status", CLIENT, "upgrade: websocket", "connection: upgrade"),
    ],
)
async def test_what_is_no_http_is_refused_and_the_server_goes_on(
    server: Running, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw(server.url) as connection:
        await connection.send(request_)
        connection.writer.write_eof()
        async with asyncio.timeout(30):
            answer = await connection.reader.read(65536)
    assert not answer.startswith(b"HTTP/1.1 5")
    assert await serves(server)
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


# --- Many -----------------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_are_told_and_closed(servers: ServerFactory) -> None:
    async with servers.running(max_connections=2) as server, contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(raw(server.url)) for _ in range(2)]
        for connection in held:
            await connection.send(STATUS)
            assert (await connection.answer()).startswith(b"HTTP/1.1 200 ")
        async with raw(server.url) as third:
            await third.send(STATUS)
            answer = await third.rest()
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in answer
        held[0].writer.close()
        await held[0].writer.wait_closed()
        answer = b""
        while not answer.startswith(b"HTTP/1.1 200 "):
            async with raw(server.url) as again:
                await again.send(STATUS)
                answer = await again.answer()


@pytest.mark.parametrize("sent", [b"", b"GET /v1/sta"])
async def test_who_only_holds_connections_keeps_nobody_out(
    servers: ServerFactory, sent: bytes
) -> None:
    async with servers.running(max_connections=2) as server, contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(raw(server.url)) for _ in range(2)]
        for connection in held:
            await connection.send(sent)
        for _ in range(3):
            async with raw(server.url) as other:
                await other.send(STATUS)
                assert (await other.answer()).startswith(b"HTTP/1.1 200 ")


async def test_bodies_in_flight_are_limited_together(servers: ServerFactory) -> None:
    async with servers.running(max_bytes_in_flight=4096) as server:
        async with raw(server.url) as first:
            await first.send(head("POST", "/v1/episodes", {**CLIENT, "content-length": "4000"}))
            await first.send(b" " * 3500)
            while True:
                answer = await server.http.post("/v1/episodes", headers=CLIENT, content=b" " * 1500)
                if answer.status_code == 429:
                    break
            assert answer.headers["retry-after"] == "1"
            assert "max_bytes_in_flight" in answer.text
        while answer.status_code == 429:
            answer = await server.http.post("/v1/episodes", headers=CLIENT, content=b" " * 1500)
        assert answer.status_code == 400


async def test_readers_of_events_are_limited(servers: ServerFactory) -> None:
    async with servers.running(max_event_streams=1) as server:
        async with server.http.stream("GET", "/v1/events", headers=CLIENT) as first:
            assert first.status_code == 200
            answer = await server.http.get("/v1/events", headers=CLIENT)
            assert answer.status_code == 429
            assert "max_event_streams" in answer.text


@pytest.mark.processes
async def test_strangers_cannot_fill_the_log(tmp_path: Path) -> None:
    async with server_process(tmp_path / "run") as server:
        for request in (b"no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\nupgrade: x\r\n\r\n", STATUS):
            for _ in range(10):
                async with raw(server.url) as connection:
                    await connection.send(request)
                    connection.writer.write_eof()
                    await connection.rest()
        before_the_end = len(server.output.splitlines())
    assert before_the_end < 10, server.output.decode()
    assert b"listening on" in server.output


@pytest.mark.parametrize(
    "host", ["", "[", "a b", "x:99999999", "x:y", "\xff", "a/b", "a@b", "[::1", "x" * 10_000, "%00"]
)
async def test_a_host_that_is_none_is_no_server_error(
    server: Running, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    await server.roll()
    body = b'{"task_id": "a"}'
    for path, sent in (("/v1/episodes", body), ("/v1/status", b""), ("/v1/nowhere", b"")):
        method = "POST" if sent else "GET"
        length = {"content-length": str(len(sent)), "connection": "close"}
        request = head(method, path, {**CLIENT, **length}).replace(
            b"host: x", f"host: {host}".encode("latin-1")
        )
        async with raw(server.url) as connection:
            await connection.send(request + sent)
            answer = await connection.rest()
        assert answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), answer
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
