"""Limits on request bodies, enforced while they arrive."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ajet_core.errors import BodyTooLargeError, BusyError
from ajet_server.http.http_errors import error_response


class BodyLimit:
    """ASGI middleware that limits the size of request bodies.

    :param max_bytes: size of a body; a larger one gets 413, whether or not its length is declared.
    :param max_in_flight: bytes of the bodies of all requests that are being read or answered; a
        request that exceeds it gets 429.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_in_flight: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_in_flight = max_in_flight
        self._in_flight = 0
        self._text = (
            f"the body is larger than {max_bytes} bytes, the limit of this server "
            "(setting server.max_body_bytes)"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            answer = error_response(BodyTooLargeError(self._text), scope["path"])
            await answer(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                seen += size
                self._in_flight += size
                if seen > self._max_bytes:
                    raise BodyTooLargeError(self._text)
                if self._in_flight > self._max_in_flight:
                    raise BusyError(
                        f"the requests in progress already hold {self._max_in_flight} bytes, "
                        "the limit of this server process (setting server.max_bytes_in_flight)",
                        retry_after=1.0,
                    )
            return message

        try:
            await self._app(scope, limited, send)
        finally:
            self._in_flight -= seen
