"""A planner and a worker that know nothing of training."""

from __future__ import annotations

import os
from collections.abc import Iterable

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

model = LiteLlm(
    model="openai/any-model",
    api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
    api_key="none",
)


def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


planner = LlmAgent(
    name="planner",
    model=model,
    instruction="Say in one sentence which door to take: left, middle or right.",
)
worker = LlmAgent(
    name="worker",
    model=model,
    instruction="Open the door that the plan names, then say what you found.",
    tools=[open_door],
)


async def ask(agent: LlmAgent, question: str) -> list[Event]:
    async with InMemoryRunner(agent=agent, app_name="doors") as runner:
        session = await runner.session_service.create_session(app_name="doors", user_id="me")
        message = types.Content(role="user", parts=[types.Part(text=question)])
        return [
            event
            async for event in runner.run_async(
                user_id="me", session_id=session.id, new_message=message
            )
        ]


def doors(events: Iterable[Event]) -> list[str]:
    return [
        (call.args or {}).get("door", "")
        for event in events
        for call in event.get_function_calls()
        if call.name == "open_door"
    ]


async def play(task: str) -> list[str]:
    plan = (await ask(planner, task))[-1].content.parts[0].text
    return doors(await ask(worker, f"{task}\nThe plan: {plan}"))
