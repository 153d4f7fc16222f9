"""Whose turn it is: agents made without a middleware can be given none, so two of their methods are wrapped, once for all."""

from __future__ import annotations

import functools
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from agentscope.agent import Agent

from ajet_core.agents import current_route

# Both are coroutines, in which the request is sent also where the answer is streamed. Those that reply are generators.
_ASKING = ("_call_model", "_compress_context_impl")
_MARK = "__ajet_instrumented__"
_speaker: ContextVar[str | None] = ContextVar("ajet_agentscope_speaker", default=None)
_lock = threading.Lock()


def speaker() -> str | None:
    """The agent that asks its model."""
    return _speaker.get()


def instrument() -> None:
    """Wrap what has to be; a repeat changes nothing. Outside of episodes the wrappers do nothing.

    :raises AttributeError: this version of AgentScope is made differently.
    """
    with _lock:
        for method in _ASKING:
            original = getattr(Agent, method)
            if not hasattr(original, _MARK):
                wrapped = _asking(original)
                setattr(wrapped, _MARK, True)
                setattr(Agent, method, wrapped)


def _asking(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(ask)
    async def asks(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return await ask(agent, *args, **kwargs)
        before = _speaker.set(str(agent.name))
        try:
            return await ask(agent, *args, **kwargs)
        finally:
            _speaker.reset(before)

    return asks
