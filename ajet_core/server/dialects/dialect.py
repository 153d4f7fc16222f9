"""One public request format: how it is read, and how answers and errors are written in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ajet_core.errors import AjetError
from ajet_core.server.dialects.events import Choice, Event
from ajet_core.server.dialects.exchange import Exchange, Session
from ajet_core.server.dialects.request import ModelRequest


@dataclass(frozen=True, slots=True)
class Asked(ABC):
    """A request in its dialect: what has to be known of it to answer.

    :param request: what it means.
    """

    request: ModelRequest

    @abstractmethod
    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """JSON of the complete answer."""

    @abstractmethod
    def stream(
        self, exchange: Exchange, events: AsyncIterator[Event]
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events, whole with their ends, all that belong to the stream."""


class Dialect(ABC):
    """A format. It holds nothing of any request.

    :cvar summary: for the document of the server's routes.
    """

    summary: ClassVar[str]

    @abstractmethod
    def read(self, body: bytes, session: Session) -> Asked:
        """Understand a body.

        :param session: the episode's.
        :raises UnsupportedError: it asks for something that cannot be honoured; `param` names it.
        :raises RequestError: it is not of the right form; `param` names the field.
        """

    @abstractmethod
    def error(self, error: AjetError) -> dict[str, Any]:
        """The body of an answer that is an error."""

    @abstractmethod
    def error_event(self, error: AjetError, position: int) -> bytes:
        """The end of a stream whose status was sent before the error came.

        :param position: events that were sent before.
        """


def event(data: bytes, name: str = "") -> bytes:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b"data: %s\n\n" % data
