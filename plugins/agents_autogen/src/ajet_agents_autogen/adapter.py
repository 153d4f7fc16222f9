"""Adapter for AutoGen, whose agents and teams keep their conversation: each episode has a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.messages import BaseChatMessage

from ajet_agents_autogen.copies import copied, forget
from ajet_agents_autogen.episodes import bypass_caches, let_tools_keep_the_episode
from ajet_agents_autogen.turns import note_turns, speaker
from ajet_core.interfaces import AgentAdapter


class AutoGenAdapter(AgentAdapter):
    """The agent adapter ``autogen``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is a `ChatAgent` or a `Team`."""
        return isinstance(agent, ChatAgent | Team)

    def fresh(self, agent: object) -> object:
        """Return a copy that shares model clients and tools; `run` clears its conversation."""
        return copied(agent)

    def current_agent(self) -> str | None:
        """Return the ``name`` of the agent whose turn it is.

        While a team's manager selects the next agent, this is the manager's class name.
        """
        return speaker()

    def prepare(self) -> None:
        """Track turns, bypass answer caches in episodes, and keep tools in their episode."""
        note_turns()
        bypass_caches()
        let_tools_keep_the_episode()

    async def run(self, agent: object, task: object) -> object:
        """Call ``run(task=...)`` with a text, a message or a list of messages."""
        assert isinstance(agent, ChatAgent | Team)
        await forget(agent)
        return await agent.run(task=_input(task))


def _input(task: object) -> Any:
    if isinstance(task, str | BaseChatMessage):
        return task
    if isinstance(task, Sequence) and all(isinstance(each, BaseChatMessage) for each in task):
        return list(task)
    # Converting the task to text could reveal to the model what only the reward may know.
    raise TypeError(
        f"{type(task).__name__} is not a task of an agent, which must be text or AutoGen "
        "messages: decorate a function that runs the agent"
    )
