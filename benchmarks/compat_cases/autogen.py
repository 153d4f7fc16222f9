"""Cases of AutoGen."""

from __future__ import annotations

import json
from typing import Any, Literal

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    StructuredMessage,
    ToolCallRequestEvent,
)
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from compat_cases import contract

client = OpenAIChatCompletionClient(
    model="gpt-5",
    base_url=contract.NOWHERE,
    api_key="sk-real",
    model_info={
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": "unknown",
    },
)


class Choice(BaseModel):
    door: Literal["left", "middle", "right"]


def worker(**options: Any) -> AssistantAgent:
    """Create an agent for one run, because agents keep their conversation."""
    return AssistantAgent(
        "worker", client, tools=[contract.open_door], reflect_on_tool_use=True, **options
    )


async def two_turns(task: str) -> str:
    return (await worker().run(task=task)).messages[-1].to_text()


async def streaming(task: str) -> str:
    pieces: list[str] = []
    async for event in worker(model_client_stream=True).run_stream(task=task):
        if isinstance(event, ModelClientStreamingChunkEvent):
            pieces.append(event.content)
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    messages = (await worker().run(task=task)).messages
    return [
        json.loads(call.arguments)["door"]
        for message in messages
        if isinstance(message, ToolCallRequestEvent)
        for call in message.content
    ]


async def structured_output(task: str) -> dict[str, Any]:
    chooser = AssistantAgent("worker", client, output_content_type=Choice)
    last = (await chooser.run(task=task)).messages[-1]
    assert isinstance(last, StructuredMessage)
    return last.content.model_dump()


async def structured_with_tools(task: str) -> dict[str, Any]:
    """Use strict tools, which the SDK requires together with an output format."""
    opener = FunctionTool(contract.open_door, contract.open_door.__doc__ or "", strict=True)
    chooser = AssistantAgent(
        "worker", client, tools=[opener], reflect_on_tool_use=True, output_content_type=Choice
    )
    last = (await chooser.run(task=task)).messages[-1]
    assert isinstance(last, StructuredMessage)
    return last.content.model_dump()


bad_arguments = two_turns
rate_limited = two_turns
server_error = two_turns
