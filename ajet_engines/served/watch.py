"""Servers that neither answer nor end: they are asked how they are when they have been silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ajet_engines.served.replica import Replica

LOOK_SECONDS = 15.0
# One long forward pass may keep a server from answering too. With the time a probe may take, this ends before the
# gateway takes the engine for stalled.
_PROBES = 3


@dataclass(slots=True)
class SilenceWatch:
    """Looks at servers again and again.

    One that has requests and has sent nothing for them since the last look is probed, and one that owes an answer which
    takes no time; so is none that sends something, or has nothing to do.

    :param replicas: whose servers.
    :param lost: called with a replica whose server fails several probes in a row, and what to say of it.
    """

    replicas: Sequence[Replica]
    lost: Callable[[Replica, str], None]
    _heard: dict[Replica, int] = field(default_factory=dict)
    _failed: dict[Replica, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Once, at all."""
        await asyncio.gather(*map(self._look, self.replicas))

    async def _look(self, one: Replica) -> None:
        heard, launched = one.heard, one.launched
        # A server that was replaced, or has answered, or is asked nothing, starts afresh.
        owes = one.flights or one.asked
        silent = one.up and owes and self._heard.get(one) == heard
        self._heard[one] = heard
        if not silent or await one.healthy():
            self._failed[one] = 0
            return
        self._failed[one] = self._failed.get(one, 0) + 1
        if self._failed[one] >= _PROBES and (one.heard, one.launched) == (heard, launched):
            self._failed[one] = 0
            self.lost(
                one,
                f"it has sent nothing for its {len(one.flights)} requests and failed {_PROBES} health probes"
                if one.flights
                else f"it does not answer, and failed {_PROBES} health probes",
            )
