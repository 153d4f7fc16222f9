"""After a restart, a retry in an exact run gets the answer that was recorded but never received."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ajet_core.interfaces import EngineInfo
from ajet_server.gateway.formats.chat import ChatRequest, read_chat_request
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex

from .scripted import Gateway, body, gateway

EPISODE = "0123456789abcdef-one"
HELLO = {"role": "user", "content": "Hello"}


async def complete(
    gate: Gateway, session: Session, *messages: dict[str, Any], is_retry: bool = False
) -> dict[str, Any]:
    service = CompletionService(
        gate.renderer,
        gate.engine,
        "tiny",
        EngineInfo(4096, 1000),
        gate.capabilities,
        clock=lambda: 1700000000.5,
        exact=True,
    )
    request = read_chat_request(body(*messages))
    exchange = await service.begin(session, request, gate.record, is_retry=is_retry)
    answer: dict[str, Any] = json.loads(
        ChatRequest(request).whole(exchange, await service.complete(exchange))
    )
    return answer


def restarted(gate: Gateway) -> Session:
    return Session(EPISODE, ConversationIndex.restore(gate.calls), len(gate.calls))


def seed_of(gate: Gateway, number: int) -> int | None:
    return gate.engine.requests[number].sampling.seed


async def test_a_retry_repeats_the_last_call() -> None:
    gate = gateway("Hi<|im_end|>")
    first = await complete(gate, Session(EPISODE, ConversationIndex()), HELLO)
    session = restarted(gate)
    again = await complete(gate, session, HELLO, is_retry=True)
    assert again == first
    assert len(gate.calls) == 1
    assert seed_of(gate, 1) == seed_of(gate, 0)
    # The conversation continues from the recorded call, and a second retry is a new call.
    said = {"role": "assistant", "content": "Hi"}
    await complete(gate, session, HELLO, said, HELLO)
    assert [call.index for call in gate.calls] == [0, 1]
    assert gate.calls[1].base is not None
    await complete(gate, session, HELLO, is_retry=True)
    assert len(gate.calls) == 3


@pytest.mark.parametrize("change", ["no_retry", "other_prompt", "later", "other_answer"])
async def test_other_requests_are_new_calls(change: str) -> None:
    gate = gateway(["Hi<|im_end|>", "Ho<|im_end|>" if change == "other_answer" else "Hi<|im_end|>"])
    first = await complete(gate, Session(EPISODE, ConversationIndex()), HELLO)
    session = restarted(gate)
    prompt = {"role": "user", "content": "Bye"} if change == "other_prompt" else HELLO
    if change == "later":
        await complete(gate, session, {"role": "user", "content": "Bye"})
    again = await complete(gate, session, prompt, is_retry=change != "no_retry")
    assert len(gate.calls) == (3 if change == "later" else 2)
    assert len({call.call_id for call in gate.calls}) == len(gate.calls)
    assert (again["id"] == first["id"]) is (change == "other_answer")


async def test_a_repeated_call_that_is_not_seen_may_be_repeated_again() -> None:
    gate = gateway("Hi<|im_end|>")
    first = await complete(gate, Session(EPISODE, ConversationIndex()), HELLO)
    session = restarted(gate)
    gate.engine = replace(gate.engine, fails_at=0)
    with pytest.raises(Exception, match="scripted failure"):
        await complete(gate, session, HELLO, is_retry=True)
    gate.engine = replace(gate.engine, fails_at=None)
    assert await complete(gate, session, HELLO, is_retry=True) == first
    assert len(gate.calls) == 1
