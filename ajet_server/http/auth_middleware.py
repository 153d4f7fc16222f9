"""Check tokens before a body is read: the server parses nothing for unauthenticated clients."""

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
"""The key of the request's `Token` in the ASGI scope."""

OPEN_PATHS = ("/v1/protocol",)
"""Paths that need no token."""

METRICS_PATH = "/metrics"
"""The path that Prometheus scrapes."""


class AuthMiddleware:
    """ASGI middleware that requires a valid token for clients' ``/v1`` routes and the metrics.

    Each route declares which kind of token it needs.
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
            # Agents' routes check the episode's key themselves, before they read the body.
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
