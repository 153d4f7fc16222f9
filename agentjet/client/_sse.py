"""Server-sent events (WHATWG HTML, section 9.2) without a transport: bytes in, events out."""

from __future__ import annotations

from pydantic import ValidationError

from agentjet.client._flows import Flows
from agentjet.client._wire import (
    Answer,
    Send,
    TransportFailure,
    may_repeat,
    read_error,
)
from ajet_core.errors import AjetError, ServerUnreachableError
from ajet_core.protocol import Event

# The server sends a comment every 15 s; a stream that is silent for longer is dead.
SILENCE = 60.0
MAX_LINE = 1 << 24


class SseParser:
    """Takes a stream apart; `feed` may be given it in any pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes."""
        self._buffer += chunk
        if len(self._buffer) > MAX_LINE:
            raise AjetError(
                "an event of the server is longer than 16 MiB; is this an agentjet server?"
            )
        complete: list[str] = []
        while (end := self._buffer.find(b"\n")) >= 0:
            line = self._buffer[:end].rstrip(b"\r").decode("utf-8", "replace")
            del self._buffer[: end + 1]
            if not line:
                if self._data:
                    complete.append("\n".join(self._data))
                self._data = []
                continue
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
        return complete


class EventFeed:
    """One reader's place in the event stream of a server, over any number of connections."""

    def __init__(self, flows: Flows, since: int | None) -> None:
        self._flows = flows
        self._last_id = since
        self._parser = SseParser()
        self._failures = 0
        self._token: str | None = None

    def request(self) -> Send:
        """The request of the next connection."""
        self._parser = SseParser()
        self._token = self._flows.endpoint.token
        headers = self._flows.headers(accept="text/event-stream")
        headers["cache-control"] = "no-store"
        if self._last_id is not None:
            headers["last-event-id"] = str(self._last_id)
        url = f"{self._flows.endpoint.url}/v1/events"
        return Send("GET", url, headers, read_timeout=SILENCE)

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes.

        :raises AjetError: they are none.
        """
        self._failures = 0
        events: list[Event] = []
        for data in self._parser.feed(chunk):
            try:
                event = Event.model_validate_json(data, extra="ignore")
            except ValidationError:
                raise AjetError(
                    f"{self._flows.endpoint.url}/v1/events sent something that is no event; "
                    "is this an agentjet server?"
                ) from None
            self._last_id = event.id
            events.append(event)
        return events

    def refused(self, answer: Answer) -> float:
        """Seconds to wait after an answer that is no stream.

        :raises AjetError: the server's error, if waiting does not help.
        """
        error = read_error(f"GET {self._flows.endpoint.url}/v1/events", answer)
        if self._flows.found_token(error, self._token):
            return 0.0
        if self._failures >= self._flows.retries or not may_repeat(error, answer.status):
            raise error
        self._failures += 1
        if error.retry_after is None:
            return self._flows.backoff.delay(self._failures - 1)
        return self._flows.backoff.honour(error.retry_after, self._failures)

    def lost(self, failure: TransportFailure | None) -> float:
        """Seconds to wait after a connection broke (or ended, None) before the next one.

        :raises ServerUnreachableError: that was the last retry.
        """
        if self._failures >= self._flows.retries:
            raise ServerUnreachableError(
                f"lost the event stream of {self._flows.endpoint.url} "
                f"({failure or 'the server ended it'}) and could not get it back"
            ) from failure
        self._failures += 1
        return self._flows.backoff.delay(self._failures - 1)
