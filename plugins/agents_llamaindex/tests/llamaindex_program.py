"""A planner and a worker that know nothing of training."""

from __future__ import annotations

import os
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model="any-model",
    api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
)


def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


planner = FunctionAgent(
    name="planner",
    description="Plans.",
    system_prompt="Say in one sentence which door to take: left, middle or right.",
    llm=llm,
)
worker = FunctionAgent(
    name="worker",
    description="Opens doors.",
    system_prompt="Open the door that the plan names, then say what you found.",
    tools=[open_door],
    llm=llm,
)


def doors(result: Any) -> list[str]:
    return [
        call.tool_kwargs.get("door", "")
        for call in result.tool_calls
        if call.tool_name == "open_door"
    ]


async def play(task: str) -> list[str]:
    plan = await planner.run(user_msg=task)
    return doors(await worker.run(user_msg=f"{task}\nThe plan: {plan}"))
