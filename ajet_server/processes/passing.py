"""Pass a connection on when its next request is for another process of the server.

An agent's connections usually carry the calls of one episode, so a connection is passed on once.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, ClassVar

from ajet_core.errors import AjetError
from ajet_server.http.connection import GuardedProtocol
from ajet_server.processes.mailbox import Mailboxes
from ajet_server.processes.places import place_of_request


class PassingProtocol(GuardedProtocol):
    """The server's protocol, which keeps the connections of the requests for this process.

    Subclasses set the class variables.

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
        self._going: int | None = None
        self._leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Extend the base class: begin with what another process has read."""
        super().connection_made(transport)
        if self._first:
            received, self._first = self._first, b""
            self.data_received(received)

    def data_received(self, data: bytes) -> None:
        """Extend the base class: pass the connection on if the request is for another process."""
        if self._going is None:
            if self._between_requests or self._head:
                self._head.append(data)
            super().data_received(data)
            self._after_data()

    def _after_data(self) -> None:
        if self._going is not None:
            self._pass_on(self._going, b"".join(self._head))
        elif self._is_head_over:
            self._head = []

    def on_headers_complete(self) -> None:
        """Extend the base class: look where the request goes."""
        place = place_of_request(self.url, self.headers, self.gateways)
        if place == self.place:
            super().on_headers_complete()
        elif self._head and not self._is_answering:
            self._going = place
        else:
            # The request arrived together with the end of the one before: the client sends it again
            # over another connection.
            self.transport.close()

    def on_body(self, body: bytes) -> None:
        """Extend the base class: the body of a request that goes elsewhere is not read here."""
        if self._going is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """As in the base class, with the same exception."""
        if self._going is None:
            super().on_message_complete()

    def shutdown(self) -> None:
        """As in the base class, but the next process with this place takes the connection over."""
        self._leaving = True
        self._leave()

    def on_response_complete(self) -> None:
        """Extend the base class: a process that ends passes the connection on now."""
        super().on_response_complete()
        if self._leaving:
            self._leave()

    def _leave(self) -> None:
        """Pass the connection to the next process with this place if no request is in progress."""
        if self._between_requests and not (self._is_answering or self.transport.is_closing()):
            self._going = self.place
            self._pass_on(self.place, b"")

    def _refuse(self, error: AjetError) -> None:
        """As in the base class; the other process judges a request that goes there."""
        if self._going is None:
            super()._refuse(error)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

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
