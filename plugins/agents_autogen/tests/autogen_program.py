"""A team of two agents that knows nothing of training."""

from __future__ import annotations

import json
import os
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ToolCallRequestEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
client = OpenAIChatCompletionClient(
    model="any-model",
    base_url=URL,
    api_key="none",
    model_info=ModelInfo(
        vision=False,
        function_calling=True,
        json_output=True,
        structured_output=True,
        family=ModelFamily.UNKNOWN,
    ),
)


def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


def make_planner(**options: Any) -> AssistantAgent:
    system = "Say in one sentence which door to take: left, middle or right."
    return AssistantAgent("planner", client, system_message=system, **options)


def make_worker(**options: Any) -> AssistantAgent:
    system = "Open the door that the planner names, then say what you found."
    # With one iteration, the default, the worker would say nothing after its tool.
    with_tool: dict[str, Any] = {"tools": [open_door], "max_tool_iterations": 2}
    return AssistantAgent("worker", client, system_message=system, **{**with_tool, **options})


def make_team(**options: Any) -> RoundRobinGroupChat:
    agents = [make_planner(**options), make_worker(**options)]
    return RoundRobinGroupChat(agents, max_turns=2)


worker = make_worker()
team = make_team()


def doors(result: TaskResult) -> list[str]:
    return [
        json.loads(call.arguments).get("door", "")
        for message in result.messages
        if isinstance(message, ToolCallRequestEvent)
        for call in message.content
        if call.name == "open_door"
    ]


async def play(task: str) -> list[str]:
    return doors(await make_team().run(task=task))


async def play_streamed(task: str) -> list[str]:
    async for message in make_team(model_client_stream=True).run_stream(task=task):
        if isinstance(message, TaskResult):
            return doors(message)
    raise AssertionError("a stream ends with the result")
