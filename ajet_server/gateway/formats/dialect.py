"""One public request format: how it is read, and how answers and errors are written in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ajet_core.errors import AjetError, ContextLengthError
from ajet_server.gateway.formats.events import Choice, Event
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.request import ModelRequest

COMMENT = b": keep-alive\n\n"
"""A comment in a stream of server-sent events, which readers skip."""


class StreamWriter(ABC):
    """Writes the server-sent events of one answer; each chunk is a whole event."""

    @abstractmethod
    def write(self, happened: Event) -> Iterator[bytes]:
        """What a client is sent when something happens."""

    @abstractmethod
    def heartbeat(self) -> Iterator[bytes]:
        """What tells a client that the answer is still being made, and adds nothing to it."""

    def end(self) -> Iterator[bytes]:
        """What follows when all choices are complete."""
        yield from ()


@dataclass(frozen=True, slots=True)
class DialectRequest(ABC):
    """A request in its dialect: what has to be known of it to answer.

    :param request: what it means.
    """

    request: ModelRequest

    @abstractmethod
    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """JSON of the complete answer."""

    @abstractmethod
    def writer(self, exchange: Exchange) -> StreamWriter:
        """What writes the answer as a stream."""

    def too_long(self, error: ContextLengthError, model_name: str, now: float) -> bytes | None:  # noqa: ARG002
        """The whole stream that says that the prompt is too long, where programs expect it in the stream.

        :param now: unix seconds.
        :return: None where they expect the error's own status.
        """
        return None


class Dialect(ABC):
    """A format. It holds nothing of any request.

    :cvar summary: for the document of the server's routes.
    :cvar heartbeat: what keeps a stream alive before anything is known of its answer.
    """

    summary: ClassVar[str]
    heartbeat: ClassVar[bytes] = COMMENT

    @abstractmethod
    def read(self, body: bytes, session: Session) -> DialectRequest:
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
