"""The proxy of ``--allow-host``: what it connects to, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from ajet_exec import endpoint
from ajet_exec.endpoint import egress_proxy, target_of

pytestmark = pytest.mark.processes

NAMES = {
    "allowed.test": ["93.184.216.34"],
    "internal.test": ["10.1.2.3"],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError(f"{host} is unknown")
    return NAMES[host]


class Far:
    """A server that echoes, and that all addresses lead to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reached: list[tuple[str, int]] = []

    async def connected(
        self, addresses: Sequence[str], port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.reached.append((addresses[0], port))
        return await asyncio.open_connection("127.0.0.1", self.port)


@pytest.fixture
async def far(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Far]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"echo " + await reader.readline())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        far = Far(server.sockets[0].getsockname()[1])
        monkeypatch.setattr(endpoint, "_connected", far.connected)
        yield far


async def answer(hosts: Sequence[str], request: bytes) -> bytes:
    """What the proxy sends when a request is followed by a line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await proxy(reader, writer)
        writer.close()

    proxy = egress_proxy(hosts, resolve)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(request + b"\r\nheader: value\r\n\r\nword\n")
        # A proxy that refuses may reset the connection, because the line was not read.
        received = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                received += data
        writer.close()
        return received


@pytest.mark.parametrize(
    ("host", "target", "reached"),
    [
        ("allowed.test", "allowed.test:443", ("93.184.216.34", 443)),
        ("Allowed.Test:8443", "allowed.TEST:8443", ("93.184.216.34", 8443)),
        ("internal.test", "internal.test:443", ("10.1.2.3", 443)),
        # An address that was itself allowed, wherever it is.
        ("127.0.0.1:8000", "127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:8000", "[::1]:8000", ("::1", 8000)),
    ],
)
async def test_what_is_allowed_is_reached(
    far: Far, host: str, target: str, reached: tuple[str, int]
) -> None:
    said = await answer([host], f"CONNECT {target} HTTP/1.1".encode())
    assert said == b"HTTP/1.1 200 Connection established\r\n\r\necho word\n"
    assert far.reached == [reached]


@pytest.mark.parametrize(
    "request_line",
    [
        "CONNECT other.test:443 HTTP/1.1",
        "CONNECT sub.allowed.test:443 HTTP/1.1",
        "CONNECT allowed.test.other.test:443 HTTP/1.1",
        "CONNECT allowed.test:80 HTTP/1.1",
        "CONNECT allowed.test HTTP/1.1",
        "CONNECT allowed.test:99999 HTTP/1.1",
        "CONNECT user@allowed.test:443 HTTP/1.1",
        # Its address, which other hosts may have, too.
        "CONNECT 93.184.216.34:443 HTTP/1.1",
        "CONNECT 127.0.0.1:443 HTTP/1.1",
        "CONNECT 2130706433:443 HTTP/1.1",
        "CONNECT [::1]:443 HTTP/1.1",
        "CONNECT 169.254.169.254:80 HTTP/1.1",
        "GET http://allowed.test/ HTTP/1.1",
        "GET https://allowed.test/ HTTP/1.1",
        "GET allowed.test:443 HTTP/1.1",
        "CONNECT",
        "",
    ],
)
async def test_what_is_not_allowed_is_refused(far: Far, request_line: str) -> None:
    said = await answer(["allowed.test"], request_line.encode())
    assert said.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert far.reached == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "169.254.169.254",
        "100.100.100.200",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
    ],
)
async def test_a_name_that_leads_to_this_machine_or_to_metadata_is_refused(
    far: Far, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setitem(NAMES, "allowed.test", ["93.184.216.34", address])
    said = await answer(["allowed.test"], b"CONNECT allowed.test:443 HTTP/1.1")
    assert said.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert far.reached == []


async def test_a_name_is_resolved_once(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["93.184.216.34"] if len(asked) == 1 else ["127.0.0.1"]

    monkeypatch.setitem(globals(), "resolve", rebinding)
    await answer(["allowed.test"], b"CONNECT allowed.test:443 HTTP/1.1")
    assert asked == ["allowed.test"]
    assert far.reached == [("93.184.216.34", 443)]


async def test_a_host_that_is_unknown_or_does_not_answer_is_a_bad_gateway() -> None:
    for host in ("unknown.test:443", "127.0.0.1:1"):
        said = await answer([host], f"CONNECT {host} HTTP/1.1".encode())
        assert said.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")


@pytest.mark.parametrize("text", ["", "a b", "https://a", "a:b", "a:0", "::1", "a:70000", "*"])
def test_other_forms_are_no_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST or HOST:PORT"):
        target_of(text)
