"""How often clients were sent away lately because they ask for too much."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_SECONDS = 60.0


@dataclass(slots=True)
class ThrottleMeter:
    """Counts refusals of the last minute.

    :param clock: seconds, monotonic.
    """

    clock: Callable[[], float]
    _times: deque[float] = field(default_factory=deque)
    _last: str = ""

    def note(self, message: str) -> None:
        """A request was refused with 429."""
        self._times.append(self.clock())
        self._last = message
        self._drop()

    def recent(self) -> tuple[int, str]:
        """How many were refused in the last minute, and what the last of them was told."""
        self._drop()
        return (len(self._times), self._last) if self._times else (0, "")

    def _drop(self) -> None:
        oldest = self.clock() - _SECONDS
        while self._times and self._times[0] < oldest:
            self._times.popleft()
