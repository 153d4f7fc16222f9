"""Streams that end with an error: the SDKs say so, and what had come of the call is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import openai
import pytest

from ajet_core.errors import EngineError
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.events import Event
from ajet_server.gateway.formats.exchange import Exchange
from tests.support.sdks import Agent

pytestmark = pytest.mark.processes

ASKED: list[Any] = [{"role": "user", "content": "Where are you?"}]
ERRORS = [(EngineError("the engine broke"), "the engine broke"), (KeyError("x"), "internal error")]


@pytest.fixture(params=ERRORS, ids=["known", "unforeseen"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What clients are told of an error that breaks streams after a few events."""
    error, message = request.param
    real = CompletionService.events

    async def breaking(self: CompletionService, exchange: Exchange) -> AsyncGenerator[Event, None]:
        async with aclosing(real(self, exchange)) as events:
            for _ in range(5):
                yield await anext(events)
            raise error

    monkeypatch.setattr(CompletionService, "events", breaking)
    return message


async def test_openai_raises(agent: Agent, told: str) -> None:
    async with agent.openai as client:
        with pytest.raises(openai.APIError, match=told):
            async for _ in await client.chat.completions.create(
                model="any", messages=ASKED, stream=True
            ):
                pass
        with pytest.raises(openai.APIError, match=told):
            async for _ in await client.completions.create(
                model="any", prompt="x", max_tokens=20, stream=True
            ):
                pass
        stream = await client.responses.create(model="any", input="x", stream=True)
        *_, last = [event async for event in stream]
        assert last.type == "error"
        assert told in last.message
    assert [call.finish_reason for call in await agent.calls()] == ["abort"] * 3


async def test_anthropic_raises(agent: Agent, told: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    async with agent.anthropic as client:
        with pytest.raises(anthropic.APIStatusError, match=told):
            async with client.messages.stream(model="any", max_tokens=20, messages=ASKED) as stream:
                await stream.get_final_message()
    (call,) = await agent.calls()
    assert call.finish_reason == "abort"


async def test_google_raises(agent: Agent, told: str) -> None:
    errors = pytest.importorskip("google.genai.errors")
    with pytest.raises(errors.ServerError, match=told):
        async for _ in await agent.google.aio.models.generate_content_stream(
            model="any", contents="x"
        ):
            pass
    # Without alt=sse, the error is the last element of the array.
    headers = {"x-goog-api-key": agent.grant["api_key"]}
    body = {"contents": [{"parts": [{"text": "x"}]}]}
    answer = await agent.server.http.post(
        "/v1beta/models/m:streamGenerateContent", headers=headers, json=body
    )
    assert answer.status_code == 200
    *before, last = answer.json()
    assert before
    assert told in last["error"]["message"]
    assert [call.finish_reason for call in await agent.calls()] == ["abort"] * 2


async def test_the_error_of_a_response_is_the_next_event(agent: Agent, told: str) -> None:
    headers = {"x-api-key": agent.grant["api_key"]}
    answer = await agent.server.http.post(
        "/v1/responses", headers=headers, json={"input": "x", "stream": True}
    )
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len(events) > 2
    assert events[-1]["type"] == "error"
    assert told in events[-1]["message"]
