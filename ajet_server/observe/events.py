"""The event log behind ``GET /v1/events``: the last few thousand events, and their readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet_core.protocol import Event


@dataclass(frozen=True, slots=True)
class OwnedEvent:
    """An event and its owner.

    :param owner: id of the token whose episode the event is about; None for events of the server.
    """

    event: Event
    owner: str | None


class EventLog:
    """A ring of events with increasing ids.

    :param clock: unix seconds.
    :param capacity: number of events kept; a reader that falls further behind gets a ``gap`` event.
    """

    def __init__(self, clock: Callable[[], float], capacity: int = 4096) -> None:
        self._clock = clock
        self._events: deque[OwnedEvent] = deque(maxlen=capacity)
        # Milliseconds, so that ids keep increasing when the server is restarted.
        self._last_id = int(clock() * 1000)
        self._closed = False
        self._news = asyncio.Event()

    def emit(self, type_: str, data: Mapping[str, Any], owner: str | None = None) -> None:
        """Append an event and wake all readers."""
        self._last_id += 1
        event = Event(id=self._last_id, time=self._clock(), type=type_, data=dict(data))
        self._events.append(OwnedEvent(event, owner))
        self.wake()

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        self.wake()

    async def read(
        self, after: int | None = None, keepalive: float | None = None
    ) -> AsyncIterator[OwnedEvent | None]:
        """Yield the events with an id above `after`, then new events as they are emitted.

        :param after: None yields only new events.
        :param keepalive: seconds without an event after which None is yielded; `wake` makes it
            yield None at once.
        """
        # An id above the last one was never issued by this log, for example because the clock was
        # set back: its reader has seen nothing.
        seen = self._last_id if after is None else after if after <= self._last_id else 0
        woken = False
        while not self._closed:
            news = self._news
            first = self._events[0].event.id if self._events else self._last_id + 1
            if seen + 1 < first:
                lost = {"lost_from": seen + 1, "lost_to": first - 1}
                gap = Event(id=first - 1, time=self._clock(), type="gap", data=lost)
                yield OwnedEvent(gap, None)
                seen = first - 1
            new = [owned for owned in self._events if owned.event.id > seen]
            for owned in new:
                seen = owned.event.id
                yield owned
            if woken and not new:
                yield None
            woken = False
            try:
                async with asyncio.timeout(keepalive):
                    await news.wait()
                woken = True
            except TimeoutError:
                yield None

    def wake(self) -> None:
        """Wake all readers."""
        news, self._news = self._news, asyncio.Event()
        news.set()
