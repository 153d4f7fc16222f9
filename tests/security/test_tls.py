"""TLS with a real certificate, and nothing beyond this machine without it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from agentjet.agents import trainable
from agentjet.client import AsyncSwarmClient
from ajet_core.errors import ConfigError, ServerUnreachableError
from ajet_installation.settings import Settings
from ajet_server.serve import serve
from ajet_server.workers.rendezvous import SUPPORTED
from tests.security.raw import head, raw
from tests.support.certificates import Certificates, make_certificates
from tests.support.gateway_processes import SECRET, gateway_process, unused_port
from tests.support.scripted_server import ServerProcess, server_process

pytestmark = pytest.mark.processes

TOKEN = "control-token-of-the-tls-test"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextlib.asynccontextmanager
async def tls_server(tmp_path: Path, made: Certificates) -> AsyncIterator[ServerProcess]:
    async with server_process(
        tmp_path / "run",
        AJET_SERVER__CONTROL_TOKEN=TOKEN,
        AJET_SERVER__TLS_CERT=str(made.cert),
        AJET_SERVER__TLS_KEY=str(made.key),
    ) as server:
        yield server


async def test_a_client_that_knows_the_authority_is_served(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with tls_server(tmp_path, certificates) as server:
        assert server.url.startswith("https://127.0.0.1:")
        async with AsyncSwarmClient(server.url, TOKEN) as client:
            assert (await client.status()).state == "OFFLINE"


async def test_a_client_that_does_not_know_the_authority_sends_nothing(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with tls_server(tmp_path, certificates) as server:
        async with AsyncSwarmClient(server.url, TOKEN, retries=0) as client:
            with pytest.raises(ServerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.status()


async def test_a_certificate_of_another_host_is_refused(
    tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    async with tls_server(tmp_path, certificates) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with AsyncSwarmClient(url, TOKEN, retries=0) as client:
            with pytest.raises(ServerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.status()


async def test_the_url_of_a_grant_is_the_one_that_is_served(
    tmp_path: Path,
    certificates: Certificates,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    context = ssl.create_default_context(cafile=certificates.authority)
    model = {"path": str(model_dir), "renderer": "qwen3"}
    config = {
        "model": model,
        **{kind: {"name": "scripted"} for kind in ("engine", "trainer")},
    }
    async with server_process(
        tmp_path / "run",
        AJET_SERVER__CONTROL_TOKEN=TOKEN,
        AJET_SERVER__TLS_CERT=str(certificates.cert),
        AJET_SERVER__TLS_KEY=str(certificates.key),
        AJET_SERVER__MODEL_ROOTS=f'["{model_dir.parent}"]',
    ) as server:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(
            base_url=server.url, verify=context, headers=headers, timeout=60
        ) as http:
            (await http.put("/v1/run", json=config)).raise_for_status()
            (await http.post("/v1/run/start", json={"wait_seconds": 60})).raise_for_status()
            grant = (await http.post("/v1/episodes", json={"task_id": "a"})).json()
            assert grant["base_url"] == f"{server.url}/v1"
        async with AsyncOpenAI(base_url=grant["base_url"], api_key=grant["api_key"]) as openai:
            answer = await openai.chat.completions.create(
                model=grant["model"], messages=[{"role": "user", "content": "hello"}]
            )
            assert answer.choices[0].message.role == "assistant"

        async def solve(task: str) -> float:
            ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": task}]}
            async with AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="x") as openai:
                await openai.chat.completions.create(**ask)
            return 1.0

        # The calls of programs that are trained take the same way.
        async with AsyncSwarmClient(server.url, TOKEN) as client:
            assert await trainable(solve, client)("b") == 1.0


@pytest.mark.parametrize(
    ("version", "spoken"),
    [
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_versions_are_not_spoken(
    tmp_path: Path, certificates: Certificates, version: ssl.TLSVersion, spoken: bool
) -> None:
    context = ssl.create_default_context(cafile=certificates.authority)
    context.minimum_version = context.maximum_version = version
    if not spoken:
        # So that it is not this machine's own policy that refuses.
        context.set_ciphers("ALL:@SECLEVEL=0")
    async with tls_server(tmp_path, certificates) as server:
        async with httpx2.AsyncClient(verify=context) as http:
            request = http.get(f"{server.url}/v1/protocol")
            if spoken:
                assert (await request).status_code == 200
            else:
                with pytest.raises(httpx2.ConnectError):
                    await request


async def test_a_token_sent_in_the_clear_is_not_answered_and_the_server_goes_on(
    tmp_path: Path, certificates: Certificates
) -> None:
    async with tls_server(tmp_path, certificates) as server:
        async with raw(server.url) as connection:
            headers = {"authorization": f"Bearer {TOKEN}"}
            await connection.send(head("GET", "/v1/status", headers))
            assert b"HTTP/1.1 200" not in await connection.rest()
        context = ssl.create_default_context(cafile=certificates.authority)
        async with httpx2.AsyncClient(verify=context) as http:
            assert (await http.get(f"{server.url}/v1/protocol")).status_code == 200


@pytest.mark.parametrize("broken", ["cert", "key", "both swapped"])
def test_files_that_are_no_certificate_are_named(
    tmp_path: Path, certificates: Certificates, broken: str
) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    cert, key = {
        "cert": (garbage, certificates.key),
        "key": (certificates.cert, garbage),
        "both swapped": (certificates.key, certificates.cert),
    }[broken]
    server = {"run_dir": tmp_path / "run", "port": 0, "tls_cert": cert, "tls_key": key}
    with pytest.raises(ConfigError, match=r"PEM") as caught:
        serve(Settings(server=server))
    assert "BEGIN" not in str(caught.value)


def test_a_key_that_belongs_to_another_certificate_is_refused(
    tmp_path: Path, certificates: Certificates
) -> None:
    other = certificates.authority.with_name("ca-key.pem")
    server = {"run_dir": tmp_path, "port": 0, "tls_cert": certificates.cert, "tls_key": other}
    with pytest.raises(ConfigError, match="belong together"):
        serve(Settings(server=server))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gpu.example", "127.0.0.1.nip.io"])
def test_other_addresses_than_loopback_need_tls_or_an_explicit_word(
    tmp_path: Path, certificates: Certificates, host: str
) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        Settings(server={"host": host})
    tls = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    assert Settings(server={"host": host, **tls}).server.host == host
    assert Settings(server={"host": host, "insecure": True}).server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_neither(host: str) -> None:
    assert Settings(server={"host": host}).server.host == host


@pytest.mark.skipif(not SUPPORTED, reason="gateways need a server on Linux")
async def test_a_gateway_trusts_a_server_by_its_certificate(
    tmp_path: Path, certificates: Certificates
) -> None:
    link = f"127.0.0.1:{unused_port()}"
    knows = {"SSL_CERT_FILE": str(certificates.authority), "AJET_GATEWAY__TLS": "true"}
    async with server_process(
        tmp_path / "run",
        AJET_SERVER__CONTROL_TOKEN=TOKEN,
        AJET_SERVER__TLS_CERT=str(certificates.cert),
        AJET_SERVER__TLS_KEY=str(certificates.key),
        AJET_SERVER__GATEWAYS_LISTEN=link,
        AJET_SERVER__GATEWAY_TOKEN=SECRET,
        AJET_SERVER__PUBLIC_URL="https://gateways.example",
    ):
        async with gateway_process(link, **knows) as gateway, httpx2.AsyncClient() as http:
            while (await http.get(f"{gateway.url}/v1/protocol")).status_code != 200:
                await asyncio.sleep(0.01)
        for env, said in (
            ({**knows, "SSL_CERT_FILE": ""}, "CERTIFICATE_VERIFY_FAILED"),
            ({}, "cannot connect to the server"),
        ):
            async with gateway_process(link, **env) as stranger, httpx2.AsyncClient() as http:
                while said.encode() not in stranger.output:
                    await asyncio.sleep(0.01)
                assert (await http.get(f"{stranger.url}/v1/protocol")).status_code == 503
