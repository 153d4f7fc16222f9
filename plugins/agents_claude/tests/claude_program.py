"""A planner and a worker that know nothing of training."""

from __future__ import annotations

from typing import Any

from claude_agent_sdk import (
    AgentDefinition,
    AssistantMessage,
    ClaudeAgentOptions,
    Message,
    ToolUseBlock,
    create_sdk_mcp_server,
    query,
    tool,
)

OPEN_DOOR = "mcp__doors__open_door"


@tool("open_door", "Open one of the doors: left, middle or right.", {"door": str})
async def open_door(arguments: dict[str, Any]) -> dict[str, Any]:
    door = arguments["door"]
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    found = f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."
    return {"content": [{"type": "text", "text": found}]}


def named(name: str, prompt: str, **options: Any) -> ClaudeAgentOptions:
    """An agent that Claude Code knows by name, as it knows sub-agents."""
    return ClaudeAgentOptions(
        agents={name: AgentDefinition(description=name, prompt=prompt)},
        extra_args={"agent": name},
        tools=[],
        setting_sources=[],
        **options,
    )


planner = named("planner", "Say in one sentence which door to take: left, middle or right.")
worker = named(
    "worker",
    "Open the door that the plan names, then say what you found.",
    mcp_servers={"doors": create_sdk_mcp_server("doors", tools=[open_door])},
    allowed_tools=[OPEN_DOOR],
)


async def ask(options: ClaudeAgentOptions, question: str) -> list[Message]:
    return [message async for message in query(prompt=question, options=options)]


def doors(messages: list[Message]) -> list[str]:
    return [
        block.input.get("door", "")
        for message in messages
        if isinstance(message, AssistantMessage)
        for block in message.content
        if isinstance(block, ToolUseBlock) and block.name == OPEN_DOOR
    ]


async def play(task: str) -> list[str]:
    plan = getattr((await ask(planner, task))[-1], "result", "")
    return doors(await ask(worker, f"{task}\nThe plan: {plan}"))
