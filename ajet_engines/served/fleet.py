"""The servers behind an engine: which of them are up, and others in the place of those that die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from ajet_core.errors import AjetError, EngineError
from ajet_engines.served.http import ServerGoneError
from ajet_engines.served.replica import Launched, Replica
from ajet_engines.served.routing import Router
from ajet_engines.served.watch import SilenceWatch

_log = logging.getLogger("ajet.served")

_RESTARTS = 3


class Fleet:
    """Replicas that are brought up, asked, and replaced when they do not answer.

    What one has to be told before it may be sent requests is the engine's to say: it calls `enter` then.

    :param name: of the engine.
    :param size: how many replicas.
    :param launch: starts the server of a replica, or connects to it.
    :param welcome: brings a replica whose server runs to what all serve, and enters it.
    :param changed: called when a replica is up, or is not any more.
    :param patience: seconds after which a server that has not done what it was asked for is given up.
    :ivar replicas: by their numbers.
    :ivar awake: clear while no server may be started, their memory being somebody else's.
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        launch: Callable[[Replica], Awaitable[Launched]],
        welcome: Callable[[Replica], Awaitable[None]],
        changed: Callable[[], None],
        patience: float,
    ) -> None:
        self.name = name
        self.replicas = [Replica(number) for number in range(size)]
        self.router = Router(size)
        self.router.down.update(range(size))
        self.awake = asyncio.Event()
        self.awake.set()
        self._launch, self._welcome, self._changed = launch, welcome, changed
        self._patience = patience
        self._closed = False
        self._restoring: dict[Replica, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def up(self) -> list[Replica]:
        """Those that may be sent requests."""
        return [one for one in self.replicas if one.up]

    @property
    def hopeless(self) -> bool:
        """Whether none is up or ever will be."""
        return all(one.failure for one in self.replicas)

    def check(self) -> None:
        """Refuse to go on without a hope.

        :raises EngineError: no server can be brought back.
        """
        if self.hopeless:
            raise EngineError(
                f"no server of {self.name} can be brought back; the first: {self.replicas[0].failure}"
            )

    def choose(self, token_ids: list[int]) -> Replica:
        """The replica for a prompt; one is up.

        :raises EngineError: no server can be brought back.
        """
        self.check()
        number = self.router.choose(token_ids)
        assert number is not None, "requests are sent only while a server is up"
        return self.replicas[number]

    async def start(self) -> None:
        """Bring all up. What has come up when one does not is left to `close`.

        :raises EngineError: one did not come up.
        """
        try:
            async with asyncio.TaskGroup() as boots:
                for one in self.replicas:
                    boots.create_task(self._boot(one))
        except BaseExceptionGroup as error:
            first = error.exceptions[0]
            if isinstance(first, ServerGoneError):
                raise EngineError(
                    f"a server of {self.name} was lost at its start: {first}"
                ) from first
            raise first from None
        self._watch = asyncio.create_task(SilenceWatch(self.replicas, self.lose).run())

    def enter(self, one: Replica) -> None:
        """Let a replica be sent requests."""
        one.up = True
        one.failure = ""
        self.router.down.discard(one.number)
        self._changed()

    def lose(self, one: Replica, why: str) -> None:
        """Replace a server, unless that has begun."""
        if not one.up or self._closed:
            return
        _log.error("server %d of %s is replaced: %s", one.number, self.name, why)
        one.up = False
        self.router.down.add(one.number)
        self._changed()
        before = self._restoring.pop(one, None)
        self._restoring[one] = asyncio.create_task(self._restore(one, why, before))

    async def doubt(self, one: Replica, why: str) -> None:
        """Replace a server that has failed at something, if it is not well."""
        launched = one.launched
        # By then there may be another, which has nothing to do with it.
        if not await one.healthy() and one.launched is launched:
            self.lose(one, why)

    async def until_up(self) -> None:
        """Wait for a server that is up.

        :raises EngineError: none can be brought back.
        """
        while not self.up:
            self.check()
            pending = [task for task in self._restoring.values() if not task.done()]
            if not pending:
                raise EngineError(f"the engine {self.name!r} was closed")
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    async def rest(self) -> None:
        """Start no server until `awake` is set; those that are being started are ended, and started anew then."""
        self.awake.clear()
        for one, task in list(self._restoring.items()):
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                self._restoring[one] = asyncio.create_task(self._restore(one, "it was not up yet"))
        await asyncio.gather(*(one.discard() for one in self.replicas if not one.up))

    async def ask(self, one: Replica, asking: Awaitable[None]) -> None:
        """Ask a server for what it does at once; one that does not answer, or refuses, is replaced."""
        one.asked += 1
        try:
            async with self.patient(one):
                await asking
        except (EngineError, ServerGoneError) as error:
            self.lose(one, str(error))
        finally:
            one.asked -= 1

    async def tell(self, one: Replica, asking: Awaitable[None]) -> None:
        """Ask a server for what takes its time; what it says against it is raised.

        :raises EngineError: it refuses.
        """
        try:
            async with self.patient(one):
                await asking
        except ServerGoneError as error:
            self.lose(one, str(error))

    async def look(self) -> None:
        """Ask all that are up for their counters; those that do not answer, and are not well, are replaced."""

        async def look(one: Replica) -> None:
            try:
                with self.understood(one):
                    await one.look()
            except (EngineError, ServerGoneError) as error:
                await self.doubt(one, str(error))

        await asyncio.gather(*map(look, self.up))

    @contextmanager
    def understood(self, one: Replica) -> Iterator[None]:
        """What goes wrong is an `AjetError` or `ServerGoneError`, also where a server says what nobody understands.

        Such as a proxy's page in its place.
        """
        try:
            yield
        except (AjetError, ServerGoneError):
            raise
        except OSError as error:
            raise ServerGoneError(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            raise EngineError(
                f"server {one.number} of {self.name} answered what is not understood: {type(error).__name__}: {error}"
            ) from error

    @asynccontextmanager
    async def patient(self, one: Replica) -> AsyncIterator[None]:
        """As `understood`, and a server that takes too long is gone."""
        with self.understood(one):
            limit = asyncio.timeout(self._patience)
            try:
                async with limit:
                    yield
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ServerGoneError(
                    f"it has not done within {self._patience:g} s what it was asked for"
                ) from None

    async def close(self) -> None:
        """End all servers that were started; closing twice is harmless."""
        self._closed = True
        helpers = [*self._restoring.values(), *([self._watch] if self._watch else [])]
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
        flights = [flight for one in self.replicas for flight in one.flights]
        await asyncio.gather(*(flight.end() for flight in flights))
        for one in self.replicas:
            one.up = False
        await asyncio.gather(*(one.discard() for one in self.replicas))

    async def _boot(self, one: Replica) -> None:
        one.take(await self._launch(one), lambda why: self.lose(one, why))
        await self._welcome(one)

    async def _restore(
        self, one: Replica, why: str, before: asyncio.Task[None] | None = None
    ) -> None:
        if before is not None:
            await before
        for _ in range(_RESTARTS):
            try:
                await one.discard()
                await self.awake.wait()
                await self._boot(one)
            # Whatever it is: a server that nobody brings back, and nobody says so, is missed for ever.
            except Exception as error:  # noqa: BLE001
                why = str(error) or type(error).__name__
                _log.error("server %d of %s did not come back: %s", one.number, self.name, why)
            else:
                return
        one.failure = why
        self._changed()
        await one.discard()
