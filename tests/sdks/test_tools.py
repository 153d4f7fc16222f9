"""Tools that programs group, defer or answer with images, and thinking that they send back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.sdks import CALLED, ENDED, SCHEMA, Agent

pytestmark = pytest.mark.processes

NAMESPACE = {
    "type": "namespace",
    "name": "mcp__board",
    "description": "Moves pieces.",
    "tools": [
        {"type": "function", "name": "move", "description": "Moves.", "parameters": SCHEMA},
        {"type": "function", "name": "look", "parameters": SCHEMA},
        {"type": "custom", "name": "edit"},
    ],
}
FLAT = CALLED.replace('"move"', '"mcp__board__move"')
ASKED: dict[str, Any] = {"role": "user", "content": "Where are you?"}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
SEARCH = {"name": "ToolSearch", "description": "Finds.", "input_schema": SCHEMA}
MOVE = {"name": "move", "description": "Moves.", "input_schema": SCHEMA, "defer_loading": True}


def messages_settings(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 200, "tools": list(tools)}


async def test_tools_of_namespaces_are_called_by_their_own_names(model_says) -> None:
    agent: Agent = await model_says(f"{FLAT}{ENDED}")
    tools = [{"type": "function", "name": "wait", "parameters": SCHEMA}, NAMESPACE]
    settings: dict[str, Any] = {"model": "any", "tools": tools}
    async with agent.openai as client:
        raw = await client.responses.with_raw_response.create(input="Go.", **settings)
        assert raw.headers["x-ajet-ignored"] == "tools[1].tools[2]"
        whole = raw.parse()
        async with client.responses.stream(input="Go.", **settings) as stream:
            streamed = await stream.get_final_response()
        for response in (whole, streamed):
            (call,) = response.output
            assert (call.type, call.namespace, call.name) == ("function_call", "mcp__board", "move")
        sent = call.model_dump(include={"type", "call_id", "namespace", "name", "arguments"})
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "moved"}
        start = {"role": "user", "content": "Go."}
        await client.responses.create(input=[start, sent, result], **settings)
    _, one, two = await agent.calls()
    # The model saw one list of tools, and its call came back as it had written it.
    offered = [tool["function"] for tool in json.loads(one.tools)]
    assert [tool["name"] for tool in offered] == ["wait", "mcp__board__move", "mcp__board__look"]
    assert offered[1]["description"] == "Tools mcp__board__*: Moves pieces.\n\nMoves."
    assert two.prompt_ids[: one.length] == one.token_ids


async def test_a_tool_of_a_namespace_differs_from_others_of_its_name(model_says) -> None:
    agent: Agent = await model_says(f"{CALLED}{ENDED}")
    namespace = {**NAMESPACE, "name": "a", "tools": [{"type": "function", "name": "b"}]}
    tools: Any = [namespace, *({"type": "function", "name": name} for name in ("a__b", "move"))]
    async with agent.openai as client:
        response = await client.responses.create(model="any", input="Go.", tools=tools)
    (call,) = response.output
    assert (call.name, call.namespace) == ("move", None)
    (recorded,) = await agent.calls()
    names = [tool["function"]["name"] for tool in json.loads(recorded.tools)]
    assert names == ["a__b_", "a__b", "move"]


async def test_deferred_tools_are_defined_where_a_result_refers_to_them(model_says) -> None:
    agent: Agent = await model_says(f"{CALLED}{ENDED}")
    settings = messages_settings(SEARCH, MOVE)
    use = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"direction": "x"}}
    references = [
        {"type": "tool_reference", "tool_name": name} for name in ("move", "ToolSearch", "fly")
    ]
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": references}
    asked: list[Any] = [
        ASKED,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [found]},
    ]
    async with agent.anthropic as client:
        raw = await client.messages.with_raw_response.create(messages=asked, **settings)
        assert "x-ajet-ignored" not in raw.headers
        first = await raw.parse()
        (called,) = first.content
        assert (called.type, called.name) == ("tool_use", "move")
        asked += [
            {"role": "assistant", "content": first.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": called.id, "content": "moved"}],
            },
        ]
        await client.messages.create(messages=asked, **settings)
    one, two = await agent.calls()
    offered = [tool["function"]["name"] for tool in json.loads(one.tools)]
    assert offered == ["ToolSearch"]
    shown = one.conversation()[-1].text.content.split("\n\n")
    told, _, definition = shown[0].partition("\n")
    assert told == "Tool move can now be called:"
    assert json.loads(definition)["function"] == {
        "name": "move",
        "description": "Moves.",
        "parameters": SCHEMA,
    }
    assert shown[1:] == ["Tool ToolSearch can be called.", "Tool fly is not available."]
    assert two.prompt_ids[: one.length] == one.token_ids


async def test_deferred_tools_that_nothing_would_load_are_offered(model_says) -> None:
    agent: Agent = await model_says(f"{CALLED}{ENDED}")
    of_provider = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    async with agent.anthropic as client:
        for tools in ([of_provider, MOVE], [MOVE]):
            message = await client.messages.create(messages=[ASKED], **messages_settings(*tools))
            assert [block.type for block in message.content] == ["tool_use"]
    for call in await agent.calls():
        assert [tool["function"]["name"] for tool in json.loads(call.tools)] == ["move"]


async def test_an_image_in_a_result_is_replaced_and_named(model_says) -> None:
    agent: Agent = await model_says(f"I see.{ENDED}")
    note = {"type": "text", "text": "Shot:"}
    of_claude: Any = [note, {"type": "image", "source": PIXEL}]
    use: Any = {"type": "tool_use", "id": "t", "name": "move", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "t", "content": of_claude}
    url = "data:image/png;base64,iVBORw0KGgo="
    call: Any = {"id": "t", "type": "function", "function": {"name": "move", "arguments": "{}"}}
    of_chat: Any = [note, {"type": "image_url", "image_url": {"url": url}}]
    of_responses: Any = [
        {"type": "input_text", "text": "Shot:"},
        {"type": "input_image", "image_url": url},
    ]
    item: Any = {"type": "function_call", "call_id": "t", "name": "move", "arguments": "{}"}
    async with agent.anthropic as anthropic, agent.openai as openai:
        claude = await anthropic.messages.with_raw_response.create(
            messages=[
                ASKED,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ],
            **messages_settings(MOVE),
        )
        chat = await openai.chat.completions.with_raw_response.create(
            model="any",
            messages=[
                ASKED,
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "t", "content": of_chat},
            ],
        )
        responses = await openai.responses.with_raw_response.create(
            model="any",
            input=[
                ASKED,
                item,
                {"type": "function_call_output", "call_id": "t", "output": of_responses},
            ],
        )
    assert claude.headers["x-ajet-ignored"] == "tool_result.image"
    assert chat.headers["x-ajet-ignored"] == "tool.image_url"
    assert responses.headers["x-ajet-ignored"] == "function_call_output.input_image"
    shown = [call.conversation()[-1].text.content for call in await agent.calls()]
    assert shown == [
        "Shot:\n\n[image not shown: this model reads text only]",
        "Shot:[image_url not shown: this model reads text only]",
        "Shot:[input_image not shown: this model reads text only]",
    ]


async def test_signed_thinking_continues_the_conversation(model_says) -> None:
    thought = f"<think>\nWhere is up?\n</think>\n\n{CALLED}{ENDED}"
    agent: Agent = await model_says(thought)
    settings = messages_settings({**MOVE, "defer_loading": False})
    async with agent.anthropic as client:
        whole = await client.messages.create(messages=[ASKED], **settings)
        async with client.messages.stream(messages=[ASKED], **settings) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            # As a program does that drops what is not signed.
            kept = [b for b in message.content if b.type != "thinking" or b.signature]
            assert [block.type for block in kept] == ["thinking", "tool_use"]
        result = {"type": "tool_result", "tool_use_id": kept[-1].id, "content": "moved"}
        answer: list[Any] = [
            ASKED,
            {"role": "assistant", "content": kept},
            {"role": "user", "content": [result]},
        ]
        await client.messages.create(messages=answer, **settings)
    _, one, two = await agent.calls()
    assert two.prompt_ids[: one.length] == one.token_ids
