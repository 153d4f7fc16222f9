"""Cases of the OpenAI Agents SDK: responses by default, and chat completions."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from compat_cases import contract

client = AsyncOpenAI(base_url=contract.NOWHERE, api_key="sk-real")
open_door = function_tool(contract.open_door)
worker = Agent(name="worker", model=OpenAIResponsesModel("gpt-5", client), tools=[open_door])
chat_worker = Agent(
    name="worker", model=OpenAIChatCompletionsModel("gpt-5", client), tools=[open_door]
)


class Choice(BaseModel):
    door: Literal["left", "middle", "right"]


async def two_turns(task: str) -> str:
    return str((await Runner.run(worker, task)).final_output)


async def streaming(task: str) -> str:
    result = Runner.run_streamed(worker, task)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    result = await Runner.run(chat_worker, task)
    calls: list[Any] = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    return [json.loads(call.arguments)["door"] for call in calls]


async def structured_output(task: str) -> dict[str, Any]:
    chooser = Agent(name="worker", model=worker.model, output_type=Choice)
    return (await Runner.run(chooser, task)).final_output.model_dump()


async def structured_with_tools(task: str) -> dict[str, Any]:
    chooser = Agent(name="worker", model=worker.model, tools=[open_door], output_type=Choice)
    return (await Runner.run(chooser, task)).final_output.model_dump()


async def rate_limited(task: str) -> str:
    return str((await Runner.run(chat_worker, task)).final_output)


bad_arguments = two_turns
server_error = two_turns
