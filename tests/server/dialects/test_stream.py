import asyncio
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import ContextLengthError, EngineError
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.completions import read_completions_request
from ajet_server.gateway.formats.events import Choice, ChoiceDelta
from ajet_server.gateway.rendering.prompting import Continuation
from ajet_server.gateway.rendering.stable_prefix import STREAMED_FAMILIES, StablePrefix
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES
from ajet_testing.tokenizers import (
    CHATML,
    HARMONY,
    MORE_SPECIALS,
    SPECIALS,
    THINK,
    renderer_for,
)
from tests.server.dialects.families import FAMILIES
from tests.server.dialects.scripted import (
    CALL_TEXT,
    MOVE,
    USER,
    Gateway,
    ScriptedEngine,
    assembled,
    body,
    gateway,
    message_of,
)
from tests.support.tiers import examples

ALL_SPECIALS = SPECIALS | MORE_SPECIALS | {"gpt-oss": HARMONY, "default": [*CHATML, *THINK]}


async def test_chunks_in_order():
    gate = gateway("I am there.<|im_end|>")
    chunks = await gate.chunks(USER, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {gate.calls[0].call_id}
    texts = [c.choices[0].delta.content for c in chunks[1:-2]]
    assert len(texts) > 3
    assert "".join(text or "" for text in texts) == "I am there."
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(gate.calls[0].sampled_ids)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert gate.engine.requests[0].stream


async def test_usage_only_on_request():
    chunks = await gateway("x<|im_end|>").chunks(USER)
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_text_goes_out_as_tokens_come():
    gate = gateway("Where is the goal? Move up.<|im_end|>", hold=asyncio.Event(), hold_at=5)
    request = read_chat_request(body(USER, stream=True))
    stream = gate.service.stream(gate.session, request, gate.record)
    seen = ""
    while len(seen) < 5:
        chunk = await anext(stream)
        seen += json.loads(chunk)["choices"][0]["delta"].get("content", "")
    assert not gate.engine.hold.is_set()
    await stream.aclose()


async def test_tool_call_deltas():
    gate = gateway(f"Up.{CALL_TEXT}{CALL_TEXT}<|im_end|>")
    chunks = await gate.chunks(USER, tools=[MOVE])
    message = assembled(chunks)
    assert message["content"] == "Up."
    assert [call[1:] for call in message["tool_calls"]] == [["move", '{"direction": "up"}']] * 2
    opened = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or [] if c.id]
    begun = [(c.index, c.type, c.function.arguments) for c in opened]
    assert begun == [(0, "function", ""), (1, "function", "")]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_a_call_goes_out_when_it_is_written_and_not_at_the_end():
    gate = gateway(f"Up.{CALL_TEXT}{CALL_TEXT}<|im_end|>", hold=asyncio.Event())
    gate.engine.hold_at = len(gate.renderer.encode(f"Up.{CALL_TEXT}")) + 2
    request = read_chat_request(body(USER, stream=True, tools=[MOVE]))
    stream = gate.service.stream(gate.session, request, gate.record)
    calls: list[Any] = []
    while len(calls) < 2:
        calls += json.loads(await anext(stream))["choices"][0]["delta"].get("tool_calls", [])
    assert calls[0]["function"]["name"] == "move"
    assert calls[1]["function"]["arguments"] == '{"direction": "up"}'
    gate.engine.hold.set()
    rest = [json.loads(chunk)["choices"][0]["delta"] async for chunk in stream]
    more = [call for delta in rest for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in more] == [1, 1]
    # The id that was told is the one that is recorded.
    (recorded,) = gate.calls
    assert [c["id"] for c in json.loads(recorded.answer.tool_calls)] == [
        calls[0]["id"],
        more[0]["id"],
    ]


async def test_the_call_is_recorded_before_the_finish_is_told():
    gate = gateway("x<|im_end|>")
    request = read_chat_request(body(USER, stream=True))
    async for chunk in gate.service.stream(gate.session, request, gate.record):
        if json.loads(chunk)["choices"][0]["finish_reason"] is not None:
            assert len(gate.calls) == 1


async def test_logprobs_and_token_ids_cover_all_tokens():
    gate = gateway("😀 up<|im_end|>")
    chunks = await gate.chunks(USER, logprobs=True, return_token_ids=True)
    ids = [i for chunk in chunks for i in chunk.choices[0].model_extra["token_ids"]]
    entries = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert ids == gate.calls[0].sampled_ids
    assert [entry.logprob for entry in entries] == gate.calls[0].logprobs
    assert chunks[0].model_extra["prompt_token_ids"] == gate.calls[0].prompt_ids
    assert not any(hasattr(chunk, "prompt_token_ids") for chunk in chunks[1:])


async def test_no_half_characters():
    chunks = await gateway("🎉🜚日本<|im_end|>").chunks(USER)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(texts) == "🎉🜚日本"
    assert not any("\ufffd" in text for text in texts)


async def test_several_choices():
    gate = gateway(["I am there.<|im_end|>", f"{CALL_TEXT}<|im_end|>"])
    chunks = await gate.chunks(USER, n=2, tools=[MOVE], stream_options={"include_usage": True})
    assert assembled(chunks, 0)["content"] == "I am there."
    assert assembled(chunks, 1)["tool_calls"][0][1] == "move"
    assert chunks[-1].usage.completion_tokens == sum(len(c.sampled_ids) for c in gate.calls)
    assert {call.call_id for call in gate.calls} == {f"{chunks[0].id}-{i}" for i in range(2)}


@pytest.mark.parametrize("n", [1, 2])
async def test_hang_up_is_recorded_as_far_as_it_came(n):
    gate = gateway("I am there.<|im_end|>", hold=asyncio.Event(), hold_at=3)
    request = read_chat_request(body(USER, stream=True, n=n))
    stream = gate.service.stream(gate.session, request, gate.record)
    await anext(stream)
    await anext(stream)
    await stream.aclose()
    assert len(gate.calls) == n
    assert {call.finish_reason for call in gate.calls} == {"abort"}
    script = gate.engine.scripts[0]
    assert all(call.sampled_ids == script[: len(call.sampled_ids)] for call in gate.calls)
    assert sorted(gate.engine.closed) == sorted(call.call_id for call in gate.calls)
    plan = gate.session.index.plan(request.messages, None)
    assert plan.restart is Continuation.FIRST_CALL


async def test_cancelled_reader_is_a_hang_up():
    gate = gateway("I am there.<|im_end|>", hold=asyncio.Event(), hold_at=2)
    task = asyncio.create_task(gate.chunks(USER))
    await gate.engine.held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [call.finish_reason for call in gate.calls] == ["abort"]
    assert gate.engine.closed == [gate.calls[0].call_id]


async def test_hang_up_after_the_last_token_is_no_abort():
    gate = gateway("x<|im_end|>")
    request = read_chat_request(body(USER, stream=True))
    stream = gate.service.stream(gate.session, request, gate.record)
    async for chunk in stream:
        if json.loads(chunk)["choices"][0]["finish_reason"]:
            break
    await stream.aclose()
    assert [call.finish_reason for call in gate.calls] == ["stop"]


async def test_errors_come_before_the_first_chunk():
    gate = Gateway(ScriptedEngine([[]]), renderer_for("qwen3"), max_context=4)
    stream = gate.service.stream(gate.session, read_chat_request(body(USER)), gate.record)
    with pytest.raises(ContextLengthError):
        await anext(stream)
    gate = gateway("")
    stream = gate.service.stream(gate.session, read_chat_request(body(USER)), gate.record)
    with pytest.raises(EngineError):
        await anext(stream)


@pytest.mark.parametrize("n", [2, 3])
async def test_a_failing_choice_fails_the_stream_and_ends_the_others(n):
    gate = gateway(["", "I am there.<|im_end|>"])
    with pytest.raises(EngineError):
        await gate.chunks(USER, n=n)
    assert len(gate.engine.closed) == len(gate.engine.requests)


async def test_parses_are_linear_in_the_answer(monkeypatch):
    gate = gateway("up " * 2000 + "<|im_end|>")
    parsed = []
    original = gate.renderer.parse
    counting = lambda ids, *rest: parsed.append(len(ids)) or original(ids, *rest)  # noqa: E731
    monkeypatch.setattr(gate.renderer, "parse", counting)
    await gate.chunks(USER)
    assert sum(parsed) < 80 * len(gate.calls[0].sampled_ids)


@pytest.mark.parametrize("name", FAMILIES)
async def test_text_of_every_family_goes_out_as_tokens_come(name):
    chunks = await FAMILIES[name].gate(FAMILIES[name].said("I am there. I see you.")).chunks(USER)
    texts = [text for c in chunks if (text := c.choices[0].delta.content)]
    assert len(texts) > 3
    assert "".join(texts) == "I am there. I see you."


async def test_json_that_may_be_a_call_goes_out_at_the_end():
    text = '{"name": "move", "parameters": {"direction": "up"}}'
    called = await gateway(f"{text}<|eot_id|>", "llama-3").chunks(USER, tools=[MOVE])
    assert assembled(called)["content"] is None
    assert assembled(called)["tool_calls"][0][1] == "move"
    said = await gateway(f"{text}.<|eot_id|>", "llama-3").chunks(USER, tools=[MOVE])
    assert [c for chunk in said if (c := chunk.choices[0].delta.content)] == [f"{text}."]


async def test_a_header_within_an_answer_takes_nothing_back():
    header = "<|start_header_id|>assistant<|end_header_id|>"
    said = f"One{header}two"
    streamed = await gateway(f"{said}<|eot_id|>", "llama-3").chunks(USER)
    assert assembled(streamed)["content"] == said
    # Its own header once more is none of its text.
    for text in ("One", said):
        streamed = await gateway(f"{header}\n\n{text}<|eot_id|>", "llama-3").chunks(USER)
        assert assembled(streamed)["content"] == text


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2", "minimax-m2"])
async def test_a_call_that_turns_out_to_be_reasoning_is_not_sent(name):
    call = {
        "qwen3": CALL_TEXT,
        "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.move:0"
        '<|tool_call_argument_begin|>{"direction": "up"}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        "minimax-m2": '<minimax:tool_call>\n<invoke name="move">\n<parameter name="direction">up'
        "</parameter>\n</invoke>\n</minimax:tool_call>",
    }[name]
    for text in (f"<think>hm{call}hm</think>Up.", f"<think>hm{call}", f"<think>hm</think>{call}"):
        streamed = assembled(await gateway(text, name).chunks(USER, tools=[MOVE]))
        whole = message_of(await gateway(text, name).complete(USER, tools=[MOVE]))
        assert streamed == whole
        assert len(whole["tool_calls"]) == (not text.endswith("Up."))


@pytest.mark.parametrize("settles", [True, False])
async def test_text_that_no_parser_reads_goes_out_as_tokens_come(settles):
    # Also of families whose answers go out in one piece.
    renderer = copy.copy(renderer_for("llama-3"))
    renderer.stable_prefix = renderer.stable_prefix if settles else None
    gate = Gateway(ScriptedEngine([renderer.encode("{I am there.")]), renderer)
    request, _ = read_completions_request(b'{"prompt": "x", "stream": true, "max_tokens": 50}')
    exchange = await gate.service.completions.begin(gate.session, request, gate.record)
    texts = []
    async for event in gate.service.completions.events(exchange):
        match event:
            case ChoiceDelta(_, delta):
                texts.append(delta.content)
            case Choice(_, _, answer, _, rest):
                texts.append(rest.content)
    assert len([text for text in texts[:-1] if text]) > 3
    assert "".join(texts) == answer.content == "{I am there."


PIECES = [
    '{"name": "move", "arguments": {"direction": "up"}}',
    "move",
    "direction",
    "up",
    "hello",
    " \n",
    "\n\n",
    "assistant\n",
    "<think>",
    "</think>",
    "<",
    "< ",
    "[[[",
    "😀",
    "é",
    "日本",
    "\ufffd",
    "<function=move>\n<parameter=direction>\nup\n</parameter>\n</function>",
    CALL_TEXT,
    "<thi",
    '{"name": "move", "parameters": {"direction": "up"}}',
    "<think>\n",
    "\n</think>\n\n",
    "{",
    "}",
    "<|im_start|>assistant\n",
    "<|im_assistant|>assistant<|im_middle|>",
    "]~b]ai\n",
    "<assistant>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<\uff5cAssistant\uff5c>",
    "<|start|>assistant to=functions.move<|channel|>commentary<|message|>",
    "<|im_end",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|end|><|start|>assistant<|channel|>analysis<|message|>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.move:0<|tool_call_argument_begin|>",
    '{"direction": "up"}<|tool_call_end|><|tool_calls_section_end|>',
    '{"direction": "up"}<|call|>',
    (
        '<minimax:tool_call>\n<invoke name="move">\n<parameter name="direction">up</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
]


def family_renderer(name):
    return FAMILIES[name].renderer() if name in FAMILIES else renderer_for(name)


def plain(message):
    """A message without ids, which are drawn as they are needed."""
    return {**message, "tool_calls": [call[1:] for call in message["tool_calls"]]}


def is_json(text):
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@st.composite
def sampled(draw, name):
    """Token ids as a model in training might sample them: tags in any order, and texts between."""
    renderer = family_renderer(name)
    specials = [renderer.encode(text)[0] for text in ALL_SPECIALS[name]]
    piece = (
        st.sampled_from(specials).map(lambda i: [i])
        | st.sampled_from(PIECES).map(renderer.encode)
        # Tags spelled out in ordinary tokens are no tags.
        | st.sampled_from(PIECES).map(lambda text: [i for c in text for i in renderer.encode(c)])
        | st.integers(0, 500).map(lambda i: [i])
    )
    return [i for ids in draw(st.lists(piece, min_size=1, max_size=14)) for i in ids]


@pytest.mark.parametrize("name", STREAMED_FAMILIES)
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_streamed_or_not_the_message_is_the_same(name, data):
    ids, renderer = data.draw(sampled(name)), family_renderer(name)
    tools = data.draw(st.sampled_from([{}, {"tools": [MOVE]}]))
    stop = data.draw(st.sampled_from([{}, {"stop": ["hello", "e"]}, {"stop": "<tool"}]))
    size = data.draw(st.integers(1, 5))
    finish = data.draw(st.sampled_from(["stop", "length"]))

    async def both():
        gates = [Gateway(ScriptedEngine([ids], size, finish), renderer) for _ in range(2)]
        whole = await gates[0].complete(USER, **tools, **stop)
        chunks = await gates[1].chunks(USER, **tools, **stop)
        streamed, complete = plain(assembled(chunks)), plain(message_of(whole))
        if len(streamed["tool_calls"]) > len(complete["tool_calls"]):
            # A call that was begun and never became one stays a call in a stream, and is text in a
            # whole answer.
            assert name in TAGGED_FAMILIES
            others = list(streamed["tool_calls"])
            (begun,) = [call for call in others if not is_json(call[1])]
            others.remove(begun)
            assert others == complete["tool_calls"]
            assert (complete["content"] or "").startswith(streamed["content"] or "")
            return
        assert streamed == complete
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        one, two = [
            (c.sampled_ids, c.answer.content, len(c.answer.tool_calls))
            for g in gates
            for c in g.calls
        ]
        assert one == two

    asyncio.run(both())


def test_text_of_a_tokenizer_that_takes_spaces_out_is_not_settled():
    tokenizer = FAMILIES["default"].renderer()._tokenizer
    tidy: Any = copy.copy(tokenizer)
    tidy.clean_up_tokenization_spaces = True
    assert StablePrefix.of("default", tokenizer) is not None
    assert StablePrefix.of("default", tidy) is None
