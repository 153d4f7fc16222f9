"""Whose turn it is: smolagents tells nobody, so two methods of its agents are wrapped, once for all."""

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
    """The agent whose turn it is in this thread."""
    return _speaker.get()


def instrument() -> None:
    """Wrap what has to be; a repeat changes nothing. Outside of episodes the wrappers do nothing.

    :raises ConfigError: this version of smolagents is made differently.
    """
    override_method(MultiStepAgent, "run", _running)
    override_method(MultiStepAgent, "write_memory_to_messages", _remembering)
    with _lock:
        if not issubclass(local_python_executor.ThreadPoolExecutor, _Carrying):
            local_python_executor.ThreadPoolExecutor = _Carrying


def _name(agent: Any) -> str:
    return str(agent.name or type(agent).__name__)


def _running(run: Callable[..., Any]) -> Callable[..., Any]:
    """It is the agent's turn until its run ends, and then that of the one who called it."""

    def runs(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is None:
            return run(agent, *args, **kwargs)
        before = _speaker.set(_name(agent))
        result = None
        try:
            result = run(agent, *args, **kwargs)
            return result
        finally:
            # A stream has not begun yet, and goes on in this context.
            if not isinstance(result, GeneratorType):
                _speaker.reset(before)

    return runs


def _remembering(write: Callable[..., Any]) -> Callable[..., Any]:
    """Before it asks its model an agent puts its memory into words; streams of several agents may take turns."""

    def writes(agent: Any, *args: Any, **kwargs: Any) -> Any:
        if current_route() is not None:
            _speaker.set(_name(agent))
        return write(agent, *args, **kwargs)

    return writes


class _Carrying(ThreadPoolExecutor):
    """Takes the context along to the thread in which a `CodeAgent`'s code runs: it calls tools and agents."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if current_route() is None:
            return super().submit(fn, *args, **kwargs)
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)
