"""Cases of OpenAI's SDK with the responses API."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from compat_cases.contract import CASES, NOWHERE, SCHEMA, open_door

NAMELESS = frozenset(CASES)
client = AsyncOpenAI(base_url=NOWHERE, api_key="sk-real")
TOOL: Any = {
    "type": "function",
    "name": "open_door",
    "strict": False,
    "parameters": {"type": "object", "properties": {"door": {"type": "string"}}},
}

FORM: Any = {"type": "json_schema", "name": "door", "strict": True, "schema": SCHEMA}


def outputs(response: Any) -> list[Any]:
    """Return the tool's result for each call."""
    found = []
    for item in response.output:
        if item.type == "function_call":
            try:
                said = open_door(**json.loads(item.arguments))
            except (TypeError, ValueError) as error:
                said = f"Error: {error}"
            found.append({"type": "function_call_output", "call_id": item.call_id, "output": said})
    return found


async def converse(task: str, **options: Any) -> list[Any]:
    """Return all responses of an agent with the tool; each continues the previous one."""
    asked: dict[str, Any] = {"model": "gpt-5", "tools": [TOOL], **options}
    responses = [await client.responses.create(input=task, **asked)]
    while following := outputs(responses[-1]):
        responses.append(
            await client.responses.create(
                input=following, previous_response_id=responses[-1].id, **asked
            )
        )
    return responses


async def two_turns(task: str) -> str:
    return (await converse(task))[-1].output_text


async def streaming(task: str) -> str:
    items: list[Any] = [{"role": "user", "content": task}]
    while True:
        async with client.responses.stream(model="gpt-5", input=items, tools=[TOOL]) as stream:
            pieces = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            response = await stream.get_final_response()
        following = outputs(response)
        if not following:
            assert len(pieces) > 1
            return "".join(pieces)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        items += following


async def parallel_calls(task: str) -> list[str]:
    first = (await converse(task))[0]
    return [json.loads(i.arguments)["door"] for i in first.output if i.type == "function_call"]


async def structured_output(task: str) -> dict[str, Any]:
    answer = await client.responses.create(model="gpt-5", input=task, text={"format": FORM})
    return json.loads(answer.output_text)


async def structured_with_tools(task: str) -> dict[str, Any]:
    return json.loads((await converse(task, text={"format": FORM}))[-1].output_text)


bad_arguments = two_turns
rate_limited = two_turns
server_error = two_turns
