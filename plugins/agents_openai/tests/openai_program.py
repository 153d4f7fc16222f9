"""Two agents that know nothing of training."""

from __future__ import annotations

import json
import os

from agents import Agent, OpenAIChatCompletionsModel, Runner, ToolCallItem, function_tool
from agents.result import RunResultBase
from openai import AsyncOpenAI

client = AsyncOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"), api_key="none"
)
model = OpenAIChatCompletionsModel("any-model", client)


@function_tool
def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


planner = Agent(
    name="planner",
    instructions="Say in one sentence which door to take: left, middle or right.",
    model=model,
)
worker = Agent(
    name="worker",
    instructions="Open the door that the plan names, then say what you found.",
    model=model,
    tools=[open_door],
)


def doors(result: RunResultBase) -> list[str]:
    return [
        json.loads(item.raw_item.arguments).get("door", "")
        for item in result.new_items
        if isinstance(item, ToolCallItem) and item.raw_item.name == "open_door"
    ]


async def play(task: str) -> list[str]:
    plan = await Runner.run(planner, task)
    return doors(await Runner.run(worker, f"{task}\nThe plan: {plan.final_output}"))


async def play_streamed(task: str) -> list[str]:
    plan = Runner.run_streamed(planner, task)
    async for _ in plan.stream_events():
        pass
    result = Runner.run_streamed(worker, f"{task}\nThe plan: {plan.final_output}")
    async for _ in result.stream_events():
        pass
    return doors(result)


def play_sync(task: str) -> list[str]:
    plan = Runner.run_sync(planner, task)
    return doors(Runner.run_sync(worker, f"{task}\nThe plan: {plan.final_output}"))
