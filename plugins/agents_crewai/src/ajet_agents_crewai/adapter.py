"""CrewAI: crews and agents that are written into while they run, so that each episode has a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crewai import Agent, Crew

from ajet_agents_crewai.copies import copied
from ajet_agents_crewai.telemetry import tell_nothing
from ajet_agents_crewai.turns import note_turns, speaker
from ajet_core.interfaces import AgentAdapter


class CrewAIAdapter(AgentAdapter):
    """The adapter ``crewai``."""

    def accepts(self, agent: object) -> bool:
        """Whether it is a `Crew` or an `Agent`."""
        return isinstance(agent, Crew | Agent)

    def fresh(self, agent: object) -> object:
        """A copy as the framework makes it, with the texts that the original had before it ran."""
        assert isinstance(agent, Crew | Agent)
        return copied(agent)

    def current_agent(self) -> str | None:
        """The ``role`` of the agent in whose turn a model is called."""
        return speaker()

    def prepare(self) -> None:
        """Let agents say when it is their turn, and episodes be in no telemetry."""
        note_turns()
        tell_nothing()

    async def run(self, agent: object, task: object) -> object:
        """``akickoff``: a crew's inputs are the task, or have it as ``task`` if it is a text."""
        if isinstance(agent, Crew):
            return await agent.akickoff(inputs=_inputs(task))
        assert isinstance(agent, Agent)
        return await agent.akickoff(_messages(task))

    def run_sync(self, agent: object, task: object) -> object:
        """``kickoff``, likewise."""
        if isinstance(agent, Crew):
            return agent.kickoff(inputs=_inputs(task))
        assert isinstance(agent, Agent)
        return agent.kickoff(_messages(task))


def _inputs(task: object) -> dict[str, Any]:
    return dict(task) if isinstance(task, Mapping) else {"task": task}


def _messages(task: object) -> Any:
    if isinstance(task, str | list):
        return task
    # Written out, it would tell the model what only the reward is to know.
    raise TypeError(
        f"{type(task).__name__} is no input of an agent, which is a text or a list of messages: decorate a function "
        "that runs the agent"
    )
