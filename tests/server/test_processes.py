"""One server in several processes: each can be killed, and clients notice a pause at most."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ajet_installation.settings import ServerSettings, StoreSettings
from ajet_server.store.chosen_store import make_store
from ajet_testing.faults import HoldGate
from ajet_testing.plugins import scripted_plugins
from tests.page.test_page_routes import HOSTILE
from tests.support.processes import children, end, gateways, server_pid
from tests.support.scripted_server import ServerProcess
from tests.support.served_processes import (
    CONTROL,
    call,
    chat,
    kill,
    serving,
    start_run,
    until,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux"),
]


@asynccontextmanager
async def divided(
    run_dir: Path, model_dir: Path, **env: str
) -> AsyncIterator[tuple[ServerProcess, httpx2.AsyncClient]]:
    """A server with two gateway processes, and a run."""
    async with serving(run_dir, model_dir, AJET_SERVER__PROCESSES="2", **env) as (server, http):
        await start_run(http, model_dir)
        yield server, http


async def patient(http: httpx2.AsyncClient, grant: dict[str, Any], *texts: str) -> dict[str, Any]:
    """As `chat`, repeated as SDKs do when a connection breaks."""
    while True:
        try:
            return await chat(http, grant, *texts)
        except httpx2.TransportError:
            await asyncio.sleep(0.02)


def said(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


async def calls_of(http: httpx2.AsyncClient, grant: dict[str, Any]) -> list[dict[str, Any]]:
    timeline = await call(http, "GET", f"/v1/timelines/{grant['episode_id']}")
    calls: list[dict[str, Any]] = timeline["calls"]
    return calls


async def replaced(server: ServerProcess, before: list[int]) -> None:
    """Wait until none of the processes is left."""
    while not set(before).isdisjoint(children(server.process.pid)):
        await asyncio.sleep(0.01)


async def test_one_port_leads_to_all_processes(model_dir: Path, tmp_path: Path) -> None:
    async with divided(tmp_path / "run", model_dir) as (server, http):
        assert len(children(server.process.pid)) == 3
        # One connection carries the requests of all, so it moves to and fro.
        grants = [await call(http, "POST", "/v1/episodes", {"task_id": "a"}) for _ in range(2)]
        for grant in grants:
            answer = said(await chat(http, grant, "hello"))
            await chat(http, grant, "hello", answer, "and now?")
            calls = await calls_of(http, grant)
            assert [c["parent_call_id"] for c in calls] == [None, calls[0]["call_id"]]
            assert await call(http, "GET", "/v1/models", key=grant["api_key"])
            # The key in the path, and a body of many packets.
            path = f"/e/{grant['api_key']}/v1/chat/completions"
            long = {"messages": [{"role": "user", "content": "x" * 300_000}], "max_tokens": 1}
            refused = await http.post(path, json=long)
            assert refused.status_code == 400
            assert "context" in refused.text
        unknown = await http.post(
            "/v1/chat/completions",
            json={"messages": []},
            headers={"authorization": f"Bearer ajet-ep-{grants[0]['episode_id']}.wrong"},
        )
        assert unknown.status_code == 401
        for reward, grant in enumerate(grants):
            await call(http, "POST", f"/v1/episodes/{grant['episode_id']}/end", {"reward": reward})
            over = await http.post(
                "/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "hello"}]},
                headers={"authorization": f"Bearer {grant['api_key']}"},
            )
            assert over.status_code == 410
        status = await until(http, step=1, state="ROLLING")
        assert status["counters"]["calls"] == 4
        assert status["counters"]["gateway_processes"] == 2


@pytest.mark.nightly
async def test_parallel_calls_of_an_episode_keep_their_prompts(
    model_dir: Path, tmp_path: Path
) -> None:
    async with divided(tmp_path / "run", model_dir) as (_, http):
        grant = await call(http, "POST", "/v1/episodes", {"task_id": "a", "kind": "eval"})

        async def agent(number: int) -> None:
            for turn in range(8):
                user = f"group {number % 3}: task {turn} of {number}"
                messages = [
                    {"role": "system", "content": "You walk to the goal, step by step."},
                    {"role": "user", "content": user},
                ]
                body = {"messages": messages, "max_tokens": 1, "n": 1 + number % 3}
                await call(http, "POST", "/v1/chat/completions", body, grant["api_key"])

        await asyncio.gather(*map(agent, range(24)))
    store = make_store(StoreSettings(), scripted_plugins(), tmp_path / "run")
    await store.open(read_only=True)
    calls = (await store.calls([grant["episode_id"]]))[grant["episode_id"]]
    await store.close()
    # A call may refer to one whose write is still in progress.
    assert len(calls) == 8 * 24 * 2
    assert len({tuple(stored.prompt_ids[:16]) for stored in calls}) == 1
    assert len({tuple(stored.prompt_ids) for stored in calls}) == 8 * 24
    assert len({stored.index for stored in calls}) == len(calls)


async def test_calls_of_gateway_processes_can_be_watched(model_dir: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    async with serving(run_dir, model_dir, AJET_SERVER__PROCESSES="2") as (_, http):
        await start_run(http, model_dir, engine={"hangs_at": 1})
        grant = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
        watching = http.stream(
            "GET", f"/v1/timelines/{grant['episode_id']}/running", headers=CONTROL
        )
        with HoldGate(run_dir, "engine") as gate:
            calling = asyncio.create_task(chat(http, grant, HOSTILE))
            async with watching as answer:
                lines = answer.aiter_lines()
                events = (json.loads(line[6:]) async for line in lines if line[:6] == "data: ")
                while not (news := await anext(events))["calls"]:
                    pass
                (running,) = news["calls"]
                assert (running["tokens"], running["text"]) == (0, "")
                assert [said["content"] for said in running["messages"]] == [HOSTILE]
                gate.release()
                async for news in events:
                    if not news["calls"]:
                        break
            await calling
        assert [made["call_id"] for made in await calls_of(http, grant)] == [running["call_id"]]


async def test_a_stream_and_its_end(model_dir: Path, tmp_path: Path) -> None:
    async with divided(tmp_path / "run", model_dir) as (_, http):
        grant = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        headers = {"authorization": f"Bearer {grant['api_key']}"}
        async with http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
        assert len(await calls_of(http, grant)) == 1


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
async def test_gateway_processes_end_and_conversations_continue(
    model_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    async with divided(tmp_path / "run", model_dir) as (server, http):
        wanted = {"task_id": "a", "kind": "eval"}
        grants = [await call(http, "POST", "/v1/episodes", wanted) for _ in range(4)]
        answers = [said(await chat(http, grant, "hello")) for grant in grants]
        before = gateways(server)
        end(before, number)
        if number == signal.SIGTERM:
            await replaced(server, before)
        again = patient if number == signal.SIGKILL else chat
        for grant, answer in zip(grants, answers, strict=True):
            await again(http, grant, "hello", answer, "and now?")
            calls = await calls_of(http, grant)
            # The successor has the conversation, and its tokens.
            assert [c["parent_call_id"] for c in calls] == [None, calls[0]["call_id"]]
        assert set(before).isdisjoint(gateways(server))


async def test_a_connection_outlives_the_process_that_had_it(
    model_dir: Path, tmp_path: Path
) -> None:
    async with divided(tmp_path / "run", model_dir) as (server, http):
        grant = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def post() -> bytes:
            body = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json"
                f"\r\nauthorization: Bearer {grant['api_key']}\r\ncontent-length: {len(body)}\r\n"
            ).encode()
            # The head arrives in two parts, without the body.
            writer.write(head[:50])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(head[50:] + b"\r\n")
            await writer.drain()
            writer.write(body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            return answer

        assert b" 200 " in await post()
        before = gateways(server)
        end(before, signal.SIGTERM)
        await replaced(server, before)
        assert b" 200 " in await post()
        writer.close()


async def test_a_request_follows_an_unread_body_for_another_process(
    model_dir: Path, tmp_path: Path
) -> None:
    async with divided(tmp_path / "run", model_dir) as (server, _):
        port = int(server.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b"x" * 5000
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body[:1000])
        # It is refused before its body has arrived.
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 401 " in answer
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        # The rest of the body, and a request for the server process, in one packet.
        writer.write(body[1000:] + b"GET /v1/protocol HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def test_the_server_process_is_killed_and_nothing_is_lost(
    model_dir: Path, tmp_path: Path
) -> None:
    async with divided(tmp_path / "run", model_dir) as (server, http):
        first = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
        answer = said(await chat(http, first, "hello"))
        before = gateways(server)
        end([server_pid(server)], signal.SIGKILL)
        # A call of a gateway process only waits.
        await chat(http, first, "hello", answer, "and now?")
        calls = await calls_of(http, first)
        assert [c["parent_call_id"] for c in calls] == [None, calls[0]["call_id"]]
        assert set(before) < set(children(server.process.pid))
        await call(http, "POST", f"/v1/episodes/{first['episode_id']}/end", {"reward": 0.0})
        second = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
        await chat(http, second, "hello")
        await call(http, "POST", f"/v1/episodes/{second['episode_id']}/end", {"reward": 1.0})
        await until(http, step=1, state="ROLLING")


async def test_no_process_outlives_the_first(model_dir: Path, tmp_path: Path) -> None:
    async with divided(tmp_path / "run", model_dir) as (server, _):
        pids = children(server.process.pid)
        await kill(server)
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0.01)


@pytest.mark.nightly
async def test_a_quota_of_calls_counts_in_all_processes(model_dir: Path, tmp_path: Path) -> None:
    async with divided(tmp_path / "run", model_dir) as (_, http):
        quotas = {"calls_at_once": 1}
        granted = await call(http, "POST", "/v1/tokens", {"name": "t", "quotas": quotas})
        token = granted["token"]
        body = {"task_id": "a", "kind": "eval"}
        grant = await call(http, "POST", "/v1/episodes", body, token)
        for _ in range(3):
            await chat(http, grant, "hello")


async def test_a_run_directory_in_use_ends_the_command(model_dir: Path, tmp_path: Path) -> None:
    async with divided(tmp_path / "run", model_dir):
        with pytest.raises(AssertionError, match="is open in another server"):
            async with serving(tmp_path / "run", model_dir, AJET_SERVER__PROCESSES="2"):
                pass


def test_several_processes_need_a_proxy_for_tls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="let a proxy terminate TLS"):
        ServerSettings(processes=2, tls_cert=tmp_path / "cert", tls_key=tmp_path / "key")
