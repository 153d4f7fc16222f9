"""Cases of CrewAI."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel

from compat_cases import contract

# In these cases the program calls the model without an agent.
NAMELESS = frozenset({"structured_output"})
OPTIONS: dict[str, Any] = {
    "model": "any-model",
    "provider": "openai",
    "base_url": contract.NOWHERE,
    "api_key": "sk-real",
}
llm = LLM(**OPTIONS)


@tool("open_door")
def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    return contract.open_door(door)


class Choice(BaseModel):
    door: Literal["left", "middle", "right"]


def crew(**options: Any) -> Crew:
    """Create a crew for one run, because crews keep their inputs."""
    worker = Agent(role="worker", goal="Do it.", backstory="You do.", llm=llm, tools=[open_door])
    work = Task(description="{task}", expected_output="What was found.", agent=worker)
    return Crew(agents=[worker], tasks=[work], cache=False, verbose=False, **options)


async def two_turns(task: str) -> str:
    return (await crew().akickoff(inputs={"task": task})).raw


async def streaming(task: str) -> str:
    streamed = await crew(stream=True).akickoff(inputs={"task": task})
    pieces = [chunk.content async for chunk in streamed if chunk.content]
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    output = await crew().akickoff(inputs={"task": task})
    return [
        json.loads(call["function"]["arguments"])["door"]
        for message in output.tasks_output[-1].messages
        for call in message.get("tool_calls") or ()
    ]


def structured_output(task: str) -> dict[str, Any]:
    found = LLM(**OPTIONS).call(task, response_model=Choice)
    return found.model_dump() if isinstance(found, BaseModel) else json.loads(found)


async def structured_with_tools(task: str) -> dict[str, Any]:
    crew_of_task = crew()
    crew_of_task.tasks[0].output_pydantic = Choice
    found = (await crew_of_task.akickoff(inputs={"task": task})).pydantic
    assert isinstance(found, Choice)
    return found.model_dump()


bad_arguments = two_turns
server_error = two_turns


def rate_limited(task: str) -> str:
    """Use the synchronous API."""
    return crew().kickoff(inputs={"task": task}).raw
