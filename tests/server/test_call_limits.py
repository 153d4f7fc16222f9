"""Limits of an episode's calls, with calls that are written at the same time."""

from __future__ import annotations

import asyncio

import pytest

from ajet_core.timeline import Call
from ajet_server.store.run_store import RunStore
from ajet_testing.servers import CLIENT, ServerFactory, error_of

pytestmark = pytest.mark.processes


class Writing:
    """Holds the writes of calls until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.go = asyncio.Semaphore(0), asyncio.Event()
        write = RunStore.add_call

        async def held(store: RunStore, call: Call) -> None:
            self.began.release()
            await self.go.wait()
            await write(store, call)

        monkeypatch.setattr(RunStore, "add_call", held)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_counts_once_while_it_is_written(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    writing = Writing(monkeypatch)
    async with servers.running() as server:
        await server.roll()
        grant = await server.claim(max_calls=3)
        calls = []
        # Those that are written and those that are new at the same time.
        for number in range(3):
            calls.append(asyncio.create_task(server.chat(grant, f"call {number}", stream=stream)))
            async with asyncio.timeout(30):
                await writing.began.acquire()
        refused = await server.chat(grant, "one more", stream=stream)
        assert (refused.status_code, error_of(refused)["code"]) == (403, "call_limit")
        assert "has made 3:" in error_of(refused)["message"]
        writing.go.set()
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * 3
        found = await server.http.get(f"/v1/episodes/{grant['episode_id']}", headers=CLIENT)
        assert (found.json()["calls"], found.json()["limit"]) == (3, "call_limit")


async def test_a_call_that_is_cancelled_while_it_is_written_counts_once(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(monkeypatch)
    async with servers.running() as server:
        await server.roll()
        grant = await server.claim(max_calls=2)
        first = asyncio.create_task(server.chat(grant, "first"))
        async with asyncio.timeout(30):
            await writing.began.acquire()
        first.cancel()
        await asyncio.wait([first])
        writing.go.set()
        assert (await server.chat(grant, "second")).status_code == 200
        assert (await server.chat(grant, "third")).status_code == 403


async def test_a_call_that_fails_before_its_write_is_given_back(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        grant = await server.claim(max_calls=1)
        unsupported = await server.chat(grant, "first", top_logprobs=10**6, logprobs=True)
        assert unsupported.status_code == 400
        assert (await server.chat(grant, "second")).status_code == 200
        assert (await server.chat(grant, "third")).status_code == 403
