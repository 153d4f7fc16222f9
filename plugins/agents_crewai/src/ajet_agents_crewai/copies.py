"""Copies of crews and agents, as they were before they ran."""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Task
from crewai.agents.agent_builder.base_agent import BaseAgent

from ajet_core.errors import ConfigError

_AGENT = ("role", "goal", "backstory")
_TASK = ("description", "expected_output", "output_file")


def copied(agent: Crew | Agent) -> Crew | Agent:
    """A crew or an agent like `agent`, whose tools and model clients it shares.

    :raises ConfigError: it has a memory, which copies would share.
    """
    _check(agent)
    if isinstance(agent, Crew):
        return _crew(agent)
    twin = agent.copy()
    _renew(twin, agent)
    return twin


def _crew(crew: Crew) -> Crew:
    twin = crew.copy()
    # Traces would be of every episode.
    twin.tracing = False
    twins: dict[int, BaseAgent] = {}
    for agent, its in zip(crew.agents, twin.agents, strict=True):
        _renew(its, agent)
        twins[id(agent)] = its
    if crew.manager_agent is not None and twin.manager_agent is not None:
        _renew(twin.manager_agent, crew.manager_agent)
    for task, new in zip(crew.tasks, twin.tasks, strict=True):
        _restore(new, task, _TASK)
        new.output = None
        # A copy finds its agent by the role, which several may have.
        if task.agent is not None and id(task.agent) in twins:
            new.agent = twins[id(task.agent)]
    return twin


def _renew(twin: BaseAgent, original: BaseAgent) -> None:
    _restore(twin, original, _AGENT)
    if isinstance(twin, Agent):
        # Each time the whole task again: what failed would be trained besides.
        twin.max_retry_limit = 0


def _restore(twin: BaseAgent | Task, original: BaseAgent | Task, names: tuple[str, ...]) -> None:
    """A run writes its inputs into the texts, and keeps what they were."""
    for name in names:
        first = getattr(original, f"_original_{name}", None)
        if first is not None:
            setattr(twin, name, first)


def _check(agent: Crew | Agent) -> None:
    members: list[Any] = [agent]
    if isinstance(agent, Crew):
        members += [*agent.agents, agent.manager_agent]
    if any(getattr(member, "memory", None) for member in members):
        raise ConfigError(
            "the memory of a crew or an agent would be shared by all episodes: leave it out, or decorate a function "
            "that makes both"
        )
