"""Adapter for Pydantic AI, whose agents keep no state and whose context names the running agent."""

from __future__ import annotations

from typing import Any

# There is no public accessor. If this one is missing, the adapter is unusable and the log says why.
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.agent import AbstractAgent

from agentjet.agents import text_of_task
from ajet_core.interfaces import AgentAdapter


class PydanticAIAdapter(AgentAdapter):
    """The agent adapter ``pydantic-ai``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is an agent or a wrapper of one."""
        return isinstance(agent, AbstractAgent)

    def fresh(self, agent: object) -> object:
        """Return the same object: callers pass earlier messages as ``message_history``."""
        return agent

    def current_agent(self) -> str | None:
        """Return the name of the agent that calls its model; for a wrapper, the inner agent's."""
        context = get_current_run_context()
        agent = None if context is None else context.agent
        return None if agent is None else agent.name

    async def run(self, agent: object, task: Any) -> object:
        """Call ``Agent.run`` with the task as the user prompt."""
        assert isinstance(agent, AbstractAgent)
        # Otherwise an unnamed agent would get the name of a variable in this module.
        return await agent.run(_prompt(task), infer_name=False)

    def run_sync(self, agent: object, task: Any) -> object:
        """Call ``Agent.run_sync`` with the task as the user prompt."""
        assert isinstance(agent, AbstractAgent)
        return agent.run_sync(_prompt(task), infer_name=False)


def _prompt(task: Any) -> Any:
    """Return the prompt: a text, or a list of contents."""
    return task if isinstance(task, list | tuple) else text_of_task(task)
