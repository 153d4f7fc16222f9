"""Cases of Anthropic's SDK with the messages API."""

from __future__ import annotations

import json
from typing import Any

from anthropic import AsyncAnthropic

from compat_cases.contract import CASES, NOWHERE, SCHEMA, open_door

NAMELESS = frozenset(CASES)
client = AsyncAnthropic(base_url=NOWHERE.removesuffix("/v1"), api_key="sk-real")
TOOL: Any = {
    "name": "open_door",
    "input_schema": {"type": "object", "properties": {"door": {"type": "string"}}},
}
ASKED: dict[str, Any] = {"model": "claude", "max_tokens": 200}


def results(message: Any) -> list[Any]:
    """Return the tool's result for each call."""
    found = []
    for block in message.content:
        if block.type == "tool_use":
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": block.id}
            try:
                result["content"] = open_door(**block.input)
            except (TypeError, ValueError) as error:
                result |= {"content": str(error), "is_error": True}
            found.append(result)
    return found


async def converse(task: str, **options: Any) -> list[Any]:
    """Return all answers to an agent with the tool."""
    messages: list[Any] = [{"role": "user", "content": task}]
    answers = []
    while True:
        answers.append(
            await client.messages.create(messages=messages, tools=[TOOL], **ASKED, **options)
        )
        following = results(answers[-1])
        if not following:
            return answers
        messages.append({"role": "assistant", "content": answers[-1].content})
        messages.append({"role": "user", "content": following})


async def two_turns(task: str) -> str:
    return (await converse(task))[-1].content[0].text


async def streaming(task: str) -> str:
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        async with client.messages.stream(messages=messages, tools=[TOOL], **ASKED) as stream:
            pieces = [text async for text in stream.text_stream]
            answer = await stream.get_final_message()
        following = results(answer)
        if not following:
            assert len(pieces) > 1
            return "".join(pieces)
        messages.append({"role": "assistant", "content": answer.content})
        messages.append({"role": "user", "content": following})


async def parallel_calls(task: str) -> list[str]:
    first = (await converse(task))[0]
    return [block.input["door"] for block in first.content if block.type == "tool_use"]


async def structured_output(task: str) -> dict[str, Any]:
    """Use a tool that must be called, the usual way with this API."""
    answer = await client.messages.create(
        messages=[{"role": "user", "content": task}],
        tools=[{"name": "choose", "input_schema": SCHEMA}],
        tool_choice={"type": "tool", "name": "choose"},
        **ASKED,
    )
    (found,) = [block.input for block in answer.content if block.type == "tool_use"]
    return found


async def structured_with_tools(task: str) -> dict[str, Any]:
    form: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return json.loads((await converse(task, output_config=form))[-1].content[0].text)


bad_arguments = two_turns
rate_limited = two_turns
server_error = two_turns
