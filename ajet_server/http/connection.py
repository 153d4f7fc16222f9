"""Limit what a connection may cost before its client is authenticated.

uvicorn's httptools protocol waits for a request without a time limit and accepts a head of any
size. The protocol here limits the size and time of a head, sets a minimum pace for sending a body
and for reading a response, and limits the number of connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ajet_core.errors import AjetError, BusyError, HeadTooLargeError, SlowRequestError
from ajet_server.http.disconnect import left_unread
from ajet_server.http.http_errors import error_response

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 128
MAX_URL_BYTES = 16 * 1024
# The time for a body grows by one second for this many bytes. A client may send each byte as a
# separate chunk, with this many bytes of framing.
BYTES_PER_SECOND = 16 * 1024
_FRAMING = 8
# Number of connections to search for one that has not sent a request yet.
_LOOKED_AT = 64
# This many connections over the limit get an error response; further ones are closed without one.
_TOLD = 64
_RETRY_SECONDS = 1.0

_NOTHING, _HEAD, _BODY, _DONE = range(4)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on connections.

    :param connections: most open connections, over all clients.
    :param seconds: time for a head; for a body in addition to the time that its size allows; and
        for the client to read the next 64 KiB of a response.
    """

    connections: int
    seconds: float


def guarded_protocol(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """Return the protocol class for uvicorn."""
    return type("LimitedProtocol", (GuardedProtocol,), {"limits": limits})


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits.

    For a request that arrives in one piece, the limits cost two additional assignments.
    """

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = _NOTHING
        self._fresh = False
        self._received = 0
        self._body_bytes = 0
        self._since = 0.0
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- Connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Extend the base class: enforce the limit on connections."""
        super().connection_made(transport)
        beyond = len(self.connections) - self.limits.connections
        if beyond > 0 and self._make_room():
            beyond -= 1
        if beyond > _TOLD:
            transport.abort()
            return
        if beyond > 0:
            text = (
                f"{self.limits.connections} connections are open, the limit of this server process "
                "(setting server.max_connections)"
            )
            self.app = _Refusal(BusyError(text, retry_after=_RETRY_SECONDS))
        self._expect()

    def _make_room(self) -> bool:
        """Close a connection that has not sent a whole head yet.

        Idle connections thus cannot lock out other clients.

        :return: whether a connection was closed.
        """
        for other in islice(self.connections, _LOOKED_AT):
            if other is self or not isinstance(other, GuardedProtocol):
                continue
            # uvicorn's type hides that it is None before the first request.
            cycle: object = other.cycle
            if cycle is None:
                self.connections.discard(other)
                other.transport.abort()
                return True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Extend the base class: report a response that the client has not read."""
        # Only the latest request counts: a client that sends another request has read the previous
        # response.
        if self.cycle is not None and self._is_unread(exc):
            left_unread(self.cycle.scope["state"])
        super().connection_lost(exc)
        self._forget_read_timer()
        self._forget_write_timer()

    def _is_unread(self, exc: Exception | None) -> bool:
        """Whether the client has certainly not read all of the response.

        A client that closes a connection with unread data resets it. Over TLS a reset proves
        nothing: our closing message also causes one if the client closed the connection first.
        """
        if not self.cycle.response_complete or self.flow.write_paused:
            return True
        return isinstance(exc, ConnectionError) and self.scheme == "http"

    def data_received(self, data: bytes) -> None:
        """Extend the base class: an incomplete request must keep arriving, within its limits."""
        super().data_received(data)
        if self._phase == _DONE and not self._idle():
            if self._read_timer is not None:
                self._forget_read_timer()
            return
        if self.transport.is_closing():
            return
        # The data in which a message begins may also hold the end of the previous one.
        self._received += 0 if self._fresh else len(data)
        self._fresh = False
        if self._phase == _HEAD and self._received > MAX_HEAD_BYTES:
            self._refuse(HeadTooLargeError(_HEAD_TEXT))
        elif self._received > MAX_HEAD_BYTES + _FRAMING * self._body_bytes:
            self._refuse(HeadTooLargeError("the body has more framing than content"))
        elif self._read_timer is None:
            self._expect()

    @property
    def _between_requests(self) -> bool:
        """Whether the next bytes begin a request."""
        return self._phase in (_NOTHING, _DONE)

    @property
    def _is_head_over(self) -> bool:
        """Whether the head of the present request has arrived."""
        return self._phase != _HEAD

    def _idle(self) -> bool:
        """Whether uvicorn's keep-alive wait ended with bytes that do not begin a request yet."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and self.timeout_keep_alive_task is None and not self.pipeline

    # --- Reading ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """As in the base class."""
        super().on_message_begin()
        self._phase = _HEAD
        self._fresh = True
        self._received = self._body_bytes = 0

    def on_headers_complete(self) -> None:
        """As in the base class, unless the head is too large: then refuse the request."""
        self._phase = _BODY
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if (
            size <= MAX_HEAD_BYTES
            and len(self.headers) <= MAX_HEADERS
            and len(self.url) <= MAX_URL_BYTES
        ):
            super().on_headers_complete()
            # Trailers, which follow the body, must not become headers of the request.
            self.headers = []
            return
        app = self.app
        self.app = _Refusal(HeadTooLargeError(_HEAD_TEXT))
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def on_body(self, body: bytes) -> None:
        """As in the base class."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As in the base class."""
        self._phase = _DONE
        super().on_message_complete()

    def _expect(self) -> None:
        """Start the time limit for what the client has to send."""
        self._since = self.loop.time()
        self._read_timer = self.loop.call_later(self.limits.seconds, self._look)

    def _look(self) -> None:
        """Refuse the request if the client is too slow, else check again later."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        until = self._since + self.limits.seconds + self._body_bytes / BYTES_PER_SECOND
        # While reading is paused, the delay is the server's.
        if now < until or (self.flow.read_paused and self._phase == _BODY):
            self._read_timer = self.loop.call_later(max(1.0, until - now), self._look)
            return
        text = (
            f"the request was not complete within {now - self._since:.0f} s (setting "
            "server.request_seconds)"
        )
        self._refuse(SlowRequestError(text))

    def _refuse(self, error: AjetError) -> None:
        """Answer an incomplete request with `error`, unless its response has started, and close."""
        if self._phase == _HEAD:
            self.transport.write(_raw_answer(error, ""))
        elif self._phase == _BODY and not self.cycle.response_started:
            self.transport.write(_raw_answer(error, self.scope["path"]))
        self.transport.close()

    def _forget_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    # --- Writing ----------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Extend the base class: abort the connection if the client does not read on in time."""
        super().pause_writing()
        self._forget_write_timer()
        self._write_timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """As in the base class."""
        super().resume_writing()
        self._forget_write_timer()

    def _forget_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


_HEAD_TEXT = (
    f"the head of the request is too large: at most {MAX_HEADERS} headers, {MAX_URL_BYTES} bytes "
    f"of URL and {MAX_HEAD_BYTES} bytes in all"
)


class _Refusal:
    """ASGI application that answers every request with the same error."""

    def __init__(self, error: AjetError) -> None:
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = error_response(self._error, scope["path"])
        answer.headers["connection"] = "close"
        app: ASGIApp = answer
        await app(scope, receive, send)


def _raw_answer(error: AjetError, path: str) -> bytes:
    answer = error_response(error, path)
    headers = [*answer.raw_headers, (b"connection", b"close")]
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join([STATUS_LINE[error.status], *lines, b"\r\n", bytes(answer.body)])
