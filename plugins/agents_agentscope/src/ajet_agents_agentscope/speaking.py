"""Track which AgentScope agent is calling its model.

Middlewares are fixed when an agent is made, so two methods of the agent class are wrapped instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from agentscope.agent import Agent

from agentjet.agents import current_route, override_method

# Both are coroutines and send the request themselves, even for a streamed answer. `reply` methods
# are generators.
_ASKING = ("_call_model", "_compress_context_impl")
_speaker: ContextVar[str | None] = ContextVar("ajet_agentscope_speaker", default=None)


def speaker() -> str | None:
    """Return the name of the agent that is calling its model."""
    return _speaker.get()


def instrument() -> None:
    """Wrap the methods that call a model; repeated calls have no effect.

    The wrappers do nothing outside episodes.

    :raises ConfigError: this version of AgentScope lacks one of the methods.
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
