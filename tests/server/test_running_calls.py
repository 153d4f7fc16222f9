"""What those who watch see of calls that are being answered."""

from __future__ import annotations

import asyncio
from array import array
from typing import cast

import pytest

from ajet_core.errors import EngineError
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_core.timeline import MessageText, PlacedMessage
from ajet_server.gateway.formats.generation import Generation
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.gateway.running_calls import (
    MESSAGE_CHARS,
    MOST_CALLS,
    MOST_MESSAGES,
    MOST_TOKENS,
    PROMPT_CHARS,
    RunningCall,
    RunningCalls,
    RunningSnapshot,
)
from tests.server.dialects.scripted import USER, Gateway, gateway

NOW = 1700000000.5


async def _call(gate: Gateway, *, stream: bool, **settings: int) -> None:
    if stream:
        await gate.chunks(USER, **settings)
    else:
        await gate.complete(USER, **settings)


def _look(gate: Gateway, **seen: int) -> RunningSnapshot:
    return gate.session.running.look(seen, NOW)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_shows_its_tokens_until_it_is_recorded(stream: bool) -> None:
    gate = gateway("go up and then left<|im_end|>", hold=asyncio.Event(), hold_at=3)
    recording, recorded = asyncio.Event(), asyncio.Event()
    record = gate.record

    async def slowly(call: object) -> None:
        recording.set()
        await recorded.wait()
        await record(call)  # type: ignore[arg-type]

    gate.record = slowly  # type: ignore[method-assign]
    calling = asyncio.create_task(_call(gate, stream=stream))
    await gate.engine.held.wait()
    (call,) = _look(gate).calls
    script = gate.engine.scripts[0]
    assert (call.call_id, call.tokens, call.ids) == (
        gate.engine.requests[0].request_id,
        3,
        script[:3],
    )
    assert (call.began_at, call.version, call.agent) == (NOW, 7, "" if stream else "a")
    assert _look(gate, **{call.call_id: 2}).calls[0].ids == script[2:3]
    assert gate.engine.hold is not None
    gate.engine.hold.set()
    await recording.wait()
    assert _look(gate).calls[0].ids == script
    recorded.set()
    await calling
    assert _look(gate) == RunningSnapshot([])
    assert len(gate.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_shows_the_messages_of_its_prompt_once(stream: bool) -> None:
    gate = gateway("go up<|im_end|>", hold=asyncio.Event())
    calling = asyncio.create_task(_call(gate, stream=stream))
    await gate.engine.held.wait()
    (call,) = _look(gate).calls
    assert [(one.text.role, one.text.content, one.cut) for one in call.messages] == [
        ("user", USER["content"], 0)
    ]
    assert _look(gate, **{call.call_id: 0}).calls[0].messages == []
    assert gate.engine.hold is not None
    gate.engine.hold.set()
    await calling


async def test_a_call_that_continues_another_shows_what_is_new() -> None:
    gate = gateway(["go up<|im_end|>", "go left<|im_end|>"])
    answer = await gate.complete(USER)
    gate.engine.hold = asyncio.Event()
    said = {"role": "assistant", "content": answer.choices[0].message.content}
    more = {"role": "user", "content": "And then?"}
    calling = asyncio.create_task(gate.complete(USER, said, more))
    await gate.engine.held.wait()
    (call,) = _look(gate).calls
    assert [one.text.content for one in call.messages] == ["And then?"]
    assert call.omitted == 0
    gate.engine.hold.set()
    await calling


def _prompt(contents: list[str]) -> RunningCall:
    """What a look shows of a call whose prompt has these contents."""
    prompt = [PlacedMessage(0, 1, MessageText("user", content)) for content in contents]
    generation = Generation(
        GenerateRequest("c", array("I", [1]), SamplingParams(max_tokens=1)),
        cast("ChatRenderer", None),
    )
    running = RunningCalls()
    with running.showing("solver", NOW, prompt, [generation]):
        (call,) = running.look({}, NOW).calls
    return call


def test_of_many_messages_the_last_are_shown() -> None:
    call = _prompt([f"message {number}" for number in range(MOST_MESSAGES + 3)])
    assert (len(call.messages), call.omitted) == (MOST_MESSAGES, 3)
    assert call.messages[-1].text.content == f"message {MOST_MESSAGES + 2}"


def test_long_messages_are_cut_and_those_before_them_left_out() -> None:
    most = PROMPT_CHARS // MESSAGE_CHARS
    call = _prompt(["x" * (MESSAGE_CHARS + 7)] * (2 * most))
    assert 0 < len(call.messages) <= most
    assert call.omitted == 2 * most - len(call.messages)
    assert {one.cut for one in call.messages} == {7}
    assert sum(one.size for one in call.messages) <= PROMPT_CHARS


def test_the_last_message_is_shown_whatever_its_size() -> None:
    call = _prompt(["first", "y" * 10**6])
    assert call.messages[-1].cut == 10**6 - MESSAGE_CHARS
    assert len(call.messages) + call.omitted == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_that_fail_or_are_cancelled_are_shown_no_longer(stream: bool) -> None:
    gate = gateway("go up<|im_end|>", fails_at=1)
    with pytest.raises(EngineError):
        await _call(gate, stream=stream)
    assert _look(gate) == RunningSnapshot([])
    gate = gateway("go up<|im_end|>", hold=asyncio.Event())
    calling = asyncio.create_task(_call(gate, stream=stream))
    await gate.engine.held.wait()
    assert len(_look(gate).calls) == 1
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert _look(gate) == RunningSnapshot([])


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_look_has_a_limit(stream: bool) -> None:
    gate = gateway("x" * (MOST_TOKENS + 10), hold=asyncio.Event(), hold_at=MOST_TOKENS + 5)
    gate.engine.scripts = [[65] * (MOST_TOKENS + 10)]
    count = MOST_CALLS + 2
    calling = asyncio.create_task(_call(gate, stream=stream, n=count))
    while len(gate.engine.requests) < count or gate.engine.produced < count * (MOST_TOKENS + 5):
        await asyncio.sleep(0)
    look = _look(gate)
    assert (len(look.calls), look.more) == (MOST_CALLS, 2)
    assert [(call.tokens, len(call.ids)) for call in look.calls] == [
        (MOST_TOKENS + 5, MOST_TOKENS)
    ] * MOST_CALLS
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)


@pytest.mark.parametrize(("before", "streamed"), [(None, False), (1.0, True), (60.0, False)])
async def test_only_calls_that_are_watched_are_streamed(
    before: float | None, streamed: bool
) -> None:
    gate = gateway("go up<|im_end|>")
    if before is not None:
        gate.session.running.look({}, NOW - before)
    await gate.complete(USER)
    assert gate.engine.requests[0].stream is streamed
