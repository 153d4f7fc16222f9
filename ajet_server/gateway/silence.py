"""How long a stream has been silent: programs hang up on one that says nothing for some minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Silence:
    """Of one stream; it begins when this is made.

    :param most: seconds that it may last; 0 for any time.
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
        """Something was sent."""
        self._since = self.clock()

    async def broken_by(self, beat: Callable[[], None]) -> None:
        """Call `beat` whenever the silence has lasted as long as it may; until this is cancelled."""
        while self.most > 0:
            left = self._since + self.most - self.clock()
            if left > 0:
                await self.sleep(left)
            else:
                beat()
                self.heard()
