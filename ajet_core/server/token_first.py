"""The token is checked before a body is read, so that strangers cannot make the server parse anything."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet_core.errors import AuthError
from ajet_core.server.auth import TokenGuard
from ajet_core.server.http_errors import LLM_ROUTES, error_response

# The LLM routes check the episode's key themselves, before they read the body.
_OPEN_PATHS = ("/v1/protocol", *LLM_ROUTES)


class TokenFirst:
    """ASGI middleware: ``/v1`` routes of clients answer nobody without a valid token.

    Which token a route needs is said at the route.
    """

    def __init__(self, app: ASGIApp, guard: TokenGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if path.startswith("/v1/") and not path.startswith(_OPEN_PATHS):
                try:
                    self._guard.check(Headers(scope=scope), "client")
                except AuthError as error:
                    await error_response(error, path)(scope, receive, send)
                    return
        await self._app(scope, receive, send)
