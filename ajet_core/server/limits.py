"""A limit on request bodies, enforced while they arrive."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet_core.errors import BodyTooLargeError
from ajet_core.server.http_errors import error_response


class BodyLimit:
    """ASGI middleware: a body over `max_bytes` is answered with 413, announced or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        text = (
            f"the body is larger than {self._max_bytes} bytes, the limit of this server "
            "(setting server.max_body_bytes)"
        )
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            answer = error_response(BodyTooLargeError(text), scope["path"])
            await answer(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > self._max_bytes:
                    # The one exception that FastAPI lets through unchanged while it reads a body.
                    raise HTTPException(BodyTooLargeError.status, text)
            return message

        await self._app(scope, limited, send)
