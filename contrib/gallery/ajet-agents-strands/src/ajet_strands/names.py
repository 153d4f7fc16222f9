"""Which agent is speaking."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from strands import Agent
from strands.multiagent.graph import Graph

from agentjet.agents import current_route

# The name of an agent that was created without one.
NAMELESS = "Strands Agents"

speaker: ContextVar[str | None] = ContextVar("ajet_strands_speaker", default=None)
_node: ContextVar[str | None] = ContextVar("ajet_strands_node", default=None)

_Events = Callable[..., AsyncIterator[Any]]


def name_of(agent: Agent) -> str:
    """Return the name of an agent; without one, its node in a graph, or its id."""
    if agent.name != NAMELESS:
        return agent.name
    return _node.get() or agent.name


def named(stream: _Events) -> _Events:
    """Name the agent while it works, but not while its caller has the event."""

    @wraps(stream)
    def streams(agent: Agent, *args: Any, **options: Any) -> AsyncIterator[Any]:
        events = stream(agent, *args, **options)
        return events if current_route() is None else _with(speaker, name_of(agent), events)

    return streams


def named_coroutine(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Name the agent in a coroutine."""

    @wraps(call)
    async def calls(agent: Agent, *args: Any, **options: Any) -> Any:
        if current_route() is None:
            return await call(agent, *args, **options)
        before = speaker.set(name_of(agent))
        try:
            return await call(agent, *args, **options)
        finally:
            speaker.reset(before)

    return calls


def placed(execute: _Events) -> _Events:
    """Remember the node of a graph that is executed."""

    @wraps(execute)
    def executes(graph: Graph, node: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        events = execute(graph, node, *args, **options)
        return events if current_route() is None else _with(_node, node.node_id, events)

    return executes


async def _with(
    variable: ContextVar[str | None], value: str, events: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """Yield the events; the variable has the value only while the next one is made.

    A generator has no context of its own, so what it sets would stay set for its caller.
    """
    try:
        while True:
            before = variable.set(value)
            try:
                event = await anext(events)
            except StopAsyncIteration:
                return
            finally:
                variable.reset(before)
            yield event
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
