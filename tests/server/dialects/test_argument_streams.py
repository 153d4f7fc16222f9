"""Arguments of tool calls are streamed as they are written, and are those of the complete call."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall, as_json
from ajet_server.gateway.rendering.stable_prefix import STREAMED_FAMILIES
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES
from ajet_testing.tokenizers import renderer_for
from tests.server.dialects.scripted import (
    MOVE,
    USER,
    Gateway,
    ScriptedEngine,
    assembled,
    gateway,
    message_of,
)
from tests.support.tiers import examples

WRITE = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "content": {"type": "string"},
                "mode": {"type": "integer"},
                "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "edits": {"type": "array", "items": {"type": "object"}},
            },
        },
    },
}
TOOLS = [MOVE, WRITE]
FILE = "  def f():\n    return '<b>\"1\"</b>'  # 日本 😀\n\n\nprint(f())\n"
CONTENTS = [
    FILE,
    "",
    " ",
    "\n",
    "\n  indented\n",
    "x\n\n",
    "123",
    "true",
    "null",
    "{",
    '"',
    "a\tb\\n",
    "</para",
    "<parameter",
    "</arg_",
    "</",
    "é😀",
    "</function>",
    "</parameter>",
    "</arg_value>",
    "\ufffd",
    "a </parameter",
    "<",
]
contents = st.sampled_from(CONTENTS) | st.lists(st.sampled_from(CONTENTS), max_size=3).map("".join)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "path": contents,
        "content": contents,
        "mode": st.integers(-5, 500),
        "any": st.integers(0, 99) | contents,
        "edits": st.lists(st.fixed_dictionaries({"old": contents, "new": contents}), max_size=2),
    },
).flatmap(lambda plain: st.permutations(list(plain.items())).map(dict))
calls = st.tuples(st.just("write"), arguments) | st.tuples(
    st.just("move"), st.fixed_dictionaries({"direction": contents})
)
# One family of each parser.
FORMS = ["qwen3.5", "glm-4.5", "laguna-xs-2.1", "hy3", "minimax-m2"]
FAMILIES = [name for name in STREAMED_FAMILIES if name not in ("default", "gpt-oss")]


def sampled(name: str, *called: tuple[str, dict]) -> list[int]:
    """The tokens of an answer with these calls, as the family's template writes it."""
    renderer = renderer_for(name)
    asked = ChatMessage("user", USER["content"])
    said = ChatMessage(
        "assistant",
        "Up.",
        tuple(ToolCall(f"functions.{n}:{i}", n, as_json(a)) for i, (n, a) in enumerate(called)),
    )
    prompt = renderer.render([asked], TOOLS).ids
    whole = renderer.render([asked, said], TOOLS, asking=False).ids
    common = next(
        (i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt)
    )
    # Its prompts begin the reasoning, which its template leaves out of answers that have none.
    closed = renderer.encode("</think>\n\n") if name == "minimax-m2" else []
    return closed + whole[common:].tolist()


def parts(chunks, index: int = 0) -> list[str]:
    """The arguments of a call as they came."""
    called = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or []]
    return [call.function.arguments for call in called if call.index == index]


async def both(name: str, ids: list[int], size: int = 1, finish: str = "stop"):
    """The same tokens as a whole and as a stream."""
    gates = [Gateway(ScriptedEngine([ids], size, finish), renderer_for(name)) for _ in range(2)]
    whole = message_of(await gates[0].complete(USER, tools=TOOLS))
    chunks = await gates[1].chunks(USER, tools=TOOLS)
    return whole, chunks, gates[1]


@pytest.mark.parametrize("name", TAGGED_FAMILIES)
async def test_a_long_text_leaves_as_it_is_written(name):
    ids = sampled(name, ("write", {"path": "a.py", "content": FILE, "mode": 420}))
    whole, chunks, gate = await both(name, ids)
    streamed = assembled(chunks)
    assert json.loads(whole["tool_calls"][0][2])["content"] == FILE
    assert [call[1:] for call in streamed["tool_calls"]] == [c[1:] for c in whole["tool_calls"]]
    assert len([part for part in parts(chunks) if part]) > 20
    # The id that was told first is the one that is recorded.
    (recorded,) = gate.calls
    assert json.loads(recorded.answer.tool_calls)[0]["id"] == streamed["tool_calls"][0][0]


@pytest.mark.parametrize("name", FAMILIES)
@given(called=st.lists(calls, min_size=1, max_size=2), size=st.integers(1, 5))
@settings(max_examples=examples(4), deadline=None)
def test_streamed_or_not_the_arguments_are_the_same(name, called, size):
    async def check():
        # The template of Llama 3 writes one call and no more.
        one = called[:1] if name == "llama-3" else called
        whole, chunks, _ = await both(name, sampled(name, *one), size)
        streamed = assembled(chunks)
        assert [call[1:] for call in streamed["tool_calls"]] == [c[1:] for c in whole["tool_calls"]]
        assert streamed["content"] == whole["content"]

    asyncio.run(check())


@pytest.mark.parametrize("name", FORMS)
@given(called=calls, data=st.data())
@settings(max_examples=examples(6), deadline=None)
def test_a_call_that_is_cut_off_has_the_beginning_of_its_arguments(name, called, data):
    ids = sampled(name, called)
    cut = data.draw(st.integers(1, len(ids)))

    async def check():
        complete, _, _ = await both(name, ids)
        whole, chunks, gate = await both(name, ids[:cut], finish="length")
        streamed = assembled(chunks)
        if streamed["tool_calls"] == [] or whole["tool_calls"]:
            assert streamed["content"] == whole["content"]
            return
        # As a whole it is text; as a stream it stays what it was begun as.
        ((_, tool, told),) = streamed["tool_calls"]
        ((_, same, args),) = complete["tool_calls"]
        assert (tool, streamed["content"]) == (same, "Up.")
        assert args.startswith(told)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert json.loads(gate.calls[0].answer.tool_calls)[0]["arguments"] == told

    asyncio.run(check())


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2", "deepseek-v3"])
async def test_json_that_may_turn_out_to_be_none_is_sent_whole(name):
    ids = sampled(name, ("write", {"path": "a.py", "content": FILE}))
    _, chunks, _ = await both(name, ids)
    assert len([part for part in parts(chunks) if part]) == 1


XML = (
    "</think>\n\n<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n"
    "<parameter=mode>\n{}\n</parameter>\n</function>\n</tool_call>"
)


async def test_a_call_that_goes_wrong_stays_the_call_that_it_was_begun_as():
    # Its last argument is no number after all.
    text = XML.format("many")
    gate = gateway(f"{text}<|im_end|>", "qwen3.5")
    streamed = assembled(await gate.chunks(USER, tools=TOOLS))
    assert [call[1:] for call in streamed["tool_calls"]] == [["write", '{"path": "a.py']]
    assert not streamed["content"]
    whole = message_of(await gateway(f"{text}<|im_end|>", "qwen3.5").complete(USER, tools=TOOLS))
    assert (whole["content"], whole["tool_calls"]) == (text.removeprefix("</think>\n\n"), [])
    # The conversation goes on from it.
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
            for i, n, a in streamed["tool_calls"]
        ],
    }
    result = {"role": "tool", "tool_call_id": streamed["tool_calls"][0][0], "content": "no"}
    await gate.chunks(USER, said, result, tools=TOOLS)
    one, two = gate.calls
    assert two.prompt_ids[: one.length] == one.token_ids


async def test_a_name_that_is_not_offered_is_not_begun():
    text = XML.format("5").replace("=write", "=read")
    chunks = await gateway(f"{text}<|im_end|>", "qwen3.5").chunks(USER, tools=TOOLS)
    assert len([part for part in parts(chunks) if part]) == 1
