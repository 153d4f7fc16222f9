"""Whose turn it is: agents made without a middleware can be given none, so two of their methods are wrapped, once for all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from agentscope.agent import Agent

from agentjet.agents import current_route, override_method

# Both are coroutines, in which the request is sent also where the answer is streamed. Those that reply are generators.
_ASKING = ("_call_model", "_compress_context_impl")
_speaker: ContextVar[str | None] = ContextVar("ajet_agentscope_speaker", default=None)


def speaker() -> str | None:
    """The agent that asks its model."""
    return _speaker.get()


def instrument() -> None:
    """Wrap what has to be; a repeat changes nothing. Outside of episodes the wrappers do nothing.

    :raises ConfigError: this version of AgentScope is made differently.
    """
    for method in _ASKING:
        override_method(Agent, method, _asking)


def _asking(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def asks(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return await ask(agent, *args, **kwargs)
        before = _speaker.set(str(agent.name))
        try:
            return await ask(agent, *args, **kwargs)
        finally:
            _speaker.reset(before)

    return asks
