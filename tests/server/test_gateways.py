"""Gateways on other machines: any balancer in front of them, and each can be killed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ajet_core.errors import AuthError, VersionError, error_from_payload
from ajet_installation.settings import ServerSettings, StoreSettings
from ajet_server.processes.machines import MachineListener, OtherMachine
from ajet_server.store.chosen_store import make_store
from ajet_server.workers import frames
from ajet_server.workers.rendezvous import SUPPORTED
from ajet_testing.plugins import scripted_plugins
from tests.support.gateway_processes import (
    SECRET,
    GatewayOfTests,
    balancer,
    gateway_process,
    unused_port,
)
from tests.support.scripted_server import ServerProcess
from tests.support.served_processes import call, kill, serving, start_run, until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not SUPPORTED, reason="needs Linux"),
]


@dataclass(slots=True)
class Swarm:
    """A server, its gateways, and clients of the server and of the balancer."""

    server: ServerProcess
    gateways: list[GatewayOfTests]
    http: httpx2.AsyncClient
    agents: httpx2.AsyncClient

    async def claim(self, **wanted: Any) -> dict[str, Any]:
        return await call(self.http, "POST", "/v1/episodes", {"task_id": "a", **wanted})

    async def chat(self, grant: dict[str, Any], *texts: str) -> str:
        """Make a call over a connection of its own, so the balancer chooses anew."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        answer = await self.agents.post(
            "/v1/chat/completions",
            json={"messages": messages},
            headers={"authorization": f"Bearer {grant['api_key']}", "connection": "close"},
        )
        assert answer.status_code == 200, answer.text
        said: str = answer.json()["choices"][0]["message"]["content"]
        return said

    async def patient(self, grant: dict[str, Any], *texts: str) -> str:
        """As `chat`, repeated as SDKs do."""
        while True:
            try:
                return await self.chat(grant, *texts)
            except httpx2.TransportError:
                pass
            except AssertionError as error:
                if "worker_died" not in str(error):
                    raise
            await asyncio.sleep(0.02)

    async def calls(self, grant: dict[str, Any]) -> list[dict[str, Any]]:
        timeline = await call(self.http, "GET", f"/v1/timelines/{grant['episode_id']}")
        calls: list[dict[str, Any]] = timeline["calls"]
        return calls


@asynccontextmanager
async def swarm(run_dir: Path, model_dir: Path, count: int = 2, **env: str) -> AsyncIterator[Swarm]:
    """A server with some gateways behind a balancer, and a run."""
    link, port = unused_port(), unused_port()
    settings = {
        "AJET_SERVER__GATEWAYS_LISTEN": f"127.0.0.1:{link}",
        "AJET_SERVER__GATEWAY_TOKEN": SECRET,
        "AJET_SERVER__PUBLIC_URL": f"http://127.0.0.1:{port}",
        **env,
    }
    async with serving(run_dir, model_dir, **settings) as (server, http):
        gateways = [gateway_process(f"127.0.0.1:{link}") for _ in range(count)]
        async with connected(gateways) as running:
            await start_run(http, model_dir)
            while (await call(http, "GET", "/v1/status"))["counters"]["gateway_processes"] < count:
                await asyncio.sleep(0.01)
            async with (
                balancer([gateway.port for gateway in running], port) as url,
                httpx2.AsyncClient(base_url=url, timeout=60) as agents,
            ):
                yield Swarm(server, running, http, agents)


@asynccontextmanager
async def connected(gateways: list[Any]) -> AsyncIterator[list[GatewayOfTests]]:
    if not gateways:
        yield []
        return
    async with gateways[0] as first, connected(gateways[1:]) as rest:
        yield [first, *rest]


@pytest.mark.nightly
async def test_a_balancer_may_choose_any_gateway(model_dir: Path, tmp_path: Path) -> None:
    async with swarm(tmp_path / "run", model_dir) as it:
        grants = [await it.claim() for _ in range(2)]
        assert grants[0]["base_url"] == f"{it.agents.base_url}".rstrip("/") + "/v1"
        for reward, grant in enumerate(grants):
            said = await it.chat(grant, "hello")
            more = await it.chat(grant, "hello", said, "and now?")
            await it.chat(grant, "hello", said, "and now?", more, "and then?")
            calls = await it.calls(grant)
            # One conversation, whichever gateway was chosen.
            assert [c["parent_call_id"] for c in calls] == [
                None,
                calls[0]["call_id"],
                calls[1]["call_id"],
            ]
            end = f"/v1/episodes/{grant['episode_id']}/end"
            await call(it.http, "POST", end, {"reward": reward})
            for _ in range(2):
                over = await it.agents.post(
                    "/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": "hello"}]},
                    headers={
                        "authorization": f"Bearer {grant['api_key']}",
                        "connection": "close",
                    },
                )
                assert over.status_code == 410
        status = await until(it.http, step=1, state="ROLLING")
        assert status["counters"]["calls"] == 6
        # The server answers no calls itself.
        refused = await it.http.post("/v1/chat/completions", json={})
        assert refused.status_code == 404
        assert str(it.agents.base_url).rstrip("/") in refused.json()["error"]["message"]
        # A gateway has none of the client's routes.
        assert (await it.agents.post("/v1/episodes", json={})).status_code == 404
        assert (await it.agents.get("/v1/protocol")).status_code == 200


@pytest.mark.nightly
async def test_streams_and_keys_in_paths_are_forwarded(model_dir: Path, tmp_path: Path) -> None:
    async with swarm(tmp_path / "run", model_dir) as it:
        grant = await it.claim()
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        for _ in range(2):
            async with it.agents.stream(
                "POST",
                f"/e/{grant['api_key']}/v1/chat/completions",
                json=body,
                headers={"connection": "close"},
            ) as answer:
                lines = [line async for line in answer.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
        assert len(await it.calls(grant)) == 2
        for _ in range(2):
            unknown = await it.agents.post(
                "/v1/chat/completions",
                json=body,
                headers={
                    "authorization": f"Bearer ajet-ep-{grant['episode_id']}.wrong",
                    "connection": "close",
                },
            )
            assert unknown.status_code == 401


@pytest.mark.nightly
async def test_limits_of_a_claim_count_at_all_gateways(model_dir: Path, tmp_path: Path) -> None:
    async with swarm(tmp_path / "run", model_dir) as it:
        grant = await it.claim(max_calls=2)
        said = await it.chat(grant, "hello")
        await it.chat(grant, "hello", said, "and now?")
        for _ in range(2):
            with pytest.raises(AssertionError, match="call_limit"):
                await it.chat(grant, "once more")
        # Whichever of them has the episode, the one that is left counts what was recorded.
        for gateway in it.gateways:
            await it.patient(await it.claim(kind="eval"), "hello")
            if gateway is it.gateways[-1]:
                break
            gateway.process.terminate()
            await gateway.process.wait()
            with pytest.raises(AssertionError, match="call_limit"):
                await it.chat(grant, "once more")
        end = f"/v1/episodes/{grant['episode_id']}/end"
        ended = await call(it.http, "POST", end, {"reward": 1.0})
        assert (ended["calls"], ended["limit"]) == (2, "call_limit")


@pytest.fixture
def shared_store() -> Iterator[StoreSettings]:
    """A store in PostgreSQL, on a server of its own."""
    pytest.importorskip("ajet_store_postgres")
    path = Path(__file__).parents[2] / "plugins/store_postgres/tests/postgres_server.py"
    spec = importlib.util.spec_from_file_location("postgres_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.programs() is None and not os.environ.get("CI"):
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with module.PostgresServer() as postgres:
        postgres.start("fsync=off")
        yield StoreSettings(name="postgres", settings={"dsn": postgres.dsn})


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
async def test_a_gateway_ends_under_load_and_nothing_is_lost(
    model_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    await end_a_gateway(model_dir, tmp_path / "run", number, StoreSettings())


async def test_a_gateway_is_killed_and_the_shared_store_has_everything(
    model_dir: Path, tmp_path: Path, shared_store: StoreSettings
) -> None:
    await end_a_gateway(model_dir, tmp_path / "run", signal.SIGKILL, shared_store)


async def end_a_gateway(
    model_dir: Path, run_dir: Path, number: signal.Signals, stored: StoreSettings
) -> None:
    """End one of two gateways under load, and compare the store with what agents were answered."""
    turns = 12
    env = {"AJET_STORE": json.dumps(stored.model_dump())}
    async with swarm(run_dir, model_dir, 2, **env) as it:
        grants = [await it.claim(kind="eval") for _ in range(8)]
        halfway = asyncio.Event()
        made = 0

        async def agent(grant: dict[str, Any]) -> list[str]:
            nonlocal made
            texts = ["hello"]
            for turn in range(turns):
                texts += [await it.patient(grant, *texts), f"turn {turn}"]
                made += 1
                if made == 4 * turns:
                    halfway.set()
            return texts

        async def strike() -> None:
            await halfway.wait()
            it.gateways[0].process.send_signal(number)
            await it.gateways[0].process.wait()

        conversations, _ = await asyncio.gather(
            asyncio.gather(*(agent(grant) for grant in grants)), strike()
        )
        if number == signal.SIGTERM:
            assert it.gateways[0].process.returncode == 0
        status = await call(it.http, "GET", "/v1/status")
        assert status["counters"]["gateway_processes"] == 1
    for gateway in it.gateways:
        assert b"Exception" not in gateway.output, gateway.output.decode()
    store = make_store(stored, scripted_plugins(), run_dir)
    await store.open(read_only=True)
    by_episode = await store.calls([grant["episode_id"] for grant in grants])
    await store.close()
    for grant, texts in zip(grants, conversations, strict=True):
        calls = by_episode[grant["episode_id"]]
        answers = {call.answer.content for call in calls if call.answer is not None}
        # What was answered is recorded. A call may have been recorded before its answer was lost.
        assert set(texts[1::2]) <= answers
        assert len({call.index for call in calls}) == len(calls)
        if number == signal.SIGTERM:
            assert len(calls) == turns


async def test_gateways_outlive_their_server(model_dir: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    async with swarm(run_dir, model_dir) as it:
        grant = await it.claim()
        said = await it.chat(grant, "hello")
        env = await environment(it.server)
        await kill(it.server)
        waiting = asyncio.create_task(it.chat(grant, "hello", said, "and now?"))
        async with serving(run_dir, model_dir, **env) as (_, http):
            # The call waited for the new server.
            await waiting
            timeline = await call(http, "GET", f"/v1/timelines/{grant['episode_id']}")
            calls = timeline["calls"]
            assert [c["parent_call_id"] for c in calls] == [None, calls[0]["call_id"]]
            end = f"/v1/episodes/{grant['episode_id']}/end"
            await call(http, "POST", end, {"reward": 1.0})


async def environment(server: ServerProcess) -> dict[str, str]:
    """The settings of a server."""
    read = Path(f"/proc/{server.process.pid}/environ").read_text().split("\0")
    pairs = (line.partition("=") for line in read)
    return {name: value for name, _, value in pairs if name.startswith("AJET_SERVER__GATEWAY")} | {
        name: value
        for name, _, value in (line.partition("=") for line in read)
        if name == "AJET_SERVER__PUBLIC_URL"
    }


async def test_a_gateway_without_the_tokenizer_of_the_server_says_so(
    model_dir: Path, tmp_path: Path
) -> None:
    async with swarm(tmp_path / "run", model_dir, count=1) as it:
        grant = await it.claim()
        said = await it.chat(grant, "hello")
        # As on a machine with another model at the same path, after the run has begun.
        with (model_dir / "chat_template.jinja").open("a") as template:
            template.write("{# another #}")
        link = (await environment(it.server))["AJET_SERVER__GATEWAYS_LISTEN"]
        async with gateway_process(link) as other, httpx2.AsyncClient() as http:
            while b"cannot answer calls" not in other.output:
                await asyncio.sleep(0.01)
            assert b"is not that of the server" in other.output
            assert (await http.get(f"{other.url}/v1/protocol")).status_code == 503
            # It may not share the URL of another gateway either.
            async with gateway_process(link, AJET_GATEWAY__URL=it.gateways[0].url) as double:
                while b"give each its own" not in double.output:
                    await asyncio.sleep(0.01)
            fresh = await it.claim()
            refused = await http.post(
                f"{other.url}/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "hello"}]},
                headers={"authorization": f"Bearer {fresh['api_key']}"},
            )
            assert refused.status_code == 503
            assert "is not that of the server" in refused.text
            assert refused.headers["x-should-retry"] == "true"
            # It has not taken the episode.
            await it.chat(fresh, "hello")
        await it.chat(grant, "hello", said, "and now?")


async def test_no_gateway_is_a_finding(model_dir: Path, tmp_path: Path) -> None:
    async with swarm(tmp_path / "run", model_dir, count=0) as it:
        while True:
            findings = (await call(it.http, "GET", "/v1/status"))["findings"]
            missing = [f["message"] for f in findings if f["code"] == "gateway_missing"]
            if missing:
                break
            await asyncio.sleep(0.1)
        assert missing[0].startswith("no gateway is connected")


def settings_of(port: int, token: str = SECRET, **more: Any) -> ServerSettings:
    return ServerSettings(
        gateways_listen=f"127.0.0.1:{port}",
        gateway_token=token,
        public_url="http://127.0.0.1:1",
        **more,
    )


async def test_another_secret_or_release_is_refused() -> None:
    port = unused_port()

    async def serve(*_: object) -> None:
        raise AssertionError("it was not refused")

    listener = MachineListener(settings_of(port), serve, lambda: None)
    async with listener.listening():
        with pytest.raises(AuthError, match=r"another server\.gateway_token"):
            await OtherMachine(f"127.0.0.1:{port}", "another-secret", None).server()
        reach = OtherMachine(f"127.0.0.1:{port}", SECRET, None)
        with pytest.raises(ConnectionError, match="does not accept gateways"):
            # No engine answers calls.
            await reach.engine("", 1)
        # What is no greeting is not answered.
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\x01", b"\xff\xff\xff\xff"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frames.pack([SECRET, "0.0.1 little", "link", 0]))
        refusal = [frame async for frame in frames.read(reader)]
        error = error_from_payload(refusal[0][0])
        assert isinstance(error, VersionError)
        assert "install the same version" in error.message
        writer.close()


def test_what_gateways_need() -> None:
    for missing, said in (
        ({"gateway_token": None}, "requires gateway_token"),
        ({"public_url": None}, "requires public_url"),
        ({"processes": 2}, "exclude each other"),
        ({"gateways_listen": "0.0.0.0:1"}, "gateways_listen '0.0.0.0' is reachable"),
    ):
        given = {
            "gateways_listen": "127.0.0.1:1",
            "gateway_token": SECRET,
            "public_url": "http://127.0.0.1:2",
            **missing,
        }
        with pytest.raises(ValueError, match=said):
            ServerSettings(**given)
