"""Interception of httpx and httpx2 requests, to reroute the model calls of episodes.

SDKs, and so the frameworks, use one of the two libraries. `instrument` wraps ``Client.send`` and
``AsyncClient.send`` once, as tracing libraries do, so that existing clients need no change; outside
an episode the wrappers do nothing. To avoid the global change, give a single client the transports
of `routed_transports`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentjet.agents.adapters import current_agent
from agentjet.agents.rerouting import (
    episode_key,
    is_unsupported_route,
    may_be_model_call,
    read_model_call,
    reroute,
)
from agentjet.agents.route import Route, current_route
from agentjet.client._tracing import trace_headers
from ajet_core.errors import RoutingError
from ajet_core.protocol import TRACE_HEADER

_LIBRARIES = ("httpx", "httpx2")
_MARK = "__ajet_instrumented__"
_DONE = "ajet_rerouted"
_FIRST_ERROR = 400
_lock = threading.Lock()


def instrument() -> None:
    """Make all clients of httpx and httpx2 follow the route of their episode; idempotent.

    A library that is installed but not imported yet is imported, because its clients would be
    missed later.
    """
    with _lock:
        for name in _LIBRARIES:
            try:
                library = sys.modules.get(name) or importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            _wrap(library.Client, _sending)
            _wrap(library.AsyncClient, _sending_async)


def _wrap(client: Any, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    if not hasattr(client.send, _MARK):
        wrapped = wrapper(client.send)
        setattr(wrapped, _MARK, True)
        client.send = wrapped


def _sending(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def sends(client: Any, request: Any, **options: Any) -> Any:
        try:
            instead = rerouted(request, client.timeout)
        except RoutingError as error:
            return _refusal(request, error)
        if instead is None:
            return send(client, request, **options)
        ours = instead.route.connections.sync(_library(request), instead.url)
        return instead.noted(ours.send(instead.request, stream=options.get("stream", False)))

    return sends


def _sending_async(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(send)
    async def sends(client: Any, request: Any, **options: Any) -> Any:
        try:
            instead = rerouted(request, client.timeout)
        except RoutingError as error:
            return _refusal(request, error)
        if instead is None:
            return await send(client, request, **options)
        ours = instead.route.connections.asynchronous(_library(request), instead.url)
        return instead.noted(await ours.send(instead.request, stream=options.get("stream", False)))

    return sends


def _library(request: Any) -> str:
    """Return the name of the library that a request belongs to."""
    return type(request).__module__.partition(".")[0]


def _refusal(request: Any, error: RoutingError) -> Any:
    """Return an error response. SDKs would take an exception for a lost connection and retry."""
    library = sys.modules[_library(request)]
    payload = {"error": error.to_payload(), "type": "error"}
    return library.Response(400, json=payload, request=request)


@dataclass(frozen=True, slots=True)
class ReroutedRequest:
    """A request that is sent instead of another.

    :param request: a request of the same library.
    :param counts: whether its response is a call of the episode.
    """

    route: Route
    request: Any
    counts: bool

    @property
    def url(self) -> str:
        """The URL of the request."""
        return str(self.request.url)

    def noted(self, response: Any) -> Any:
        """Count the response if it is a call of the episode, and return it."""
        if self.counts and response.status_code < _FIRST_ERROR:
            self.route.note_answered()
        return response


def rerouted(request: Any, timeout: Any = None) -> ReroutedRequest | None:
    """Return the request to send instead of `request`, or None if it is not to be rerouted.

    :param timeout: the client's timeout, for a request that has none.
    :raises RoutingError: it is a model call of an episode that is over, or that has several models
        of which none matches.
    """
    route = current_route()
    if route is None or _DONE in request.extensions:
        return None
    if not may_be_model_call(request.method, request.url.path):
        if is_unsupported_route(request.method, request.url.path):
            route.note_strange(f"{request.url.host}{request.url.path}")
        return None
    key = episode_key(request.url.path, request.headers)
    if key is not None and not route.has_key(key):
        # The program has claimed this episode itself.
        return None
    try:
        content = request.content
    except RuntimeError:
        # The body is streamed, which SDKs of models do not do.
        return None
    query = request.url.query.decode("ascii", "replace")
    call = read_model_call(request.method, request.url.path, content, query)
    if call is None or call.model in route.passthrough:
        return None
    agent = current_agent() or route.agent_of(call.system_prompt)
    changed = reroute(
        call,
        content,
        _with_trace(request.headers.multi_items()),
        route.endpoint(agent, call.model),
        agent=agent,
        sampling=route.sampling,
    )
    route.note_sent()
    extensions = {**request.extensions, _DONE: True}
    if timeout is not None:
        extensions.setdefault("timeout", timeout.as_dict())
    replaced = type(request)(
        request.method,
        changed.url,
        headers=changed.headers,
        content=changed.content,
        extensions=extensions,
    )
    return ReroutedRequest(route, replaced, not call.is_count)


def _with_trace(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Add the program's current span to headers that name none."""
    if any(name.lower() == TRACE_HEADER for name, _ in headers):
        return headers
    return [*headers, *trace_headers().items()]


class RoutedTransports(NamedTuple):
    """Transports of one HTTP library, for clients that follow routes without `instrument`.

    :param sync: for its ``Client``.
    :param asynchronous: for its ``AsyncClient``.
    """

    sync: Any
    asynchronous: Any


def routed_transports(library: str = "httpx2", **options: Any) -> RoutedTransports:
    """Create transports that send the model calls of an episode along its route.

    :param library: ``httpx`` or ``httpx2``, according to the client.
    :param options: options of the library's ``HTTPTransport``.
    """
    module = importlib.import_module(library)

    # The base classes are known only at run time, so that types cannot be checked.
    class Transport(module.HTTPTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            try:
                instead = rerouted(request)
            except RoutingError as error:
                return _refusal(request, error)
            if instead is None:
                return super().handle_request(request)
            return instead.noted(super().handle_request(instead.request))

    class AsyncTransport(module.AsyncHTTPTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            try:
                instead = rerouted(request)
            except RoutingError as error:
                return _refusal(request, error)
            if instead is None:
                return await super().handle_async_request(request)
            return instead.noted(await super().handle_async_request(instead.request))

    return RoutedTransports(Transport(**options), AsyncTransport(**options))
