"""A planner and a worker without any code for training. Each play has its own: they remember."""

from __future__ import annotations

import asyncio
import contextvars
import os
from concurrent.futures import ThreadPoolExecutor

from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent, tool

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


def _make(name: str, prompt: str, steps: int, tools: list[Tool]) -> ToolCallingAgent:
    agent = ToolCallingAgent(
        tools=tools,
        model=model,
        name=name,
        description="Helps.",
        max_steps=steps,
        verbosity_level=LogLevel.OFF,
    )
    # That of smolagents is as long as all the rest together, many times over.
    agent.prompt_templates["system_prompt"] = prompt
    return agent


def make_planner() -> ToolCallingAgent:
    prompt = "Say in one sentence which door to take: left, middle or right."
    return _make("planner", prompt, 1, [])


def make_worker() -> ToolCallingAgent:
    prompt = "Open the door that the plan names, then say what you found."
    return _make("worker", prompt, 2, [open_door])


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
