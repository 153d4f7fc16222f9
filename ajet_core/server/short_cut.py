"""Past the router, for the one route that is called more than all others together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet_core.errors import AjetError
from ajet_core.server.http_errors import on_ajet_error, on_http_exception


class ShortCut:
    """ASGI middleware: requests of exactly this method and path go straight to their endpoint.

    The route is there as well: the router answers other methods, and knows about slashes. Its search, its
    stack of contexts and its exception handling cost a call about as much as everything that is done for it in the store.
    """

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
    ) -> None:
        self._app = app
        self._method = method
        self._path = path
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != self._path or scope.get("method") != self._method:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await self._endpoint(request)
        except AjetError as error:
            response = await on_ajet_error(request, error)
        except HTTPException as error:
            response = await on_http_exception(request, error)
        await response(scope, receive, send)
