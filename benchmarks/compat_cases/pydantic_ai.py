"""Cases of Pydantic AI."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.output import NativeOutput
from pydantic_ai.providers.openai import OpenAIProvider

from compat_cases import contract

model = OpenAIChatModel(
    "gpt-5", provider=OpenAIProvider(base_url=contract.NOWHERE, api_key="sk-real")
)
worker = Agent(model, name="worker")


@worker.tool_plain
def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    return contract.open_door(door)


class Choice(BaseModel):
    door: Literal["left", "middle", "right"]


chooser = Agent(model, name="worker", output_type=NativeOutput(Choice))


async def two_turns(task: str) -> str:
    return (await worker.run(task)).output


async def streaming(task: str) -> str:
    async with worker.run_stream(task) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    result = await worker.run(task)
    return [
        part.args_as_dict()["door"]
        for message in result.all_messages()
        for part in message.parts
        if part.part_kind == "tool-call"
    ]


async def structured_output(task: str) -> dict[str, Any]:
    return (await chooser.run(task)).output.model_dump()


async def structured_with_tools(task: str) -> dict[str, Any]:
    opener = Agent(
        model, name="worker", tools=[contract.open_door], output_type=NativeOutput(Choice)
    )
    return (await opener.run(task)).output.model_dump()


bad_arguments = two_turns
server_error = two_turns


def rate_limited(task: str) -> str:
    """Use the synchronous API."""
    return worker.run_sync(task).output
