"""AutoGen: agents and teams that keep their conversation, so that each episode has a copy."""

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
    """The adapter ``autogen``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is a `ChatAgent` or a `Team`."""
        return isinstance(agent, ChatAgent | Team)

    def fresh(self, agent: object) -> object:
        """A copy that shares the model clients and the tools; `run` lets it forget what the original was told."""
        return copied(agent)

    def current_agent(self) -> str | None:
        """The ``name`` of the agent in whose turn a model is called; of a team's manager, which selects one, its class."""
        return speaker()

    def prepare(self) -> None:
        """Let agents say when it is their turn, caches of answers miss in episodes, and tools stay in theirs."""
        note_turns()
        bypass_caches()
        let_tools_keep_the_episode()

    async def run(self, agent: object, task: object) -> object:
        """``run(task=...)``, with a text, a message or several."""
        assert isinstance(agent, ChatAgent | Team)
        await forget(agent)
        return await agent.run(task=_input(task))


def _input(task: object) -> Any:
    if isinstance(task, str | BaseChatMessage):
        return task
    if isinstance(task, Sequence) and all(isinstance(each, BaseChatMessage) for each in task):
        return list(task)
    # Written out, it would tell the model what only the reward is to know.
    raise TypeError(
        f"{type(task).__name__} is no task of an agent, which is a text or messages of AutoGen: decorate a function "
        "that runs the agent"
    )
