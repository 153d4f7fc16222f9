"""The interface of a dialect: reads requests, and writes answers and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ajet_core.errors import AjetError, ContextLengthError
from ajet_server.gateway.formats.events import Choice, Event
from ajet_server.gateway.formats.exchange import Exchange, Session
from ajet_server.gateway.formats.request import ModelRequest

COMMENT = b": keep-alive\n\n"
"""A comment in a stream of server-sent events, which readers ignore."""


class StreamWriter(ABC):
    """Writes the server-sent events of one answer; each chunk is a whole event."""

    @abstractmethod
    def write(self, happened: Event) -> Iterator[bytes]:
        """Yield the chunks for an event of the answer."""

    @abstractmethod
    def heartbeat(self) -> Iterator[bytes]:
        """Yield a chunk that shows that the stream is alive and adds nothing to the answer."""

    def end(self) -> Iterator[bytes]:
        """Yield the chunks that follow when all choices are complete."""
        yield from ()


@dataclass(frozen=True, slots=True)
class DialectRequest(ABC):
    """A request in its dialect, with what is needed to answer it.

    :param request: the request independent of the dialect.
    """

    request: ModelRequest

    @abstractmethod
    def whole(self, exchange: Exchange, choices: Sequence[Choice]) -> bytes:
        """Return the JSON of the complete answer."""

    @abstractmethod
    def writer(self, exchange: Exchange) -> StreamWriter:
        """Return the writer of the answer as a stream."""

    def too_long(self, error: ContextLengthError, model_name: str, now: float) -> bytes | None:  # noqa: ARG002
        """Return a whole stream that reports a prompt that is too long, if clients expect one.

        :param now: unix seconds.
        :return: None if clients of the dialect expect the error's own status.
        """
        return None


class Dialect(ABC):
    """A public request format. It has no state.

    :cvar summary: summary for the OpenAPI document.
    :cvar heartbeat: chunk that keeps a stream alive before its answer starts.
    :cvar stream_type: media type of its streams.
    """

    summary: ClassVar[str]
    heartbeat: ClassVar[bytes] = COMMENT
    stream_type: ClassVar[str] = "text/event-stream"

    def chosen(self, query: Mapping[str, str]) -> Dialect:  # noqa: ARG002
        """Return the dialect of a request with these query parameters, if they make a difference.

        :raises UnsupportedError: a parameter asks for a form that the server does not have.
        """
        return self

    @abstractmethod
    def read(self, body: bytes, session: Session) -> DialectRequest:
        """Parse a body.

        :param session: session of the episode.
        :raises UnsupportedError: the request needs an unsupported feature; `param` names it.
        :raises RequestError: the body is malformed; `param` names the field.
        """

    @abstractmethod
    def error(self, error: AjetError) -> dict[str, Any]:
        """Return the body of an error response."""

    @abstractmethod
    def error_event(self, error: AjetError, position: int) -> bytes:
        """Return the last event of a stream whose status was sent before the error occurred.

        :param position: number of chunks sent before that are no `heartbeat`.
        """


def event(data: bytes, name: str = "") -> bytes:
    """Return a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data) if name else b"data: %s\n\n" % data
