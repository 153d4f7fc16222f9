"""What an SGLang server is asked, and in which order; nothing answers here but this file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from ajet_engine_sglang.server import SglangServer
from tiny_sglang import model_config

from ajet_core.errors import EngineError
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_engines.served import HttpClient, ServerGoneError, ServerRefusedError


@dataclass
class Answering:
    """In the place of `HttpClient`.

    :ivar asked: routes, in the order in which they were asked.
    :ivar held: routes that are answered when their event is set.
    :ivar failing: routes that are answered with an exception.
    :ivar tokens: of a stream, by the prompt's first token; None ends it.
    """

    asked: list[str] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)
    tokens: dict[int, asyncio.Queue[int | None]] = field(default_factory=dict)

    async def _answer(self, path: str) -> None:
        route = path.split("?", maxsplit=1)[0]
        self.asked.append(route)
        if route in self.held:
            await self.held[route].wait()
        if route in self.failing:
            raise self.failing[route]

    async def post(self, path: str, *_: object, **__: object) -> None:
        await self._answer(path)

    async def get(self, path: str) -> str:
        await self._answer(path)
        return json.dumps({})

    async def answers(self, path: str) -> bool:
        await self._answer(path)
        return True

    async def events(
        self, path: str, body: dict[str, Any], traceparent: str
    ) -> AsyncIterator[dict[str, Any]]:
        assert (path, traceparent) == ("/generate", "")
        queue = self.tokens.setdefault(body["input_ids"][0], asyncio.Queue())
        sampled = 0
        while (token := await queue.get()) is not None:
            sampled += 1
            rows = [[-0.5, token, None]]
            meta = {"completion_tokens": sampled, "output_token_logprobs": rows}
            yield {"meta_info": {**meta, "finish_reason": None}}
        yield {"meta_info": {"completion_tokens": sampled, "finish_reason": {"type": "abort"}}}


@pytest.fixture
def http() -> Answering:
    return Answering()


@pytest.fixture
def server(http: Answering, tmp_path: Path) -> SglangServer:
    return SglangServer(
        cast("HttpClient", http), model_config(str(tmp_path)), shapes=True, sleeps=True
    )


async def begin(server: SglangServer, http: Answering, first: int) -> asyncio.Task[None]:
    """A request that has sampled one token."""
    begun = asyncio.Event()

    async def read() -> None:
        request = GenerateRequest("r", [first], SamplingParams(max_tokens=9))
        async for _ in server.sample(request):
            begun.set()

    task = asyncio.create_task(read())
    http.tokens.setdefault(first, asyncio.Queue()).put_nowait(7)
    await begun.wait()
    return task


async def turns() -> None:
    """All that can go on does."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_it_is_halted_when_its_last_forward_pass_is_over(
    server: SglangServer, http: Answering
) -> None:
    http.held["/flush_cache"] = asyncio.Event()
    halting = asyncio.create_task(server.halt())
    await turns()
    assert http.asked == ["/abort_request", "/pause_generation", "/flush_cache"]
    assert not halting.done()
    http.held["/flush_cache"].set()
    await halting


async def test_a_halt_waits_for_those_that_it_ended_and_for_no_others(
    server: SglangServer, http: Answering
) -> None:
    first = await begin(server, http, 1)
    http.held["/abort_request"] = asyncio.Event()
    halting = asyncio.create_task(server.halt())
    await turns()
    # It was on its way: the server had been told before it came.
    late = await begin(server, http, 2)
    http.held["/abort_request"].set()
    await turns()
    assert http.asked == ["/abort_request"]
    http.tokens[1].put_nowait(None)
    await halting
    assert first.done()
    assert not late.done()
    http.tokens[2].put_nowait(None)
    await late


async def test_one_that_does_not_come_to_rest_says_so(
    server: SglangServer, http: Answering
) -> None:
    http.failing["/flush_cache"] = ServerRefusedError(400, "Timed out waiting for idle state.")
    with pytest.raises(EngineError, match="Timed out"):
        await server.halt()


async def test_one_that_may_be_asleep_is_woken(server: SglangServer, http: Answering) -> None:
    http.held["/release_memory_occupation"] = asyncio.Event()
    sleeping = asyncio.create_task(server.sleep())
    await turns()
    # It was told, and nobody waits for what it says.
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    await server.wake()
    assert http.asked.pop() == "/resume_memory_occupation"
    # Told twice, SGLang would end.
    http.asked.clear()
    await server.wake()
    assert http.asked == []


async def test_one_that_refused_to_sleep_is_not_woken(
    server: SglangServer, http: Answering
) -> None:
    http.failing["/release_memory_occupation"] = ServerRefusedError(400, "no")
    with pytest.raises(EngineError):
        await server.sleep()
    http.asked.clear()
    await server.wake()
    assert http.asked == []


async def test_a_paused_one_is_not_asked_to_sample(server: SglangServer, http: Answering) -> None:
    asked = []
    for change in (None, server.go_on, server.halt, server.go_on):
        if change is not None:
            await change()
        http.asked.clear()
        assert await server.healthy()
        asked += http.asked
    assert asked == ["/server_info", "/health", "/server_info", "/health"]


@pytest.mark.parametrize(
    ("error", "well"),
    [
        (ServerGoneError("no"), False),
        (ServerRefusedError(503, "not yet"), False),
        (ServerRefusedError(401, "another key"), True),
    ],
)
async def test_one_that_refuses_the_key_is_there(
    server: SglangServer, http: Answering, error: Exception, well: bool
) -> None:
    """What is wrong is said when it is asked for more."""
    http.failing["/server_info"] = error
    assert await server.healthy() is well
