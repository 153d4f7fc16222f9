"""One of the model servers behind an engine, across restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet_core.errors import EngineError
from ajet_core.interfaces import EngineStats
from ajet_engines.served.api import ModelServer
from ajet_engines.served.flight import Flight
from ajet_engines.served.process import ServerProcess
from ajet_engines.served.totals import ServerTotals

_log = logging.getLogger("ajet.served")

_LOOK_SECONDS = 1.0
_FIRST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that answers.

    :param process: None for a server that was started separately.
    """

    server: ModelServer
    process: ServerProcess | None


async def attach(server: ModelServer, replica: Replica, timeout: float) -> Launched:
    """Wait for a server that was started separately.

    :param timeout: seconds; fewer for one that was added and has never answered.
    :raises EngineError: the server does not answer in time.
    """
    url = replica.url
    if replica.added and not replica.lives:
        timeout = min(timeout, _FIRST_SECONDS)
    try:
        async with asyncio.timeout(timeout):
            while not await server.healthy():  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)
    except BaseException as error:
        await server.close()
        if isinstance(error, TimeoutError):
            raise EngineError(f"no model server responded at {url} within {timeout:g} s") from None
        raise
    return Launched(server, None)


@dataclass(slots=True, eq=False)
class Replica:
    """One model server.

    :param number: number from 0.
    :param url: of a server that was started elsewhere; "" for one that the engine starts.
    :param added: whether it was added to a running engine.
    :ivar launched: the current server, None between two servers.
    :ivar up: whether it may receive requests.
    :ivar failure: why it was given up, "" if it was not.
    :ivar removed: whether it was given up because it is no longer wanted.
    :ivar lives: number of servers so far.
    :ivar flights: its current requests.
    :ivar asked: number of pending requests that servers should answer immediately.
    """

    number: int
    url: str = ""
    added: bool = False
    launched: Launched | None = None
    up: bool = False
    failure: str = ""
    removed: bool = False
    lives: int = 0
    flights: set[Flight] = field(default_factory=set)
    asked: int = 0
    _over: int = 0
    totals: ServerTotals = field(default_factory=ServerTotals)
    _ending: asyncio.Task[None] | None = None

    @property
    def server(self) -> ModelServer:
        """The current server."""
        assert self.launched is not None, "a replica is asked only while it has a server"
        return self.launched.server

    @property
    def heard(self) -> int:
        """Number of pieces received plus number of ended requests."""
        return self._over + sum(flight.heard for flight in self.flights)

    def forget(self, flight: Flight) -> None:
        """Remove a request that is over."""
        self.flights.discard(flight)
        self._over += flight.heard + 1

    def take(self, launched: Launched, died: Callable[[str], None]) -> None:
        """Set the server; `died` is called with the end of its log if it ends unexpectedly."""
        self.launched = launched
        self.lives += 1
        if (process := launched.process) is not None:

            def tell(_: object) -> None:
                if self.launched is launched:
                    died(process.died.result())

            process.died.add_done_callback(tell)

    async def healthy(self) -> bool:
        """Return whether the current server is alive and answers."""
        launched = self.launched
        if launched is None or (launched.process is not None and launched.process.died.done()):
            return False
        try:
            return await launched.server.healthy()
        # Any error means that the server is not healthy.
        except Exception as error:  # noqa: BLE001
            _log.warning("server %d does not report its state: %r", self.number, error)
            return False

    async def look(self) -> EngineStats:
        """Read its counters.

        :raises ServerGoneError: the server does not answer.
        """
        launched = self.launched
        stats = await self.server.stats()
        # If the server was discarded meanwhile, its counters are already included.
        if self.launched is launched:
            self.totals.latest = stats
        return self.totals.latest

    async def discard(self) -> None:
        """Wait until this server and earlier ones have ended, even if this is cancelled."""
        launched, self.launched = self.launched, None
        if launched is not None:
            self.totals.lose()
            self._ending = asyncio.create_task(self._end(launched, self._ending))
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _end(self, launched: Launched, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            await launched.server.close()
        # The process must be ended whatever error the server raises.
        except Exception as error:  # noqa: BLE001
            _log.warning("server %d was not closed cleanly: %r", self.number, error)
        finally:
            if launched.process is not None:
                await launched.process.close()
