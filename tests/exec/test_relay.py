"""The relay from a sandbox to a server with TLS, which begins outside the sandbox."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ajet_exec.endpoint import port_of, relay
from tests.support.certificates import Certificates, make_certificates

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def relayed(made: Certificates, host: str) -> AsyncIterator[int]:
    """The port of a relay to a server that echoes one line over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.cert, made.key)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"echo " + await reader.readline())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as far:
        serve = relay(f"https://{host}:{far.sockets[0].getsockname()[1]}/v1")

        async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except ssl.SSLError:
                writer.write(b"refused")
            writer.close()

        async with await asyncio.start_server(joined, "127.0.0.1", 0) as near:
            yield near.sockets[0].getsockname()[1]


async def said(port: int) -> bytes:
    """What a program reads after it has sent a line without TLS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_program_speaks_without_tls_to_a_server_with_it(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with relayed(certificates, "127.0.0.1") as port:
        assert await said(port) == b"echo hello\n"


async def test_a_server_that_cannot_be_trusted_gets_nothing(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with relayed(certificates, "127.0.0.1") as port:
        assert await said(port) == b"refused"
    # The certificate is not for this name.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with relayed(certificates, "localhost") as port:
        assert await said(port) == b"refused"


def test_the_port_of_a_url_is_that_of_its_scheme() -> None:
    urls = ("https://a/v1", "http://a/v1", "https://a:8/v1")
    assert [port_of(url) for url in urls] == [443, 80, 8]
