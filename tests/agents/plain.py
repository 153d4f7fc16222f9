"""A minimal framework on OpenAI's SDK, and a program of two agents that uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from openai import AsyncOpenAI, OpenAI

from agentjet.agents import current_route, text_of_task
from ajet_core.interfaces import AgentAdapter
from ajet_core.plugin import AgentSpec, hookimpl

speaking: ContextVar[str | None] = ContextVar("speaking", default=None)
# Nobody listens there: what is not rerouted fails.
NOWHERE = "http://127.0.0.1:9/v1"

exporters: list[Callable[[str], None]] = []
"""Receive what agents are asked, unless `is_quiet`."""


def is_quiet() -> bool:
    return False


def export(text: str) -> None:
    if not is_quiet():
        for exporter in exporters:
            exporter(text)


@contextmanager
def turn(name: str) -> Iterator[None]:
    before = speaking.set(name)
    try:
        yield
    finally:
        speaking.reset(before)


@dataclass
class Agent:
    """Remembers all that was said to it."""

    name: str
    tools: dict[str, Callable[..., str]] = field(default_factory=dict)
    client: AsyncOpenAI = field(
        default_factory=lambda: AsyncOpenAI(base_url=NOWHERE, api_key="the-real-key")
    )
    messages: list[Any] = field(default_factory=list)

    @property
    def request(self) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {"door": {"type": "string"}}}
        tools = [
            {"type": "function", "function": {"name": name, "parameters": parameters}}
            for name in self.tools
        ]
        return {
            "model": "any-model",
            "messages": self.messages,
            **({"tools": tools} if tools else {}),
        }

    def take(self, message: Any) -> bool:
        """Note an answer and do what it asks for; whether there is more to be said."""
        self.messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            said = self.tools[call.function.name](**json.loads(call.function.arguments))
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
        return bool(message.tool_calls)

    async def run(self, text: str) -> str:
        export(text)
        self.messages.append({"role": "user", "content": text})
        with turn(self.name):
            while True:
                answer = await self.client.chat.completions.create(**self.request)
                if not self.take(answer.choices[0].message):
                    return self.messages[-1]["content"]

    def run_sync(self, text: str) -> str:
        export(text)
        self.messages.append({"role": "user", "content": text})
        with OpenAI(base_url=NOWHERE, api_key="the-real-key") as client, turn(self.name):
            while True:
                answer = client.chat.completions.create(**self.request)
                if not self.take(answer.choices[0].message):
                    return self.messages[-1]["content"]


def open_door(door: str) -> str:
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


planner = Agent("planner")
worker = Agent("worker", {"open_door": open_door})


async def play(task: str) -> str:
    advice = await replace(planner, messages=[]).run(f"Which door, {task}?")
    return await replace(worker, messages=[]).run(f"{task}: {advice}")


def play_sync(task: str) -> str:
    advice = replace(planner, messages=[]).run_sync(f"Which door, {task}?")
    return replace(worker, messages=[]).run_sync(f"{task}: {advice}")


class PlainAdapter(AgentAdapter):
    def accepts(self, agent: object) -> bool:
        return isinstance(agent, Agent)

    def fresh(self, agent: object) -> object:
        assert isinstance(agent, Agent)
        return replace(agent, messages=[])

    def current_agent(self) -> str | None:
        return speaking.get()

    def prepare(self) -> None:
        globals()["is_quiet"] = lambda: current_route() is not None

    async def run(self, agent: object, task: object) -> object:
        assert isinstance(agent, Agent)
        return await agent.run(text_of_task(task))


@hookimpl
def ajet_register_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            name="plain", target="tests.agents.plain:PlainAdapter", framework="tests.agents.plain"
        )
    ]
