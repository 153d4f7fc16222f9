"""A planner and a worker that know nothing of training."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pydantic_ai import Agent, ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(
    "any-model",
    provider=OpenAIProvider(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"), api_key="none"
    ),
)

planner = Agent(
    model,
    name="planner",
    instructions="Say in one sentence which door to take: left, middle or right.",
)
worker = Agent(
    model,
    name="worker",
    instructions="Open the door that the plan names, then say what you found.",
)


@worker.tool_plain
def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


def doors(messages: Iterable[ModelMessage]) -> list[str]:
    return [
        part.args_as_dict().get("door", "")
        for message in messages
        for part in message.parts
        if part.part_kind == "tool-call" and part.tool_name == "open_door"
    ]


async def play(task: str) -> list[str]:
    plan = await planner.run(task)
    return doors((await worker.run(f"{task}\nThe plan: {plan.output}")).all_messages())


def play_sync(task: str) -> list[str]:
    plan = planner.run_sync(task)
    return doors(worker.run_sync(f"{task}\nThe plan: {plan.output}").all_messages())
