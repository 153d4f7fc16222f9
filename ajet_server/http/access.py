"""Arguments of endpoints that check the access that a route requires."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from starlette.requests import Request

from ajet_core.errors import ForbiddenError
from ajet_server.http.auth_middleware import TOKEN
from ajet_server.http.json_route import Needs
from ajet_server.security.credentials import Token
from ajet_server.security.guard import Access, check_access


def _needs(access: Access) -> Callable[[Request], Awaitable[Token]]:
    async def check(request: Request) -> Token:
        # `AuthMiddleware` identified it before the body was read.
        token: Token = request.scope[TOKEN]
        try:
            check_access(token, access)
        except ForbiddenError as error:
            action = f"{request.method} {request.scope['path']}"
            await request.app.state.audit.refused(action, token.token_id, peer_of(request), error)
            raise
        return token

    return check


def peer_of(request: Request) -> str:
    """Return the client address of a request."""
    return request.client.host if request.client else "unknown"


Client = Annotated[Token, Needs(_needs("episodes"))]
Control = Annotated[Token, Needs(_needs("control"))]
Looker = Annotated[Token, Needs(_needs("look"))]
Inspector = Annotated[Token, Needs(_needs("all episodes"))]
