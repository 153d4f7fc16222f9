"""The token is checked before a body is read, so that strangers cannot make the server parse anything."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet_core.errors import AjetError, AuthError
from ajet_server.gateway.formats.table import is_llm_path
from ajet_server.http.http_errors import error_response, note_refusal
from ajet_server.security.audit import AuditLog
from ajet_server.security.guard import TokenGuard
from ajet_server.security.tenants import Tenants

TOKEN = "ajet.token"  # noqa: S105 - a key of the ASGI scope
"""Where the routes find the `Token` of the request."""

OPEN_PATHS = ("/v1/protocol",)
"""What anybody may ask."""

METRICS_PATH = "/metrics"
"""Where Prometheus looks."""


class AuthMiddleware:
    """ASGI middleware: ``/v1`` routes of clients, and the metrics, answer nobody without a valid token.

    Which token a route needs is said at the route.
    """

    def __init__(self, app: ASGIApp, guard: TokenGuard, tenants: Tenants, audit: AuditLog) -> None:
        self._app = app
        self._guard = guard
        self._tenants = tenants
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            guarded = path.startswith("/v1/") or path == METRICS_PATH
            # The routes of agents check the episode's key themselves, before they read the body.
            if guarded and not (path.startswith(OPEN_PATHS) or is_llm_path(path)):
                try:
                    token = self._guard.identify(Headers(scope=scope))
                    self._tenants.request(token)
                except AjetError as error:
                    if isinstance(error, AuthError):
                        peer = scope["client"][0] if scope.get("client") else "unknown"
                        await self._audit.refused(f"{scope['method']} {path}", "", peer, error)
                    note_refusal(scope, error)
                    await error_response(error, path)(scope, receive, send)
                    return
                scope[TOKEN] = token
        await self._app(scope, receive, send)
