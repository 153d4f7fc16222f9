"""Pass a connection on when its next request is for another process of the server.

An agent's connections usually carry the calls of one episode, so a connection is passed on once.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

import httptools

from ajet_core.errors import AjetError
from ajet_server.http.connection import GuardedProtocol
from ajet_server.processes.mailbox import Mailboxes
from ajet_server.processes.places import place_of_request

_SENT_SECONDS = 0.05


class PassingProtocol(GuardedProtocol):
    """The server's protocol, which keeps the connections of the requests for this process.

    A connection is passed on between two requests only. Subclasses set the class variables.

    :cvar place: of this process.
    :cvar gateways: the number of gateway processes.
    """

    place: ClassVar[int]
    gateways: ClassVar[int]
    mailboxes: ClassVar[Mailboxes]

    def __init__(self, *args: Any, received: bytes = b"", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first = received
        # What has arrived of the request whose head is incomplete, and where it goes.
        self._head: list[bytes] = []
        # The length of the present body; None if it is not announced.
        self._length: int | None = None
        # What follows the present body in the data that is being read.
        self._behind = b""
        self._going: int | None = None
        # Whether further data is ignored.
        self._ignoring = False
        self._leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Extend the base class: begin with what another process has read."""
        super().connection_made(transport)
        if transport.is_closing():
            return
        received, self._first = self._first, b""
        if self.mailboxes.closed:
            # It was accepted while this process began to end. Kept here, it would end unanswered,
            # and hold up the end of this process until then.
            self._ignoring = True
            self._pass_on(self._next_place, received)
        elif received:
            self.data_received(received)

    def data_received(self, data: bytes) -> None:
        """Extend the base class: pass the connection on if the request is for another process."""
        if self._ignoring:
            return
        if self._between_requests or self._head:
            self._head.append(data)
        elif self._length is not None:
            # A client that was answered before its body had arrived sends the next request at once.
            self._behind = data[self._length - self._body_bytes :]
        super().data_received(data)
        self._behind = b""
        self._after_data()

    def _after_data(self) -> None:
        if self._going is not None and not self.transport.is_closing():
            self._pass_on(self._going, b"".join(self._head))
        elif self._is_head_over:
            self._head = []

    def on_message_begin(self) -> None:
        """As in the base class, unless the connection goes elsewhere."""
        if not self._ignoring:
            super().on_message_begin()
            if self._behind:
                self._head, self._behind = [self._behind], b""

    def on_headers_complete(self) -> None:
        """Extend the base class: look where the request goes."""
        if self._ignoring:
            return
        try:
            place = place_of_request(self.url, self.headers, self.gateways)
        except httptools.HttpParserError:
            # The base class refuses it.
            place = self.place
        if place == self.place:
            announced = (value for name, value in self.headers if name == b"content-length")
            # The parser refuses a length that is not a number.
            self._length = next(map(int, announced), None)
            super().on_headers_complete()
            return
        self._ignoring = True
        if self._is_answering:
            # The request arrived before the answer to the one before it: the client has to send it
            # again.
            self.cycle.keep_alive = False
        elif self._head and self._is_sent:
            self._going = place
        else:
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """As in the base class, unless the connection goes elsewhere."""
        if not self._ignoring or self._is_answering:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """As in the base class, unless the connection goes elsewhere."""
        if not self._ignoring:
            super().on_message_complete()
            # A request that follows in the same data cannot be told apart from this one.
            self._head = []

    def send_400_response(self, msg: str) -> None:
        """As in the base class, unless another process handles what arrives."""
        if not self._ignoring:
            super().send_400_response(msg)

    def shutdown(self) -> None:
        """As in the base class, but another process takes the connection over."""
        self._leaving = True
        self._leave()

    def on_response_complete(self) -> None:
        """Extend the base class: a process that ends passes the connection on now."""
        super().on_response_complete()
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        """Pass the connection on once no request is in progress and all is sent."""
        if self._is_answering or self._ignoring or self.transport.is_closing():
            return
        if not self._between_requests:
            # The rest of a head or of a body would arrive elsewhere.
            self.transport.close()
        elif self._is_sent:
            self._ignoring = True
            self._pass_on(self._next_place, b"")
        else:
            self.loop.call_later(_SENT_SECONDS, self._leave)

    def _refuse(self, error: AjetError) -> None:
        """As in the base class, unless another process handles what arrives."""
        if not self._ignoring:
            super()._refuse(error)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_sent(self) -> bool:
        """Whether nothing waits to be sent: what waits would be lost."""
        return self.transport.get_write_buffer_size() == 0

    @property
    def _next_place(self) -> int:
        """Where connections go when this process ends.

        Its successor has not started yet, and its mailbox is small.
        """
        return 1 + self.place % self.gateways

    def _pass_on(self, place: int, data: bytes) -> None:
        # Closing this process's descriptor leaves the connection open, because the mailbox has
        # another one of it.
        descriptor: int = self.transport.get_extra_info("socket").fileno()
        passed = os.dup(descriptor)
        try:
            self.mailboxes.send(place, passed, data)
        finally:
            os.close(passed)
            self.transport.abort()
