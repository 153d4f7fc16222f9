"""The SDKs put a tool call together whose arguments come piece by piece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from ajet_testing.servers import Running
from tests.support.sdks import ENDED, Agent

pytestmark = pytest.mark.processes

ASKED: list[Any] = [{"role": "user", "content": "Write it."}]
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
}
ARGUMENTS = {"path": "a.py", "content": '  print("hello")\n'}
CALLED = (
    "<tool_call>\n<function=write>\n<parameter=path>\na.py\n</parameter>\n<parameter=content>\n"
    '  print("hello")\n\n</parameter>\n</function>\n</tool_call>'
)


@pytest.fixture
async def writer(server: Running, model_dir: Path) -> Agent:
    """An agent whose model calls a tool, in a family that writes arguments between tags."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = tokenizer.encode(f"Now.{CALLED}{ENDED}", add_special_tokens=False).ids
    model = {"path": str(model_dir), "renderer": "prime-qwen3"}
    await server.roll(model=model, engine={"reply_ids": ids, "chunk_tokens": 1})
    return Agent(server, await server.claim())


async def test_each_sdk_adds_the_pieces_up(writer: Agent) -> None:
    pytest.importorskip("anthropic")
    pieces: list[str] = []
    async with writer.anthropic as client:
        tools: list[Any] = [{"name": "write", "input_schema": SCHEMA}]
        settings: dict[str, Any] = {"model": "any", "max_tokens": 500, "messages": ASKED}
        async with client.messages.stream(tools=tools, **settings) as stream:
            async for event in stream:
                if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    pieces.append(event.delta.partial_json)
            message = await stream.get_final_message()
    assert message.content[-1].input == ARGUMENTS
    assert len(pieces) > 10
    assert json.loads("".join(pieces)) == ARGUMENTS
    async with writer.openai as client:
        tools = [{"type": "function", "name": "write", "parameters": SCHEMA}]
        async with client.responses.stream(model="any", input="x", tools=tools) as stream:
            kinds = [event.type async for event in stream]
            response = await stream.get_final_response()
        assert json.loads(response.output[-1].arguments) == ARGUMENTS
        assert kinds.count("response.function_call_arguments.delta") > 10
        tools = [{"type": "function", "function": {"name": "write", "parameters": SCHEMA}}]
        async with client.chat.completions.stream(
            model="any", messages=ASKED, tools=tools
        ) as stream:
            types: list[str] = [event.type async for event in stream]
            spoken: Any = (await stream.get_final_completion()).choices[0].message
        (call,) = spoken.tool_calls
        assert json.loads(call.function.arguments) == ARGUMENTS
        assert types.count("tool_calls.function.arguments.delta") > 10
    assert [call.finish_reason for call in await writer.calls()] == ["stop"] * 3


@pytest.mark.parametrize("most", [500, 40])
async def test_googles_sdk_gets_whole_calls_only(writer: Agent, most: int) -> None:
    """A call that is cut off remains text, as in an answer that is not streamed."""
    pytest.importorskip("google.genai")
    tools = [{"function_declarations": [{"name": "write", "parameters_json_schema": SCHEMA}]}]
    config: Any = {"tools": tools, "max_output_tokens": most}
    models = writer.google.aio.models
    terms: Any = {"model": "any", "contents": "x", "config": config}
    whole = (await models.generate_content(**terms)).candidates[0]
    chunks = [chunk async for chunk in await models.generate_content_stream(**terms)]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    calls = [part.function_call for part in parts if part.function_call]
    assert [call.args for call in calls] == ([ARGUMENTS] if most == 500 else [])
    text = "".join(part.text or "" for part in parts)
    assert text == "".join(part.text or "" for part in whole.content.parts)
    assert ("<tool_call>" in text) == (most == 40)
    assert chunks[-1].candidates[0].finish_reason == whole.finish_reason
