"""Serve the few routes with most of the requests without FastAPI's router.

For a claim or an end, FastAPI's routing, context stacks and dependencies cost several times the
work itself. The application has all of these
routes as well: they are the documented ones, and they answer requests that are not well-formed, so
errors are the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet_core.errors import AjetError
from ajet_core.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from ajet_server.http.http_errors import on_ajet_error, on_client_gone, on_http_exception

_JSON = "application/json"


class LongWayError(Exception):
    """The router has to answer a request whose body has been read.

    :param body: the body that was read.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__("the router answers it")
        self.body = body


class ShortCut:
    """ASGI middleware that passes requests for certain routes directly to their endpoints."""

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                break
        else:
            await self._app(scope, receive, send)
            return
        inner = {**scope, **found}
        try:
            await route.app(inner, receive, send)
        except LongWayError as way:
            await self._app(scope, _again(way.body, receive), send)
        except AjetError as error:
            answer = await on_ajet_error(Request(inner), error)
            await answer(scope, receive, send)
        except ClientDisconnect as error:
            answer = await on_client_gone(Request(inner), error)
            await answer(scope, receive, send)
        except HTTPException as error:
            answer = await on_http_exception(Request(inner), error)
            await answer(scope, receive, send)


class JsonEndpoint:
    """Calls the endpoint of a route of the swarm protocol without FastAPI.

    :param route: a route whose endpoint takes one JSON body and, besides it, only the request,
        strings of the path, and dependencies on the request.
    """

    def __init__(self, route: APIRoute) -> None:
        takes = route.dependant
        (body,) = takes.body_params
        self._endpoint = route.endpoint
        self._model = cast("type[BaseModel]", body.field_info.annotation)
        self._body = body.name
        self._request = takes.request_param_name
        self._path = [param.name for param in takes.path_params]
        # Dependencies without a name belong to the whole application: the check of the protocol
        # version, which `__call__` makes itself.
        self._dependencies = {
            d.name: d.call for d in takes.dependencies if d.name is not None and d.call is not None
        }
        self.quick = Route(route.path, self, methods=list(route.methods or ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        body = await request.body()
        kind = request.headers.get("content-type", _JSON)
        if (
            kind != _JSON
            or request.headers.get(PROTOCOL_HEADER, PROTOCOL_VERSION) != PROTOCOL_VERSION
        ):
            raise LongWayError(body)
        try:
            arguments: dict[str, Any] = {self._body: self._model.model_validate_json(body)}
        except ValidationError:
            raise LongWayError(body) from None
        if self._request is not None:
            arguments[self._request] = request
        for name in self._path:
            arguments[name] = request.path_params[name]
        for name, depend in self._dependencies.items():
            arguments[name] = await depend(request)
        answer: BaseModel = await self._endpoint(**arguments)
        response = Response(answer.model_dump_json(), media_type=_JSON)
        await response(scope, receive, send)


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that replays a body that has been read."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
