"""Keep silent streams alive: programs close a stream that sends nothing for some minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Silence:
    """Measures how long one stream has sent nothing, from the creation of this object.

    :param most: longest silence in seconds; 0 for no limit.
    :param clock: seconds, monotonic.
    :param sleep: as `asyncio.sleep`.
    """

    most: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _since: float = 0.0

    def __post_init__(self) -> None:
        self.heard()

    def heard(self) -> None:
        """Note that something was sent."""
        self._since = self.clock()

    async def broken_by(self, beat: Callable[[], None]) -> None:
        """Call `beat` whenever the silence has reached its limit, until this is cancelled."""
        while self.most > 0:
            left = self._since + self.most - self.clock()
            if left > 0:
                await self.sleep(left)
            else:
                beat()
                self.heard()
