"""The program of two agents that agentjet's suite describes."""

from __future__ import annotations

from strands import Agent, ToolContext, tool
from strands.models.openai import OpenAIModel

from ajet_testing.suites.agent_suite import TRAPDOOR

# Nothing listens there: in an episode, agentjet sends the requests to its own server.
model = OpenAIModel(
    client_args={"base_url": "http://127.0.0.1:9/v1", "api_key": "key"}, model_id="any"
)


@tool(context=True)
def open_door(door: str, tool_context: ToolContext) -> str:
    """Open a door.

    Args:
        door: the name of the door
    """
    opened = tool_context.agent.state.get("opened") or []
    tool_context.agent.state.set("opened", [*opened, door])
    if door == TRAPDOOR:
        raise ValueError("the floor gives way")
    return f"behind the {door} door"


def make_planner() -> Agent:
    return Agent(
        name="planner",
        model=model,
        system_prompt="You are the planner. Name the door to take.",
        callback_handler=None,
    )


def make_worker() -> Agent:
    return Agent(
        name="worker",
        model=model,
        system_prompt="You are the worker. Open the door.",
        tools=[open_door],
        callback_handler=None,
    )


async def play(task: str) -> list[str]:
    """Run both agents, and return the doors that were opened."""
    advice = await make_planner().invoke_async(f"Which door, {task}?")
    worker = make_worker()
    await worker.invoke_async(f"{task}: {advice}")
    return list(worker.state.get("opened") or [])


def play_sync(task: str) -> list[str]:
    """Do the same without an event loop."""
    advice = make_planner()(f"Which door, {task}?")
    worker = make_worker()
    worker(f"{task}: {advice}")
    return list(worker.state.get("opened") or [])
