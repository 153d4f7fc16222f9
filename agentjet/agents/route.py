"""Where the model calls of the code that runs go: a context variable, so that threads and tasks do not meet."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentjet.agents.connections import Connections
from ajet_core.errors import RoutingError
from ajet_core.interfaces import ModelEndpoint

STRANGE = (
    "the server does not speak its dialect; have the program use chat completions, responses, completions or Anthropic "
    "messages, or say that it is meant (with passthrough())"
)
_log = logging.getLogger("ajet.agents")

SINGLE = ""
"""The role of the model where there is but one."""


@dataclass(eq=False)
class Route:
    """Where the model calls of one episode go.

    :param endpoints: by role; `SINGLE` is the only role of an episode with one model.
    :param roles: the role of the calls that an agent makes, or that ask for a model, by the name of either.
    :param passthrough: models whose calls are not the episode's: they go where they would go without it.
    :param agents: what the system prompts of agents contain, by their names, for calls of which nothing else tells whose
        they are.
    :param sampling: what request bodies are overridden with; None takes a parameter out.
    :ivar sent: model calls that went out, each try for itself.
    :ivar answered: those that were answered with a completion.
    :ivar strange: hosts and paths of model calls that were left alone, because the server does not speak their dialect.
    :ivar finished: whether the program has returned.
    """

    endpoints: Mapping[str, ModelEndpoint]
    roles: Mapping[str, str] = field(default_factory=dict)
    passthrough: frozenset[str] = frozenset()
    agents: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    connections: Connections = field(default_factory=Connections, repr=False)
    sent: int = 0
    answered: int = 0
    strange: set[str] = field(default_factory=set)
    finished: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note_sent(self) -> None:
        """Count a model call that goes out."""
        with self._lock:
            self.sent += 1

    def note_answered(self) -> None:
        """Count a model call that was answered with a completion."""
        with self._lock:
            self.answered += 1

    def note_strange(self, where: str) -> None:
        """Say, once, that a model call is left alone."""
        with self._lock:
            fresh = where not in self.strange
            self.strange.add(where)
        if fresh:
            _log.warning("a model call to %s is not the episode's: %s", where, STRANGE)

    def agent_of(self, system_prompt: str) -> str | None:
        """Whose system prompt this is; None if nobody knows."""
        for name, text in self.agents.items():
            if text in system_prompt:
                return name
        return None

    def has_key(self, key: str) -> bool:
        """Whether it is the key of this episode, or of a part of it."""
        return any(endpoint.api_key == key for endpoint in self.endpoints.values())

    def endpoint(self, agent: str | None, model: str) -> ModelEndpoint:
        """Where a call goes.

        :raises RoutingError: there are several models, and nothing says which one is meant; or the episode is over.
        """
        if self.finished:
            raise RoutingError(
                "this code was started in an episode that is over: a worker that serves several episodes has to be started "
                "outside of them, or run each job in the context of who wants it (contextvars.copy_context().run)"
            )
        if len(self.endpoints) == 1:
            return next(iter(self.endpoints.values()))
        for name in (agent, model):
            if name is not None and (role := self.roles.get(name, name)) in self.endpoints:
                return self.endpoints[role]
        raise RoutingError(
            f"a call of agent {agent!r} for model {model!r} belongs to none of the roles "
            f"{', '.join(map(repr, self.endpoints))}: name the agent or the model like its role, or say which is whose "
            "(roles={name: role})"
        )


_route: ContextVar[Route | None] = ContextVar("ajet_route", default=None)
_agent: ContextVar[str | None] = ContextVar("ajet_agent", default=None)


def current_route() -> Route | None:
    """The route of the episode in which this code runs; None outside of any."""
    return _route.get()


def named_agent() -> str | None:
    """What `agent_name` says here."""
    return _agent.get()


@contextmanager
def routed(route: Route | None) -> Iterator[None]:
    """Send the model calls of the block, and of the tasks that it starts, along a route; None sends them along none."""
    before = _route.set(route)
    try:
        yield
    finally:
        _route.reset(before)


@contextmanager
def agent_name(name: str) -> Iterator[None]:
    """Say whose the model calls of the block are: the name under which they are recorded and rewarded.

    Adapters of frameworks say it by themselves; this is for code without one, and goes before them.
    """
    before = _agent.set(name)
    try:
        yield
    finally:
        _agent.reset(before)


def passthrough() -> Any:
    """A ``with`` block whose model calls are not the episode's: they go where they would go without it.

    For a judge, or a tool that asks a model of its own.
    """
    return routed(None)
