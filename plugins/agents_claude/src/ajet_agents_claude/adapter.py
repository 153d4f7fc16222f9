"""Adapter for the Claude Agent SDK, whose agents are processes of Claude Code."""

from __future__ import annotations

from dataclasses import replace

from claude_agent_sdk import ClaudeAgentOptions, query

from agentjet.agents import current_route, text_of_task
from ajet_agents_claude.processes import instrument
from ajet_agents_claude.workplace import workplace_of
from ajet_core.errors import ConfigError
from ajet_core.interfaces import AgentAdapter


class ClaudeAdapter(AgentAdapter):
    """The agent adapter ``claude-agent-sdk``. An agent is a `ClaudeAgentOptions`."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is the options of an agent."""
        return isinstance(agent, ClaudeAgentOptions)

    def fresh(self, agent: object) -> object:
        """Return a copy, which shares hooks and the servers of tools.

        :raises ConfigError: the options continue an earlier conversation.
        """
        assert isinstance(agent, ClaudeAgentOptions)
        if agent.resume or agent.continue_conversation or agent.session_id:
            raise ConfigError(
                "these options name an earlier session, which all episodes would share: "
                "leave out resume, continue_conversation and session_id"
            )
        return replace(agent)

    def prepare(self) -> None:
        """Let the processes of episodes send their model calls there."""
        instrument()

    async def run(self, agent: object, task: object) -> object:
        """Send the task as the only message; without ``cwd``, in an empty directory.

        :return: the list of messages.
        """
        assert isinstance(agent, ClaudeAgentOptions)
        prompt = text_of_task(task)
        route = current_route()
        if agent.cwd is None and route is not None:
            agent = replace(agent, cwd=workplace_of(route).work)
        return [message async for message in query(prompt=prompt, options=agent)]
