"""Adapter for AgentScope, whose agents keep their conversation in their state."""

from __future__ import annotations

from typing import Any

from agentscope.agent import Agent
from agentscope.message import Msg, UserMsg
from agentscope.pipeline import TeamPipeline

from agentjet.agents import text_of_task
from ajet_agents_agentscope.speaking import instrument, speaker
from ajet_agents_agentscope.twins import twin_of, twin_of_team
from ajet_core.interfaces import AgentAdapter


class AgentScopeAdapter(AgentAdapter):
    """The agent adapter ``agentscope``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is an AgentScope agent or team."""
        return isinstance(agent, Agent | TeamPipeline)

    def fresh(self, agent: object) -> object:
        """Return a twin with its own state; for a team, with twins of its agents."""
        if isinstance(agent, TeamPipeline):
            return twin_of_team(agent)
        assert isinstance(agent, Agent)
        return twin_of(agent)

    def current_agent(self) -> str | None:
        """Return the name of the agent that is calling its model."""
        return speaker()

    def prepare(self) -> None:
        """Start tracking which agent calls its model."""
        instrument()

    async def run(self, agent: object, task: Any) -> object:
        """Call ``reply`` and return its message; for a team, the leader's last message.

        The task becomes a user message unless it is already a message or a list of messages.
        """
        heard = (
            task
            if isinstance(task, Msg | list)
            else UserMsg(name="user", content=text_of_task(task))
        )
        if isinstance(agent, TeamPipeline):
            async for _ in agent.reply_stream(heard):
                pass
            return agent.leader.state.context[-1]
        assert isinstance(agent, Agent)
        return await agent.reply(heard)
