"""A planner and a worker without any code for training. Each play has its own: they remember."""

from __future__ import annotations

import json
import os

from agentscope.agent import Agent, InjectionConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, ToolBase, Toolkit

model = OpenAIChatModel(
    credential=OpenAICredential(
        api_key="none", base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    ),
    model="any-model",
)


def open_door(door: str) -> str:
    """Open a door.

    Args:
        door: left, middle or right.
    """
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


# Without the permission every call waits for somebody who says yes.
opening = FunctionTool(
    open_door, permission=PermissionDecision(behavior=PermissionBehavior.ALLOW, message="allowed")
)


def make(name: str, prompt: str, *tools: ToolBase) -> Agent:
    return Agent(
        name=name,
        system_prompt=prompt,
        model=model,
        toolkit=Toolkit(tools=list(tools)),
        # The time of day.
        injection_config=InjectionConfig(inject_runtime_state=False),
    )


def make_planner() -> Agent:
    return make("planner", "Say in one sentence which door to take: left, middle or right.")


def make_worker() -> Agent:
    return make("worker", "Open the door that the plan names, then say what you found.", opening)


def doors(agent: Agent) -> list[str]:
    return [
        json.loads(call.input).get("door", "")
        for message in agent.state.context
        for call in message.get_content_blocks("tool_call")
        if call.name == "open_door"
    ]


async def play(task: str) -> list[str]:
    plan = await make_planner().reply(UserMsg(name="user", content=task))
    worker = make_worker()
    text = f"{task}\nThe plan: {plan.get_text_content()}"
    await worker.reply(UserMsg(name="user", content=text))
    return doors(worker)
