"""The event log behind ``GET /v1/events``: the last few thousand events, and who waits for more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from ajet_core.protocol import Event


class EventLog:
    """A ring of events with increasing ids.

    :param capacity: events kept; a reader that falls further behind gets a ``gap`` event.
    :param clock: unix seconds.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = 4096) -> None:
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=capacity)
        # Milliseconds, so that ids of a server that is started again go on above those it gave before.
        self._last_id = int(clock() * 1000)
        self._closed = False
        self._news = asyncio.Event()

    def emit(self, type_: str, data: Mapping[str, Any]) -> None:
        """Append an event and wake all readers."""
        self._last_id += 1
        self._events.append(
            Event(id=self._last_id, time=self._clock(), type=type_, data=dict(data))
        )
        self._wake()

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        self._wake()

    async def read(
        self, after: int | None = None, keepalive: float | None = None
    ) -> AsyncIterator[Event | None]:
        """Events with an id above `after` (None: only what comes from now on), then new ones as they come.

        :param keepalive: yield None after so many seconds without an event.
        """
        # An id that was never given, such as after the clock was set back, has seen nothing of this log.
        seen = self._last_id if after is None else after if after <= self._last_id else 0
        while not self._closed:
            news = self._news
            first = self._events[0].id if self._events else self._last_id + 1
            if seen + 1 < first:
                yield Event(
                    id=first - 1,
                    time=self._clock(),
                    type="gap",
                    data={"lost_from": seen + 1, "lost_to": first - 1},
                )
                seen = first - 1
            for event in [e for e in self._events if e.id > seen]:
                seen = event.id
                yield event
            try:
                async with asyncio.timeout(keepalive):
                    await news.wait()
            except TimeoutError:
                yield None

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
