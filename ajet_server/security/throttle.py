"""Count the requests that were recently refused with 429."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

_SECONDS = 60.0


class Throttled(Protocol):
    """Counts refusals."""

    def note(self, message: str, /) -> None:
        """As `ThrottleMeter.note`."""


@dataclass(slots=True)
class ThrottleMeter:
    """Counts refusals of the last minute.

    :param clock: seconds, monotonic.
    """

    clock: Callable[[], float]
    _times: deque[float] = field(default_factory=deque)
    _last: str = ""

    def note(self, message: str) -> None:
        """Count a request that was refused with 429.

        :param message: the error message that the client got.
        """
        self._times.append(self.clock())
        self._last = message
        self._drop()

    def recent(self) -> tuple[int, str]:
        """Return the number of refusals in the last minute, and the message of the last one."""
        self._drop()
        return (len(self._times), self._last) if self._times else (0, "")

    def _drop(self) -> None:
        oldest = self.clock() - _SECONDS
        while self._times and self._times[0] < oldest:
            self._times.popleft()
