"""Idle streams send each dialect's own heartbeats; the test controls time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.events import Event
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.silence import Silence
from tests.support.sdks import CALLED, ENDED, SCHEMA, SPOKEN, Agent

ASKED: list[Any] = [{"role": "user", "content": "Where are you?"}]
CHAT_TOOLS: list[Any] = [{"type": "function", "function": {"name": "move", "parameters": SCHEMA}}]
RESPONSES_TOOLS: list[Any] = [{"type": "function", "name": "move", "parameters": SCHEMA}]
MESSAGES_TOOLS: list[Any] = [{"name": "move", "input_schema": SCHEMA}]
MOST = 15.0


class Time:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleeping: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._sleeping.append((self.now + seconds, woken))
        await woken

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        for at, woken in self._sleeping:
            if at <= self.now and not woken.done():
                woken.set_result(None)

    def silence(self, most: float) -> Silence:
        return Silence(most, lambda: self.now, self.sleep)


class Held:
    """The engine's events, held after some of them.

    :ivar there: they are held.
    :ivar on: lets them go on.
    """

    def __init__(self) -> None:
        self.after = 0
        self.there, self.on = asyncio.Event(), asyncio.Event()

    def begin(self, after: int) -> None:
        """Hold the next stream."""
        self.after = after
        self.there.clear()
        self.on.clear()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()
    real = CompletionService.events

    async def events(self: CompletionService, exchange: Exchange) -> AsyncGenerator[Event, None]:
        count = 0
        async with aclosing(real(self, exchange)) as source:
            while True:
                if count == held.after:
                    held.there.set()
                    await held.on.wait()
                count += 1
                try:
                    yield await anext(source)
                except StopAsyncIteration:
                    return

    monkeypatch.setattr(CompletionService, "events", events)
    return held


@pytest.fixture
def time(agent: Agent) -> Time:
    """The time of the server's streams."""
    time = Time()
    agent.server.service.silence = time.silence
    return time


class Reader:
    """Reads a stream line by line while time passes."""

    def __init__(self, agent: Agent, time: Time, path: str, body: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self._time = time
        self._heard = asyncio.Event()
        self._task = asyncio.create_task(self._read(agent, path, body))

    async def beats(self, is_beat: Callable[[str], bool], times: int) -> None:
        """Let as many silences pass by, each until its heartbeat is read."""
        self._time.pass_by(MOST - 0.5)
        for i in range(times):
            self._time.pass_by(MOST if i else 0.5)
            while sum(map(is_beat, self.lines)) == i:
                self._heard.clear()
                heard = asyncio.create_task(self._heard.wait())
                await asyncio.wait((heard, self._task), return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
                if self._task.done():
                    await self._task
                    raise AssertionError(f"the stream ended after {i} heartbeats")

    async def data(self) -> list[dict[str, Any]]:
        """The data of all events, when the stream has ended."""
        await self._task
        lines = [line for line in self.lines if line.startswith("data: {")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    async def _read(self, agent: Agent, path: str, body: dict[str, Any]) -> None:
        key = {"authorization": f"Bearer {agent.grant['api_key']}"}
        http = agent.server.http
        async with http.stream("POST", path, headers=key, json={**body, "stream": True}) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                self.lines.append(line)
                self._heard.set()


async def told(
    agent: Agent, time: Time, held: Held, after: int, path: str, body: dict[str, Any], beat: str
) -> list[dict[str, Any]]:
    """The data of a stream with three heartbeats, before its first event or after some."""
    held.begin(after)
    reader = Reader(agent, time, path, body)
    await held.there.wait()
    await reader.beats(lambda line: beat in line, 3)
    held.on.set()
    data = await reader.data()
    assert sum(beat in line for line in reader.lines) == 3
    return data


async def test_each_dialect_has_its_own_heartbeats(agent: Agent, time: Time, held: Held) -> None:
    for after in (0, 8):
        body: dict[str, Any] = {"messages": ASKED, "max_tokens": 200}
        kinds = [
            event["type"]
            for event in await told(
                agent, time, held, after, "/v1/messages", body, 'data: {"type":"ping"}'
            )
        ]
        assert kinds[0] == ("message_start" if after else "ping")
        assert kinds[-1] == "message_stop"
        beat = '"delta":{},"logprobs":null,"finish_reason":null'
        chunks = await told(
            agent, time, held, after, "/v1/chat/completions", {"messages": ASKED}, beat
        )
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        text = {"prompt": "x", "max_tokens": 200}
        await told(agent, time, held, after, "/v1/completions", text, ": keep-alive")
    events = await told(agent, time, held, 8, "/v1/responses", {"input": "x"}, '"type":"keepalive"')
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_googles_streams_have_chunks_with_an_empty_text(
    agent: Agent, time: Time, held: Held
) -> None:
    path, body = "/v1beta/models/m:streamGenerateContent", {"contents": [{"parts": ["x"]}]}
    beat = '{"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"index":0}]}'
    for after in (0, 8):
        chunks = await told(agent, time, held, after, f"{path}?alt=sse", body, beat)
        parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
        assert "".join(part["text"] for part in parts).startswith(SPOKEN)
    # In an array it is white space.
    held.begin(0)
    reader = Reader(agent, time, path, body)
    await held.there.wait()
    await reader.beats(lambda line: not line, 3)
    held.on.set()
    await reader.data()
    chunks = json.loads("\n".join(reader.lines))
    assert chunks[-1]["candidates"][0]["finishReason"] == "STOP"


async def test_a_response_begins_while_it_waits(agent: Agent, time: Time, held: Held) -> None:
    # The SDK takes no other event before it.
    held.begin(0)
    reader = Reader(agent, time, "/v1/responses", {"input": "x"})
    await held.there.wait()
    await reader.beats(lambda line: "event: response.in_progress" in line, 1)
    time.pass_by(MOST)
    await reader.beats(lambda line: "event: keepalive" in line, 1)
    held.on.set()
    kinds = [event["type"] for event in await reader.data()]
    assert kinds[:3] == ["response.created", "response.in_progress", "keepalive"]
    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"


async def test_a_call_that_waits_for_an_engine_has_heartbeats_too(agent: Agent, time: Time) -> None:
    loop = agent.server.service.coordinator.loop
    assert loop is not None
    gate = loop.supervisor.gate
    engine = gate._engine
    assert engine is not None
    gate.shut()
    reader = Reader(agent, time, "/v1/messages", {"messages": ASKED, "max_tokens": 200})
    # Its call is on its way to the engine when it has begun to be silent.
    while not time._sleeping:
        await asyncio.sleep(0)
    await reader.beats(lambda line: '"ping"' in line, 2)
    gate.open(engine)
    assert (await reader.data())[-1]["type"] == "message_stop"


async def test_the_sdks_read_a_tool_call_through_heartbeats(
    agent: Agent, time: Time, held: Held
) -> None:
    anthropic = pytest.importorskip("anthropic")
    assert anthropic
    # Within the first call, which is told when it is whole.
    length = len(f"{SPOKEN}{CALLED}{ENDED}") // 2

    async def through(work: Coroutine[Any, Any, Any]) -> Any:
        held.begin(length)
        task = asyncio.create_task(work)
        await held.there.wait()
        for _ in range(2):
            time.pass_by(MOST)
            for _ in range(50):
                await asyncio.sleep(0)
        held.on.set()
        return await task

    async def message() -> Any:
        settings = {"model": "any", "max_tokens": 200, "messages": ASKED, "tools": MESSAGES_TOOLS}
        async with agent.anthropic as client, client.messages.stream(**settings) as stream:
            return await stream.get_final_message()

    async def chat() -> Any:
        settings: dict[str, Any] = {"model": "any", "messages": ASKED, "tools": CHAT_TOOLS}
        async with agent.openai as client, client.chat.completions.stream(**settings) as stream:
            return await stream.get_final_completion()

    async def response() -> Any:
        settings: dict[str, Any] = {"model": "any", "input": "x", "tools": RESPONSES_TOOLS}
        async with agent.openai as client, client.responses.stream(**settings) as stream:
            return await stream.get_final_response()

    said = await through(message())
    assert [block.type for block in said.content] == ["text", "tool_use", "tool_use"]
    completed = (await through(chat())).choices[0].message
    assert (completed.role, completed.content) == ("assistant", SPOKEN)
    assert [call.function.name for call in completed.tool_calls] == ["move", "move"]
    items = (await through(response())).output
    assert [item.type for item in items] == ["message", "function_call", "function_call"]
    assert all(call.finish_reason == "stop" for call in await agent.calls())


async def test_no_heartbeats_where_they_are_turned_off() -> None:
    time = Time()
    silence = time.silence(0)
    await silence.broken_by(lambda: pytest.fail("it is broken"))
