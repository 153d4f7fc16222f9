"""Cases of OpenAI's SDK, version 2 or 3, with chat completions."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI, OpenAI

from compat_cases.contract import CASES, NOWHERE, SCHEMA, open_door

NAMELESS = frozenset(CASES)
client = AsyncOpenAI(base_url=NOWHERE, api_key="sk-real")
sync_client = OpenAI(base_url=NOWHERE, api_key="sk-real")
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "open_door",
        "description": open_door.__doc__,
        "parameters": {"type": "object", "properties": {"door": {"type": "string"}}},
    },
}

FORM: Any = {
    "type": "json_schema",
    "json_schema": {"name": "door", "strict": True, "schema": SCHEMA},
}


def opened(call: Any) -> str:
    """Return the tool's result, or the error in its arguments."""
    try:
        return open_door(**json.loads(call.function.arguments))
    except (TypeError, ValueError) as error:
        return f"Error: {error}"


async def converse(task: str, **options: Any) -> list[Any]:
    """Return all messages of an agent with the tool."""
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        answer = await client.chat.completions.create(
            model="gpt-5", messages=messages, tools=[TOOL], **options
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return messages
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": opened(call)}
            for call in message.tool_calls
        ]


async def two_turns(task: str) -> str:
    return (await converse(task))[-1]["content"]


async def streaming(task: str) -> str:
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        text, calls = [], {}
        async for chunk in await client.chat.completions.create(
            model="gpt-5", messages=messages, tools=[TOOL], stream=True
        ):
            for choice in chunk.choices:
                if choice.delta.content:
                    text.append(choice.delta.content)
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(piece.index, ["", "", ""])
                    call[0] += piece.id or ""
                    call[1] += piece.function.name or ""
                    call[2] += piece.function.arguments or ""
        if not calls:
            assert len(text) > 1
            return "".join(text)
        asked = [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
            for name, tool, arguments in calls.values()
        ]
        messages.append({"role": "assistant", "content": "".join(text), "tool_calls": asked})
        messages += [
            {"role": "tool", "tool_call_id": call[0], "content": open_door(**json.loads(call[2]))}
            for call in calls.values()
        ]


async def parallel_calls(task: str) -> list[str]:
    messages = await converse(task)
    return [json.loads(call["function"]["arguments"])["door"] for call in messages[1]["tool_calls"]]


async def structured_output(task: str) -> dict[str, Any]:
    answer = await client.chat.completions.create(
        model="gpt-5", messages=[{"role": "user", "content": task}], response_format=FORM
    )
    return json.loads(answer.choices[0].message.content or "")


async def structured_with_tools(task: str) -> dict[str, Any]:
    return json.loads((await converse(task, response_format=FORM))[-1]["content"])


bad_arguments = two_turns
server_error = two_turns


def rate_limited(task: str) -> str:
    """Use the synchronous client."""
    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        answer = sync_client.chat.completions.create(model="gpt-5", messages=messages, tools=[TOOL])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or ""
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": opened(call)}
            for call in message.tool_calls
        ]
