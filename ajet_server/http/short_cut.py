"""Past the router, for the few routes that are called more than all others together.

FastAPI's search for the route, its stack of contexts and its dependencies cost a claim or an end several times what is
done for it, and the router alone cost a call a tenth. The routes are all there as well: they are what is
documented, and they answer whatever is not in order, so that an error is the same by either way.
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
    """A request is the router's to answer; its body was read.

    :param body: what was read.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__("the router answers it")
        self.body = body


class ShortCut:
    """ASGI middleware: requests that match one of a few routes go straight to its endpoint."""

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
    """The endpoint of a route of the swarm protocol, called without FastAPI.

    :param route: its endpoint takes one JSON body, and besides it nothing but the request, strings of
        the path, and dependencies on the request.
    """

    def __init__(self, route: APIRoute) -> None:
        takes = route.dependant
        (body,) = takes.body_params
        self._endpoint = route.endpoint
        self._model = cast("type[BaseModel]", body.field_info.annotation)
        self._body = body.name
        self._request = takes.request_param_name
        self._path = [param.name for param in takes.path_params]
        # Those without a name are of the whole application: `__call__` checks the version.
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
    """What comes from a client whose body was read already."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
