"""Past the router, for the few routes that are called more than all others together.

FastAPI's search for the route, its stack of contexts and its dependencies cost a claim or an end several times what is
done for it, and the router alone cost a call a tenth. The routes are all there as well: they are what is
documented, and they answer whatever is not in order, so that an error is the same by either way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet_core.errors import AjetError
from ajet_core.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from ajet_server.http.http_errors import on_ajet_error, on_client_gone, on_http_exception

Body = TypeVar("Body", bound=BaseModel)

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


class JsonEndpoint(Generic[Body]):
    """An ASGI application that takes and answers JSON of the swarm protocol.

    :param work: what a request that is in order is for.
    """

    def __init__(
        self, model: type[Body], work: Callable[[Request, Body], Awaitable[BaseModel]]
    ) -> None:
        self._model = model
        self._work = work

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
            parsed = self._model.model_validate_json(body)
        except ValidationError:
            raise LongWayError(body) from None
        answer = await self._work(request, parsed)
        response = Response(answer.model_dump_json(), media_type=_JSON)
        await response(scope, receive, send)


def _again(body: bytes, receive: Receive) -> Receive:
    """What comes from a client whose body was read already."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
