"""Track whose turn it is, in the methods with which an agent takes a turn.

CrewAI's own context does not contain it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from crewai import Agent
from crewai.agents.agent_builder.base_agent import BaseAgent

from agentjet.agents import current_route, derived_classes, override_method

# In an event loop `kickoff` returns the coroutine of `kickoff_async`, and returns before it starts.
_TURNS = ("execute_task", "aexecute_task", "kickoff", "kickoff_async", "akickoff")
_speaker: ContextVar[str | None] = ContextVar("ajet_crewai_speaker", default=None)


def speaker() -> str | None:
    """Return the role of the agent whose turn it is."""
    return _speaker.get()


def note_turns() -> None:
    """Wrap every known agent class so that it records its turns in episodes.

    :raises ConfigError: this version of CrewAI lacks one of the methods.
    """
    for name in _TURNS:
        override_method(Agent, name, _noting)
    for kind in derived_classes(BaseAgent):
        # Agents of other frameworks in a crew take turns only for tasks.
        for name in vars(kind).keys() & set(_TURNS):
            override_method(kind, name, _noting)


def _noting(method: Callable[..., Any]) -> Any:
    if inspect.iscoroutinefunction(method):

        async def notes_async(self: BaseAgent, *args: Any, **kwargs: Any) -> Any:
            with _taking(self):
                return await method(self, *args, **kwargs)

        return notes_async

    def notes(self: BaseAgent, *args: Any, **kwargs: Any) -> Any:
        with _taking(self):
            return method(self, *args, **kwargs)

    return notes


@contextmanager
def _taking(agent: BaseAgent) -> Iterator[None]:
    if current_route() is None:
        yield
        return
    # The role has the crew's inputs inserted where it refers to them.
    before = _speaker.set(agent.role)
    try:
        yield
    finally:
        _speaker.reset(before)
