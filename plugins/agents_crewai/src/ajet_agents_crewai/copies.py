"""Copies of crews and agents in their state before any run."""

from __future__ import annotations

from typing import Any

from crewai import Agent, Crew, Task
from crewai.agents.agent_builder.base_agent import BaseAgent

from ajet_core.errors import ConfigError

_AGENT = ("role", "goal", "backstory")
_TASK = ("description", "expected_output", "output_file")


def copied(agent: Crew | Agent) -> Crew | Agent:
    """Return a copy of a crew or an agent that shares tools and model clients.

    :raises ConfigError: it has a memory, which all copies would share.
    """
    _check(agent)
    if isinstance(agent, Crew):
        return _crew(agent)
    twin = agent.copy()
    _renew(twin, agent)
    return twin


def _crew(crew: Crew) -> Crew:
    twin = crew.copy()
    # Otherwise every episode would be traced.
    twin.tracing = False
    twins: dict[int, BaseAgent] = {}
    for agent, copy_of in zip(crew.agents, twin.agents, strict=True):
        _renew(copy_of, agent)
        twins[id(agent)] = copy_of
    if crew.manager_agent is not None and twin.manager_agent is not None:
        _renew(twin.manager_agent, crew.manager_agent)
    for task, new in zip(crew.tasks, twin.tasks, strict=True):
        _restore(new, task, _TASK)
        new.output = None
        # The copy looks its agent up by role, which several agents may share.
        if task.agent is not None and id(task.agent) in twins:
            new.agent = twins[id(task.agent)]
    return twin


def _renew(twin: BaseAgent, original: BaseAgent) -> None:
    _restore(twin, original, _AGENT)
    if isinstance(twin, Agent):
        # A retry repeats the whole task, and the failed attempt would also be trained.
        twin.max_retry_limit = 0


def _restore(twin: BaseAgent | Task, original: BaseAgent | Task, names: tuple[str, ...]) -> None:
    """Restore the original texts: a run inserts its inputs into them and keeps the originals."""
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
            "all episodes would share the memory of the crew or agent: remove the memory, "
            "or decorate a function that creates both"
        )
