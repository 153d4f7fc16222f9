"""Server-sent events (WHATWG HTML, section 9.2) without a transport: bytes in, events out."""

from __future__ import annotations

from ajet_core.errors import AjetError

MAX_LINE = 1 << 24


class SseParser:
    """An incremental parser of event streams."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of the events that `chunk` completes; chunks may be split anywhere."""
        self._buffer += chunk
        if len(self._buffer) > MAX_LINE:
            raise AjetError(
                "the server sent an event longer than 16 MiB; is this an agentjet server?"
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
