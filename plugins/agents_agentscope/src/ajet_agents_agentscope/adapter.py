"""AgentScope: an agent holds its conversation in its state."""

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
    """The adapter ``agentscope``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is an agent or a team."""
        return isinstance(agent, Agent | TeamPipeline)

    def fresh(self, agent: object) -> object:
        """A twin with a state of its own; of a team, with twins of its agents."""
        if isinstance(agent, TeamPipeline):
            return twin_of_team(agent)
        assert isinstance(agent, Agent)
        return twin_of(agent)

    def current_agent(self) -> str | None:
        """The agent that asks its model."""
        return speaker()

    def prepare(self) -> None:
        """Find out who asks its model."""
        instrument()

    async def run(self, agent: object, task: Any) -> object:
        """``reply`` to a user's message, or to the messages that the task is; of a team, what its leader says in the end."""
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
