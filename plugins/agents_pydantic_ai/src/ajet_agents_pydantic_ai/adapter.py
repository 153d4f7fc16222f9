"""Pydantic AI: agents keep nothing, and a context variable of its own says whose run it is."""

from __future__ import annotations

from typing import Any

# There is no public way to it. If it is gone the adapter is not usable, and the log says what is missing.
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.agent import AbstractAgent

from agentjet.agents import text_of_task
from ajet_core.interfaces import AgentAdapter


class PydanticAIAdapter(AgentAdapter):
    """The adapter ``pydantic-ai``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is an agent, or one that wraps another."""
        return isinstance(agent, AbstractAgent)

    def fresh(self, agent: object) -> object:
        """The same: what was said before is the caller's, who passes it as ``message_history``."""
        return agent

    def current_agent(self) -> str | None:
        """The name of the agent whose run asks its model; a wrapped agent's is that of the inner one."""
        context = get_current_run_context()
        agent = None if context is None else context.agent
        return None if agent is None else agent.name

    async def run(self, agent: object, task: Any) -> object:
        """``Agent.run`` with the task as the user's prompt."""
        assert isinstance(agent, AbstractAgent)
        # Else an agent without a name would get that of a variable of this module.
        return await agent.run(_prompt(task), infer_name=False)

    def run_sync(self, agent: object, task: Any) -> object:
        """``Agent.run_sync``."""
        assert isinstance(agent, AbstractAgent)
        return agent.run_sync(_prompt(task), infer_name=False)


def _prompt(task: Any) -> Any:
    """A text, or a list of contents."""
    return task if isinstance(task, list | tuple) else text_of_task(task)
