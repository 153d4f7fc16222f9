"""Long requests are worked on beside the event loop."""

import asyncio
import threading

import pytest

from ajet_core.errors import ContextLengthError
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.formats.recording import _LONG_ANSWER
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.gateway.rendering.drift import DriftMeter
from ajet_server.gateway.rendering.factory import build_renderer
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_testing.tokenizers import tokenizer_for
from tests.server.dialects.families import FAMILIES
from tests.server.dialects.scripted import USER, Gateway, ScriptedEngine, body, gateway


@pytest.fixture
def renderer() -> ChatRenderer:
    """One that no other test shares."""
    return build_renderer("qwen3", tokenizer_for("qwen3"))


def gate_of(renderer, *texts, **settings):
    engine = ScriptedEngine([renderer.encode(text) for text in texts], per_chunk=100)
    return Gateway(engine, renderer, **{"max_context": 1 << 20, **settings})


def long_message(renderer, role="user"):
    return {"role": role, "content": "up, left. " * (renderer.quick_characters // 10)}


def spied(monkeypatch, owner, name):
    """Whether each call of a method was made on the event loop's thread."""
    original, on_loop = getattr(owner, name), []

    def spy(*args, **settings):
        on_loop.append(threading.current_thread() is threading.main_thread())
        return original(*args, **settings)

    monkeypatch.setattr(owner, name, spy)
    return on_loop


async def test_only_long_requests_leave_the_loop(renderer, monkeypatch):
    gate = gate_of(renderer, "there<|im_end|>")
    rendered = spied(monkeypatch, renderer, "render")
    # The first call also tries how the template writes history.
    await gate.complete(USER)
    assert all(rendered)
    rendered.clear()
    await gate.complete(long_message(renderer))
    assert rendered.count(False) == 1


async def test_a_short_message_after_a_long_conversation_extends_it_on_the_loop(
    renderer, monkeypatch
):
    gate = gate_of(renderer, "there<|im_end|>")
    history = [long_message(renderer), {"role": "assistant", "content": "there"}]
    await gate.complete(history[0])
    bridged = spied(monkeypatch, renderer, "bridge")
    await gate.complete(*history, USER)
    await gate.complete(*history, long_message(renderer))
    assert bridged == [True, False]
    first = gate.calls[0]
    assert [call.parent_call_id for call in gate.calls[1:]] == [first.call_id] * 2


async def test_other_episodes_are_answered_while_a_long_request_is_rendered(renderer, monkeypatch):
    gate = gate_of(renderer, "there<|im_end|>")
    other = Gateway(gate.engine, renderer, session=Session("other", ConversationIndex()))
    other.service = gate.service
    begun, go_on = asyncio.Event(), threading.Event()
    loop, original = asyncio.get_running_loop(), renderer.render

    def render(messages, tools, *, asking=True):
        if threading.current_thread() is not threading.main_thread():
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(30)
        return original(messages, tools, asking=asking)

    monkeypatch.setattr(renderer, "render", render)
    long = asyncio.ensure_future(gate.complete(long_message(renderer)))
    await begun.wait()
    # The same episode's calls come and go meanwhile, too.
    await gate.complete(USER)
    await other.complete(USER)
    assert not long.done()
    go_on.set()
    await long
    assert [call.index for call in gate.calls] == [0, 1]
    assert gate.calls[1].base is gate.calls[0]


@pytest.mark.parametrize("name", FAMILIES)
async def test_long_requests_of_one_episode_at_the_same_time(name):
    family = FAMILIES[name]
    gate = family.gate(*[family.said(f"{i} down") for i in range(8)], per_chunk=100, fair=True)
    gate.max_context = 1 << 20
    gate.__post_init__()
    message = long_message(gate.renderer)
    said = await asyncio.gather(*(gate.complete(message) for _ in range(4)))
    texts = [done.choices[0].message.content for done in said]
    await asyncio.gather(
        *(gate.complete(message, {"role": "assistant", "content": text}, message) for text in texts)
    )
    first = gate.calls[0]
    assert all(not call.suffix_ids for call in gate.calls[1:4])
    by_id = {call.call_id: call for call in gate.calls}
    parents = [by_id[call.parent_call_id or ""] for call in gate.calls[4:]]
    assert sorted(parent.answer.content or "" for parent in parents) == sorted(
        text or "" for text in texts
    )
    given = {request.request_id: request.prompt_ids for request in gate.engine.requests}
    assert all(call.prompt_ids == given[call.call_id] for call in gate.calls)
    assert first.base is None


async def test_a_stream_of_a_long_request_says_with_its_first_chunk_that_it_does_not_fit(renderer):
    gate = gate_of(renderer, "there<|im_end|>", max_context=100)
    request = read_chat_request(body(long_message(renderer), stream=True))
    stream = gate.service.stream(gate.session, request, gate.record)
    with pytest.raises(ContextLengthError):
        await anext(stream)
    with pytest.raises(ContextLengthError):
        await gate.complete(long_message(renderer))
    assert not gate.calls


async def test_a_long_stream_is_what_it_is_without_streaming(renderer):
    gate = gate_of(renderer, "there<|im_end|>")
    chunks = await gate.chunks(long_message(renderer))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "there"
    await gate.complete(long_message(renderer))
    assert gate.calls[0].prompt_ids == gate.calls[1].prompt_ids


async def test_a_long_answer_is_compared_on_a_thread_and_kept_if_the_client_goes(monkeypatch):
    gate = gateway("up " * _LONG_ANSWER * 2 + "<|im_end|>", per_chunk=1 << 20)
    gate.max_context = 1 << 20
    gate.__post_init__()
    begun, go_on = asyncio.Event(), threading.Event()
    loop, original = asyncio.get_running_loop(), DriftMeter.drift

    def drift(self, sampled_ids, answer):
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(30)
        return original(self, sampled_ids, answer)

    monkeypatch.setattr(DriftMeter, "drift", drift)
    asked = asyncio.ensure_future(gate.complete(USER))
    await begun.wait()
    asked.cancel()
    await asyncio.sleep(0)
    assert not gate.calls
    go_on.set()
    # Whoever asks again may have it.
    assert (await asked).choices
    assert gate.calls[0].finish_reason == "stop"
