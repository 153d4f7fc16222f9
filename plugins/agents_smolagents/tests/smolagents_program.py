"""A planner and a worker that know nothing of training: each play has its own, since they remember."""

from __future__ import annotations

import asyncio
import contextvars
import os
from concurrent.futures import ThreadPoolExecutor

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(
    "any-model",
    api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
    api_key="none",
    # A scripted model cannot be forced to call a tool.
    tool_choice="auto",
)


@tool
def open_door(door: str) -> str:
    """Open a door.

    Args:
        door: left, middle or right.
    """
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


def make_planner() -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=[],
        model=model,
        name="planner",
        description="Plans.",
        instructions="Say in one sentence which door to take: left, middle or right.",
        max_steps=3,
        verbosity_level=LogLevel.OFF,
    )


def make_worker() -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=[open_door],
        model=model,
        name="worker",
        description="Opens doors.",
        instructions="Open the door that the plan names, then say what you found.",
        max_steps=5,
        verbosity_level=LogLevel.OFF,
    )


def doors(agent: ToolCallingAgent) -> list[str]:
    return [
        call.arguments.get("door", "")
        for step in agent.memory.steps
        for call in getattr(step, "tool_calls", None) or []
        if call.name == "open_door"
    ]


def play_sync(task: str) -> list[str]:
    plan = make_planner().run(task)
    worker = make_worker()
    worker.run(f"{task}\nThe plan: {plan}")
    return doors(worker)


_threads = ThreadPoolExecutor(64)


async def play(task: str) -> list[str]:
    run = contextvars.copy_context().run
    return await asyncio.get_running_loop().run_in_executor(_threads, run, play_sync, task)
