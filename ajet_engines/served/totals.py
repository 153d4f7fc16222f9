"""Counters over successive servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet_core.interfaces import EngineStats

_COUNTERS = ("prompt_tokens", "cached_tokens", "sampled_tokens")


@dataclass(slots=True)
class ServerTotals:
    """Counters of successive servers, as if they were one.

    :ivar latest: the counters read last.
    """

    latest: EngineStats = field(default_factory=EngineStats)
    _offset: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))

    def begin(self, stats: EngineStats) -> None:
        """Set the initial counters of a new server."""
        for name in _COUNTERS:
            self._offset[name] += getattr(self.latest, name) - getattr(stats, name)
        self.latest = stats

    def lose(self) -> None:
        """Record that the server is gone, with its current load."""
        self.begin(EngineStats())

    def counter(self, name: str) -> int:
        """Return a total counter."""
        return self._offset[name] + int(getattr(self.latest, name))


@dataclass(slots=True)
class BusyClock:
    """Measures the time during which anything was running.

    :param clock: returns monotonic seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _running: int = 0
    _since: float = 0.0
    _seconds: float = 0.0

    def begin(self) -> None:
        """Record that something started."""
        if self._running == 0:
            self._since = self.clock()
        self._running += 1

    def end(self) -> None:
        """Record that something ended."""
        self._running -= 1
        if self._running == 0:
            self._seconds += self.clock() - self._since

    @property
    def seconds(self) -> float:
        """Total seconds so far."""
        return self._seconds + (self.clock() - self._since if self._running else 0.0)
