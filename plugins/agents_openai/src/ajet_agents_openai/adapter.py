"""Adapter for the OpenAI Agents SDK, whose trace spans show whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import Agent, Runner
from agents.tracing import get_current_span

from agentjet.agents import text_of_task
from ajet_agents_openai.spans import NamedSpan, name_spans
from ajet_core.interfaces import AgentAdapter


class OpenAIAgentsAdapter(AgentAdapter):
    """The agent adapter ``openai-agents``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is an `Agent`."""
        return isinstance(agent, Agent)

    def fresh(self, agent: object) -> object:
        """Return the same object: without a session, agents keep no conversation."""
        return agent

    def current_agent(self) -> str | None:
        """Return the ``name`` of the agent whose turn it is, including handoffs and ``as_tool``."""
        span = get_current_span()
        return span.agent if isinstance(span, NamedSpan) else None

    def prepare(self) -> None:
        """Make spans record whose turn it is in episodes, without exporting them."""
        name_spans()

    async def run(self, agent: object, task: object) -> object:
        """Call ``Runner.run``."""
        assert isinstance(agent, Agent)
        return await Runner.run(agent, _input(task))

    def run_sync(self, agent: object, task: object) -> object:
        """Call ``Runner.run_sync``."""
        assert isinstance(agent, Agent)
        return Runner.run_sync(agent, _input(task))


def _input(task: object) -> Any:
    """Return the input: a text, a list of messages, or the list under ``messages``."""
    if isinstance(task, list):
        return task
    if not isinstance(task, Mapping):
        return text_of_task(task)
    if "messages" not in task:
        # Converting the task to text could reveal to the model what only the reward may know.
        raise TypeError(
            f"a task with {', '.join(map(repr, task))} is not an input of an agent, which "
            "must be text or have 'messages': decorate a function that runs the agent"
        )
    return list(task["messages"])
