"""Adapter for CrewAI, whose crews and agents change while they run: each episode has a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crewai import Agent, Crew

from ajet_agents_crewai.copies import copied
from ajet_agents_crewai.telemetry import tell_nothing
from ajet_agents_crewai.turns import note_turns, speaker
from ajet_core.interfaces import AgentAdapter


class CrewAIAdapter(AgentAdapter):
    """The agent adapter ``crewai``."""

    def accepts(self, agent: object) -> bool:
        """Return whether `agent` is a `Crew` or an `Agent`."""
        return isinstance(agent, Crew | Agent)

    def fresh(self, agent: object) -> object:
        """Return the framework's own copy, with the texts that the original had before it ran."""
        assert isinstance(agent, Crew | Agent)
        return copied(agent)

    def current_agent(self) -> str | None:
        """Return the ``role`` of the agent whose turn it is."""
        return speaker()

    def prepare(self) -> None:
        """Track turns, and disable telemetry in episodes."""
        note_turns()
        tell_nothing()

    async def run(self, agent: object, task: object) -> object:
        """Call ``akickoff``; a crew gets the task as inputs, or a text as the input ``task``."""
        if isinstance(agent, Crew):
            return await agent.akickoff(inputs=_inputs(task))
        assert isinstance(agent, Agent)
        return await agent.akickoff(_messages(task))

    def run_sync(self, agent: object, task: object) -> object:
        """Call ``kickoff``, with the same inputs as `run`."""
        if isinstance(agent, Crew):
            return agent.kickoff(inputs=_inputs(task))
        assert isinstance(agent, Agent)
        return agent.kickoff(_messages(task))


def _inputs(task: object) -> dict[str, Any]:
    return dict(task) if isinstance(task, Mapping) else {"task": task}


def _messages(task: object) -> Any:
    if isinstance(task, str | list):
        return task
    # Converting the task to text could reveal to the model what only the reward may know.
    raise TypeError(
        f"{type(task).__name__} is not an input of an agent, which must be text or a list of "
        "messages: decorate a function that runs the agent"
    )
