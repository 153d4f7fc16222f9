"""The servers behind an engine: which are up, and replacement of those that die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from ajet_core.errors import AjetError, EngineError
from ajet_engines.served.http import ServerGoneError
from ajet_engines.served.replica import Launched, Replica
from ajet_engines.served.routing import Router
from ajet_engines.served.watch import SilenceWatch

_log = logging.getLogger("ajet.served")

_RESTARTS = 3
_FAREWELL_SECONDS = 30.0


class Fleet:
    """Replicas that are started, monitored and replaced.

    The engine prepares a started server for requests, and then calls `enter`.

    :param name: name of the engine.
    :param urls: for each replica the URL of its server, "" for one that is started.
    :param launch: starts the server of a replica, or connects to it.
    :param welcome: prepares a replica whose server is running, and enters it.
    :param changed: called when a replica has come up or gone down.
    :param patience: seconds after which a server that has not completed a request is given up.
    :ivar replicas: replicas by number.
    :ivar awake: cleared while no server may be started because its memory is in use elsewhere.
    """

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        *,
        launch: Callable[[Replica], Awaitable[Launched]],
        welcome: Callable[[Replica], Awaitable[None]],
        changed: Callable[[], None],
        patience: float,
    ) -> None:
        self.name = name
        self.replicas = [Replica(number, url) for number, url in enumerate(urls)]
        self.router = Router(len(urls))
        self.router.down.update(range(len(urls)))
        self.awake = asyncio.Event()
        self.awake.set()
        self._launch, self._welcome, self._changed = launch, welcome, changed
        self._patience = patience
        self._closed = False
        self._restoring: dict[Replica, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    @property
    def up(self) -> list[Replica]:
        """The replicas that may receive requests."""
        return [one for one in self.replicas if one.up]

    @property
    def hopeless(self) -> bool:
        """Whether no replica is up or can be restarted."""
        return all(one.failure for one in self.replicas)

    @property
    def states(self) -> dict[str, str]:
        """The state of each replica by its URL, or by its number if it was started."""
        return {
            one.url or f"server {one.number}": one.failure or ("up" if one.up else "starting")
            for one in self.replicas
            if not one.removed
        }

    async def use(self, urls: Sequence[str]) -> None:
        """Add missing servers in the background, and remove those that are not listed.

        Requests of removed servers continue on others, with what they have sampled.
        """
        present = {one.url: one for one in self.replicas if one.url and not one.removed}
        for url in dict.fromkeys(urls):
            one = present.pop(url, None)
            if one is not None and not one.failure:
                continue
            if one is None:
                one = Replica(len(self.replicas), url, added=True)
                self.replicas.append(one)
                self.router.grow()
            one.failure = ""
            self._restoring[one] = asyncio.create_task(self._restore(one, "it was added"))
        # With a server that is starting, requests wait.
        self._changed()
        await asyncio.gather(*map(self._remove, present.values()))

    async def _remove(self, one: Replica) -> None:
        was_up = one.up
        one.up, one.removed, one.failure = False, True, "it was removed"
        self.router.down.add(one.number)
        self._changed()
        if (task := self._restoring.pop(one, None)) is not None:
            task.cancel()
            await asyncio.wait([task])
        if was_up:
            try:
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    with self.understood(one):
                        await self._farewell(one)
            except (AjetError, ServerGoneError, TimeoutError) as error:
                _log.warning("server %d of %s was removed: %s", one.number, self.name, error)
        await asyncio.gather(*(flight.end() for flight in list(one.flights)))
        await one.discard()

    async def _farewell(self, one: Replica) -> None:
        """Read what a server has sampled, and leave it as it was found."""
        if not self.awake.is_set():
            await one.server.wake()
        await one.server.halt()
        for flight in one.flights:
            flight.drop_unless_begun()
        await asyncio.gather(*(flight.over() for flight in one.flights))
        # Its counters are part of the engine's.
        await one.look()
        await one.server.go_on()

    def check(self) -> None:
        """Check that a server is up or may come back.

        :raises EngineError: no server can be restarted.
        """
        if self.hopeless:
            reasons = [one.failure for one in self.replicas if not one.removed]
            raise EngineError(
                f"no server of {self.name} can be restarted. First reason: "
                f"{(reasons or ['all were removed'])[0]}"
            )

    def choose(self, token_ids: Sequence[int]) -> Replica:
        """Return the replica for a prompt; at least one must be up.

        :raises EngineError: no server can be restarted.
        """
        self.check()
        number = self.router.choose(token_ids)
        assert number is not None, "requests are sent only while a server is up"
        return self.replicas[number]

    async def start(self) -> None:
        """Start all servers, and connect to those at a URL. If this fails, call `close`.

        All that are started must come up. The others may come up later, but one server must.

        :raises EngineError: a server did not start, or none is up.
        """
        boots = {one: asyncio.create_task(self._boot(one)) for one in self.replicas}
        try:
            await _all_of([boot for one, boot in boots.items() if not one.url])
            while not self.up and (pending := [boot for boot in boots.values() if not boot.done()]):
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not self.up:
                await _all_of(list(boots.values()))
        except BaseException as error:
            for boot in boots.values():
                boot.cancel()
            await asyncio.gather(*boots.values(), return_exceptions=True)
            if isinstance(error, ServerGoneError):
                raise EngineError(
                    f"a server of {self.name} was lost while it started: {error}"
                ) from error
            raise
        for one, boot in boots.items():
            if not one.up:
                self._restoring[one] = asyncio.create_task(self._followed(one, boot))
        self._watch = asyncio.create_task(SilenceWatch(self.replicas, self.lose).run())

    async def _followed(self, one: Replica, boot: asyncio.Task[None]) -> None:
        """Wait for the first boot of a replica; restore it if that fails."""
        try:
            await boot
        except asyncio.CancelledError:
            boot.cancel()
            raise
        # As in `_restore`.
        except Exception as error:  # noqa: BLE001
            why = str(error) or type(error).__name__
            _log.error("server %d of %s could not be reached: %s", one.number, self.name, why)
            await self._restore(one, why)

    def enter(self, one: Replica) -> None:
        """Allow requests to a replica, unless it was removed meanwhile."""
        if one.removed:
            return
        one.up = True
        one.failure = ""
        self.router.down.discard(one.number)
        self._changed()

    def lose(self, one: Replica, why: str) -> None:
        """Replace a server, unless that has already started."""
        if not one.up or self._closed:
            return
        _log.error("server %d of %s is replaced: %s", one.number, self.name, why)
        one.up = False
        self.router.down.add(one.number)
        self._changed()
        before = self._restoring.pop(one, None)
        self._restoring[one] = asyncio.create_task(self._restore(one, why, before))

    async def doubt(self, one: Replica, why: str) -> None:
        """Replace a server that has failed at a request, if it is not healthy."""
        launched = one.launched
        # The server may have been replaced meanwhile by another, which has not failed.
        if not await one.healthy() and one.launched is launched:
            self.lose(one, why)

    async def until_up(self) -> None:
        """Wait until a server is up.

        :raises EngineError: no server can be restarted.
        """
        while not self.up:
            self.check()
            pending = [task for task in self._restoring.values() if not task.done()]
            if not pending:
                raise EngineError(f"the engine {self.name!r} was closed")
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

    async def rest(self) -> None:
        """Start no servers until `awake` is set; end those being started, and restart them then."""
        self.awake.clear()
        for one, task in list(self._restoring.items()):
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                if not one.removed:
                    self._restoring[one] = asyncio.create_task(
                        self._restore(one, "it was not ready yet")
                    )
        await asyncio.gather(*(one.discard() for one in self.replicas if not one.up))

    async def ask(self, one: Replica, asking: Awaitable[None]) -> None:
        """Make a quick request to a server; replace it if it fails or does not answer."""
        one.asked += 1
        try:
            async with self.patient(one):
                await asking
        except (EngineError, ServerGoneError) as error:
            self.lose(one, str(error))
        finally:
            one.asked -= 1

    async def tell(self, one: Replica, asking: Awaitable[None]) -> None:
        """Make a slow request to a server, raising its refusal.

        :raises EngineError: the server refuses.
        """
        try:
            async with self.patient(one):
                await asking
        except ServerGoneError as error:
            self.lose(one, str(error))

    async def look(self) -> None:
        """Read the counters of all servers that are up; replace unhealthy ones that fail."""

        async def look(one: Replica) -> None:
            try:
                with self.understood(one):
                    await one.look()
            except (EngineError, ServerGoneError) as error:
                await self.doubt(one, str(error))

        await asyncio.gather(*map(look, self.up))

    @contextmanager
    def understood(self, one: Replica) -> Iterator[None]:
        """Convert all errors to `AjetError` or `ServerGoneError`.

        This includes invalid answers, such as a proxy's page.
        """
        try:
            yield
        except (AjetError, ServerGoneError):
            raise
        except OSError as error:
            raise ServerGoneError(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            raise EngineError(
                f"server {one.number} of {self.name} sent an invalid response: "
                f"{type(error).__name__}: {error}"
            ) from error

    @asynccontextmanager
    async def patient(self, one: Replica) -> AsyncIterator[None]:
        """Convert errors as `understood`; raise `ServerGoneError` after `patience` seconds."""
        with self.understood(one):
            limit = asyncio.timeout(self._patience)
            try:
                async with limit:
                    yield
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ServerGoneError(
                    f"it did not complete a request within {self._patience:g} s"
                ) from None

    async def close(self) -> None:
        """End all servers that were started; idempotent."""
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
        # A URL that never answered is probably wrong.
        for _ in range(1 if one.added and not one.lives else _RESTARTS):
            try:
                await one.discard()
                await self.awake.wait()
                await self._boot(one)
            # Catch everything: otherwise the server would silently never come back.
            except Exception as error:  # noqa: BLE001
                why = str(error) or type(error).__name__
                _log.error("server %d of %s could not be restarted: %s", one.number, self.name, why)
            else:
                return
        one.failure = why
        self._changed()
        await one.discard()


async def _all_of(boots: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all; raise the first error as soon as it occurs."""
    if boots:
        done, _ = await asyncio.wait(boots, return_when=asyncio.FIRST_EXCEPTION)
        for boot in done:
            boot.result()
