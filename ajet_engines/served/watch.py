"""Detection of servers that hang: they are probed after a long silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ajet_engines.served.replica import Replica

LOOK_SECONDS = 15.0
# A single long forward pass may also delay answers. Including the time of the probes, this ends
# before the gateway considers the engine stalled.
_PROBES = 3


@dataclass(slots=True)
class SilenceWatch:
    """Checks servers periodically.

    A server is probed if it has requests but has sent nothing for them since the last check, or has
    a pending request that it should answer immediately. Servers that send data or are idle are not
    probed.

    :param replicas: replicas whose servers are checked.
    :param lost: called with a replica whose server fails several probes in a row, and the reason.
    """

    replicas: Sequence[Replica]
    lost: Callable[[Replica, str], None]
    _heard: dict[Replica, int] = field(default_factory=dict)
    _failed: dict[Replica, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Run forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Check all servers once."""
        await asyncio.gather(*map(self._look, self.replicas))

    async def _look(self, one: Replica) -> None:
        heard, launched = one.heard, one.launched
        # Reset if the server was replaced, has answered, or has no requests.
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
                f"it sent nothing for its {len(one.flights)} requests and failed {_PROBES} "
                "health probes"
                if one.flights
                else f"it does not respond, and failed {_PROBES} health probes",
            )
