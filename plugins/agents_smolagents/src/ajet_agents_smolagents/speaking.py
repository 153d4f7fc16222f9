"""Track whose turn it is, by wrapping two methods of the agent class.

smolagents itself does not expose it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import GeneratorType
from typing import Any

from smolagents import MultiStepAgent, local_python_executor

from agentjet.agents import current_route, override_method

_speaker: ContextVar[str | None] = ContextVar("ajet_smolagents_speaker", default=None)
_lock = threading.Lock()


def speaker() -> str | None:
    """Return the name of the agent whose turn it is in the current context."""
    return _speaker.get()


def instrument() -> None:
    """Wrap the methods that start a turn; repeated calls have no effect.

    The wrappers do nothing outside episodes.

    :raises ConfigError: this version of smolagents lacks one of the methods.
    """
    override_method(MultiStepAgent, "run", _running)
    override_method(MultiStepAgent, "write_memory_to_messages", _remembering)
    with _lock:
        if not issubclass(local_python_executor.ThreadPoolExecutor, _Carrying):
            local_python_executor.ThreadPoolExecutor = _Carrying


def _name(agent: Any) -> str:
    return str(agent.name or type(agent).__name__)


def _running(run: Callable[..., Any]) -> Callable[..., Any]:
    """Make it the agent's turn until its run ends, then the caller's again."""

    def runs(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return run(agent, *args, **kwargs)
        before = _speaker.set(_name(agent))
        result = None
        try:
            result = run(agent, *args, **kwargs)
            return result
        finally:
            # A stream has not started yet, and continues in this context.
            if not isinstance(result, GeneratorType):
                _speaker.reset(before)

    return runs


def _remembering(write: Callable[..., Any]) -> Callable[..., Any]:
    """Set the current agent when it writes its messages, just before it calls its model.

    Streams of several agents may be interleaved.
    """

    def writes(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is not None:
            _speaker.set(_name(agent))
        return write(agent, *args, **kwargs)

    return writes


class _Carrying(ThreadPoolExecutor):
    """Executor that passes the context to the thread where a `CodeAgent`'s code runs.

    That code calls tools and agents.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if current_route() is None:
            return super().submit(fn, *args, **kwargs)
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)
