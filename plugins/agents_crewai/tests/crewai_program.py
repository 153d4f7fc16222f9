"""A crew of two agents that knows nothing of training."""

from __future__ import annotations

import json
import os
from typing import Any

from crewai import LLM, Agent, Crew, CrewOutput, Process, Task
from crewai.tools import tool

URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
llm = LLM(model="any-model", provider="openai", base_url=URL, api_key="none")


@tool("open_door")
def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


planner = Agent(
    role="planner",
    goal="Say in one sentence which door to take: left, middle or right.",
    backstory="You plan.",
    llm=llm,
)
worker = Agent(
    role="worker",
    goal="Open the door that the plan names, then say what you found.",
    backstory="You open doors.",
    llm=llm,
    tools=[open_door],
)
plan = Task(
    name="plan",
    description="{task}\nSay which door to take.",
    expected_output="One sentence.",
    agent=planner,
)
work = Task(
    name="work",
    description="{task}\nOpen the door that the plan names.",
    expected_output="What was found.",
    agent=worker,
    context=[plan],
)
crew = Crew(
    name="doors",
    agents=[planner, worker],
    tasks=[plan, work],
    process=Process.sequential,
    cache=False,
    verbose=False,
)


def doors(output: Any) -> list[str]:
    assert isinstance(output, CrewOutput)
    return [
        json.loads(call["function"]["arguments"]).get("door", "")
        for message in output.tasks_output[-1].messages
        for call in message.get("tool_calls") or ()
        if call["function"]["name"] == "open_door"
    ]


async def play(task: str) -> list[str]:
    return doors(await crew.copy().akickoff(inputs={"task": task}))


async def play_in_threads(task: str) -> list[str]:
    return doors(await crew.copy().kickoff_async(inputs={"task": task}))


def play_sync(task: str) -> list[str]:
    return doors(crew.copy().kickoff(inputs={"task": task}))
