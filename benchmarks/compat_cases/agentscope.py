"""Cases of AgentScope."""

from __future__ import annotations

import copy
import json
from typing import Any, Literal

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.event import EventType
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit
from pydantic import BaseModel

from compat_cases import contract

# In these cases the program calls the model without an agent.
NAMELESS = frozenset({"structured_output"})
credential = OpenAICredential(api_key="sk-real", base_url=contract.NOWHERE)
allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="allowed")


def worker(*, stream: bool) -> Agent:
    return Agent(
        name="worker",
        system_prompt="Use the tool.",
        model=OpenAIChatModel(credential=credential, model="gpt-5", stream=stream),
        toolkit=Toolkit(tools=[FunctionTool(contract.open_door, permission=allowed)]),
    )


streaming_worker = worker(stream=True)
quiet_worker = worker(stream=False)


class Choice(BaseModel):
    door: Literal["left", "middle", "right"]


def fresh(agent: Agent) -> Agent:
    """Return a copy with a separate conversation."""
    twin = copy.copy(agent)
    twin.state = AgentState()
    return twin


def asked(task: str) -> UserMsg:
    return UserMsg(name="user", content=task)


async def two_turns(task: str) -> str:
    return (await fresh(quiet_worker).reply(asked(task))).get_text_content() or ""


async def streaming(task: str) -> str:
    pieces = [
        event.delta
        async for event in fresh(streaming_worker).reply_stream(asked(task))
        if event.type == EventType.TEXT_BLOCK_DELTA
    ]
    assert len(pieces) > 1
    return "".join(pieces)


async def parallel_calls(task: str) -> list[str]:
    agent = fresh(streaming_worker)
    await agent.reply(asked(task))
    return [
        json.loads(call.input)["door"]
        for message in agent.state.context
        for call in message.get_content_blocks("tool_call")
    ]


async def structured_output(task: str) -> dict[str, Any]:
    model = OpenAIChatModel(credential=credential, model="gpt-5", stream=False)
    found = await model.generate_structured_output([asked(task)], structured_model=Choice)
    return found.content


async def structured_with_tools(task: str) -> dict[str, Any]:
    """Use a tool that ends the reply; it is added to the agent, so each run creates a new one."""
    reply = await worker(stream=False).reply(asked(task), structured_schema=Choice)
    assert reply.structured_output is not None
    return reply.structured_output


bad_arguments = two_turns
server_error = two_turns


async def rate_limited(task: str) -> str:
    return (await fresh(streaming_worker).reply(asked(task))).get_text_content() or ""
