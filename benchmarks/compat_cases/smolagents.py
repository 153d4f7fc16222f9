"""Cases of smolagents, which is synchronous."""

from __future__ import annotations

import json
from typing import Any

from smolagents import ChatMessageStreamDelta, LogLevel, OpenAIModel, ToolCallingAgent, tool

from compat_cases import contract

# In these cases the program calls the model without an agent.
NAMELESS = frozenset({"structured_output"})
model = OpenAIModel("gpt-5", api_base=contract.NOWHERE, api_key="sk-real")


@tool
def open_door(door: str) -> str:
    """Open a door.

    Args:
        door: left, middle or right.
    """
    return contract.open_door(door)


def worker(**options: Any) -> ToolCallingAgent:
    """Create an agent for one run, because agents keep their conversation."""
    return ToolCallingAgent(
        tools=[open_door], model=model, name="worker", verbosity_level=LogLevel.OFF, **options
    )


def two_turns(task: str) -> str:
    return str(worker().run(task))


def streaming(task: str) -> str:
    events = list(worker(stream_outputs=True).run(task, stream=True))
    assert sum(isinstance(event, ChatMessageStreamDelta) for event in events) > 1
    return str(events[-1].output)


def parallel_calls(task: str) -> list[str]:
    agent = worker()
    agent.run(task)
    return [
        call.arguments["door"]
        for step in agent.memory.steps
        for call in getattr(step, "tool_calls", None) or ()
        if call.name == "open_door"
    ]


def structured_output(task: str) -> dict[str, Any]:
    schema: Any = {"name": "door", "strict": True, "schema": contract.SCHEMA}
    message: Any = {"role": "user", "content": [{"type": "text", "text": task}]}
    form: Any = {"type": "json_schema", "json_schema": schema}
    answer = model.generate([message], response_format=form)
    return json.loads(str(answer.content))


# Agents of smolagents answer through tools or with code.
structured_with_tools = None
bad_arguments = two_turns
rate_limited = two_turns
server_error = two_turns
