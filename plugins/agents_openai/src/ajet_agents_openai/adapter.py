"""OpenAI Agents SDK: agents are descriptions that a `Runner` runs; whose turn it is is in the spans of its traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import Agent, Runner
from agents.tracing import get_current_span

from agentjet.agents import text_of_task
from ajet_agents_openai.spans import NamedSpan, name_spans
from ajet_core.interfaces import AgentAdapter


class OpenAIAgentsAdapter(AgentAdapter):
    """The adapter ``openai-agents``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is an `Agent`."""
        return isinstance(agent, Agent)

    def fresh(self, agent: object) -> object:
        """The same: conversations are in sessions, and a run without a session has none."""
        return agent

    def current_agent(self) -> str | None:
        """The ``name`` of the agent in whose turn a model is called, also behind handoffs and ``as_tool``."""
        span = get_current_span()
        return span.agent if isinstance(span, NamedSpan) else None

    def prepare(self) -> None:
        """Let spans of episodes say whose turn it is, and be told to nobody."""
        name_spans()

    async def run(self, agent: object, task: object) -> object:
        """``Runner.run``."""
        assert isinstance(agent, Agent)
        return await Runner.run(agent, _input(task))

    def run_sync(self, agent: object, task: object) -> object:
        """``Runner.run_sync``."""
        assert isinstance(agent, Agent)
        return Runner.run_sync(agent, _input(task))


def _input(task: object) -> Any:
    """A text, a list of messages, or one under ``messages``."""
    if isinstance(task, list):
        return task
    if not isinstance(task, Mapping):
        return text_of_task(task)
    if "messages" not in task:
        # Written out, it would tell the model what only the reward is to know.
        raise TypeError(
            f"a task with {', '.join(map(repr, task))} is no input of an agent, which is a text or has 'messages': "
            "decorate a function that runs the agent"
        )
    return list(task["messages"])
