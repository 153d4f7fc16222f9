"""Counters over servers that come and go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet_core.interfaces import EngineStats

_COUNTERS = ("prompt_tokens", "cached_tokens", "sampled_tokens")


@dataclass(slots=True)
class ServerTotals:
    """Counters of one server after the other, as if it were one.

    :ivar latest: what was asked last.
    """

    latest: EngineStats = field(default_factory=EngineStats)
    _offset: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))

    def begin(self, stats: EngineStats) -> None:
        """A server has these counters before it does anything for us."""
        for name in _COUNTERS:
            self._offset[name] += getattr(self.latest, name) - getattr(stats, name)
        self.latest = stats

    def lose(self) -> None:
        """The server is gone, and so is what it was doing."""
        self.begin(EngineStats())

    def counter(self, name: str) -> int:
        """One of the counters."""
        return self._offset[name] + int(getattr(self.latest, name))


@dataclass(slots=True)
class BusyClock:
    """How long there was something to do.

    :param clock: seconds, monotonic.
    """

    clock: Callable[[], float] = time.monotonic
    _running: int = 0
    _since: float = 0.0
    _seconds: float = 0.0

    def begin(self) -> None:
        """One thing more."""
        if self._running == 0:
            self._since = self.clock()
        self._running += 1

    def end(self) -> None:
        """One thing less."""
        self._running -= 1
        if self._running == 0:
            self._seconds += self.clock() - self._since

    @property
    def seconds(self) -> float:
        """In all."""
        return self._seconds + (self.clock() - self._since if self._running else 0.0)
