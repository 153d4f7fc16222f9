"""Serving over streamable HTTP, for holders of the swarm server's token."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn
    from mcp.server import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"


def http_app(server: MCPServer[Any], token: Callable[[], str | None]) -> ASGIApp:
    """Return the application, which answers only requests with the token as their bearer token.

    Requests of browsers from other sites are refused, and those to another host's name.

    :param token: returns the token with which the tools are called; None if there is none yet.
    """
    from starlette.responses import JSONResponse

    # Without sessions, a client may lose its connection and continue.
    app = server.streamable_http_app(
        streamable_http_path=PATH, stateless_http=True, json_response=True, host="127.0.0.1"
    )

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            expected = token()
            if (
                expected is None
                or scheme.lower() != b"bearer"
                or not secrets.compare_digest(given.strip(), expected.encode())
            ):
                refusal = JSONResponse(
                    {"error": "send the swarm server's token: Authorization: Bearer TOKEN"},
                    status_code=401,
                    headers={"www-authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone.

    :param port: 0 for any.
    :raises ConfigError: the port is in use.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on port {port} of 127.0.0.1: {error.strerror}; choose another --port",
            param="port",
        ) from error
    return listener


def uvicorn_server(app: ASGIApp) -> uvicorn.Server:
    """Return a server of the application, which logs only warnings."""
    import uvicorn

    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
