"""Routes of model calls, kept in a context variable so that threads and tasks do not interfere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentjet.agents.connections import Connections
from ajet_core.errors import RoutingError
from ajet_core.interfaces import ModelEndpoint

STRANGE = (
    "the server does not support its dialect; make the program use chat completions, "
    "responses, completions, Anthropic messages or Google's generateContent, or mark the call "
    "as intended (with passthrough())"
)
_log = logging.getLogger("ajet.agents")

SINGLE = ""
"""The role of the model if there is only one."""


@dataclass(eq=False)
class Route:
    """The destination of the model calls of one episode.

    :param endpoints: endpoints by role; `SINGLE` is the only role of an episode with one model.
    :param roles: the role of a call, by the name of the calling agent or of the requested model.
    :param passthrough: models whose calls are not part of the episode and are not rerouted.
    :param agents: texts that the agents' system prompts contain, by agent name, for calls that do
        not otherwise identify the agent.
    :param sampling: overrides of parameters in request bodies; None removes a parameter.
    :ivar sent: the number of model calls sent, counting each retry.
    :ivar answered: the number of model calls answered with a completion.
    :ivar strange: hosts and paths of model calls that were not rerouted, because the server does
        not support their dialect.
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
    _at_end: list[Callable[[], object]] = field(default_factory=list, repr=False)

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call a function when the program has returned; at once if it has.

        For what an adapter keeps for one episode, such as files and processes.
        """
        with self._lock:
            if not self.finished:
                self._at_end.append(callback)
                return
        callback()

    def finish(self) -> None:
        """Refuse further calls, and call the functions of `at_end`; one that raises is logged."""
        with self._lock:
            self.finished = True
            callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            try:
                callback()
            # The result of the program must not be lost.
            except Exception:  # noqa: BLE001 - it is logged
                _log.exception("what an episode has left behind could not be removed")

    def note_sent(self) -> None:
        """Count a model call that is sent."""
        with self._lock:
            self.sent += 1

    def note_answered(self) -> None:
        """Count a model call that was answered with a completion."""
        with self._lock:
            self.answered += 1

    def note_strange(self, where: str) -> None:
        """Record a model call that is not rerouted, and log each destination once."""
        with self._lock:
            fresh = where not in self.strange
            self.strange.add(where)
        if fresh:
            _log.warning("a model call to %s is not part of the episode: %s", where, STRANGE)

    def agent_of(self, system_prompt: str) -> str | None:
        """Return the agent with this system prompt, or None if it is not known."""
        for name, text in self.agents.items():
            if text in system_prompt:
                return name
        return None

    def has_key(self, key: str) -> bool:
        """Return whether a key is that of this episode or of one of its parts."""
        return any(endpoint.api_key == key for endpoint in self.endpoints.values())

    def endpoint(self, agent: str | None, model: str) -> ModelEndpoint:
        """Return the endpoint for a call.

        :raises RoutingError: several models are trained and the call matches no role, or the
            episode is over.
        """
        if self.finished:
            raise RoutingError(
                "this code was started in an episode that is over: start a worker that "
                "serves several episodes outside of them, or run each job in the context of "
                "its episode (contextvars.copy_context().run)"
            )
        if len(self.endpoints) == 1:
            return next(iter(self.endpoints.values()))
        for name in (agent, model):
            if name is not None and (role := self.roles.get(name, name)) in self.endpoints:
                return self.endpoints[role]
        raise RoutingError(
            f"a call of agent {agent!r} for model {model!r} matches none of the roles "
            f"{', '.join(map(repr, self.endpoints))}: give the agent or the model the name "
            "of its role, or map names to roles (roles={name: role})"
        )


_route: ContextVar[Route | None] = ContextVar("ajet_route", default=None)
_agent: ContextVar[str | None] = ContextVar("ajet_agent", default=None)


def current_route() -> Route | None:
    """Return the route of the episode that this code runs in, or None outside of episodes."""
    return _route.get()


def named_agent() -> str | None:
    """Return the name that `agent_name` has set here, or None."""
    return _agent.get()


@contextmanager
def routed(route: Route | None) -> Iterator[None]:
    """Route the model calls of the block and of tasks it starts; None disables routing."""
    before = _route.set(route)
    try:
        yield
    finally:
        _route.reset(before)


def enter_route(route: Route | None) -> None:
    """Route the model calls of this context from here on, for code that cannot use `routed`.

    For callbacks of frameworks that are called at the begin and the end of an episode.
    """
    _route.set(route)


@contextmanager
def agent_name(name: str) -> Iterator[None]:
    """Name the agent that makes the block's model calls; they are recorded and rewarded by name.

    Framework adapters do this automatically. This is for code without an adapter, and takes
    precedence over adapters.
    """
    before = _agent.set(name)
    try:
        yield
    finally:
        _agent.reset(before)


def passthrough() -> Any:
    """Return a context manager whose model calls are not part of the episode and are not rerouted.

    For a judge, or a tool that calls another model.
    """
    return routed(None)
