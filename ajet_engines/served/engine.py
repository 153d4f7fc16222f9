"""An engine over model servers: requests, weight changes and pauses."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ajet_core.errors import AjetError, EngineError, SealError, WeightsGoneError
from ajet_core.interfaces import (
    Engine,
    EngineInfo,
    EngineStats,
    GenerateChunk,
    GenerateRequest,
    SealReport,
    SettingsT_co,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol.run import ModelConfig
from ajet_engines.request_checks import check_request
from ajet_engines.served.fleet import Fleet
from ajet_engines.served.flight import Flight
from ajet_engines.served.http import ServerGoneError
from ajet_engines.served.metrics import labelled
from ajet_engines.served.replica import Launched, Replica
from ajet_engines.served.sealing import Sealing
from ajet_engines.served.totals import BusyClock
from ajet_engines.served.weights import check_update

if TYPE_CHECKING:
    from ajet_engines.shaping import Shapings

_log = logging.getLogger("ajet.served")

_SERVERS_LOST_BY_ONE_REQUEST = 3


class ServedEngine(Engine[SettingsT_co]):
    """Serves a model by one or more servers, each in a separate process.

    Servers do not need to track versions: before weights change, every request is ended, and
    continues afterwards as a new one from its prompt and sampled tokens. All tokens of one HTTP
    request therefore have one version, and nothing is computed from keys and values of other
    weights. In the same way, requests survive the death of a server, which is replaced by a new one
    with the latest weights.

    :cvar name: name of the engine.
    :cvar weight_channels: channels that `ModelServer.load` supports.
    :cvar shapes: whether `ModelServer.sample` supports penalties, biases and grammars.
    :ivar patience: seconds that a server may take to load weights, or for any other request except
        sampling.
    """

    name: ClassVar[str]
    weight_channels: ClassVar[tuple[str, ...]]
    max_top_logprobs: ClassVar[int]
    shapes: ClassVar[bool] = False

    def __init__(self, settings: SettingsT_co, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self.patience = 900.0
        self._fleet: Fleet | None = None
        self._info: EngineInfo | None = None
        self._shapings: Shapings | None = None
        self._update: WeightUpdate | None = None
        self._policy_version = 0
        self._sealing = Sealing(self.name)
        self._paused = self._updating = self._closed = False
        # Set when requests may be sent, or when no server can come back.
        self._open = asyncio.Event()
        # Held while weights change, and while a new server loads the latest.
        self._weights = asyncio.Lock()
        # Set when weights have changed; cleared before waiting for it.
        self._changed = asyncio.Event()
        # How often requests were ended by `_halt`.
        self._halts = 0
        self._requests = self._active = 0
        self._busy = BusyClock()

    @abstractmethod
    async def launch(self, replica: Replica, model: ModelConfig) -> Launched:
        """Start a server, or connect to the existing one, and wait until it answers.

        :raises EngineError: it did not start.
        """

    async def check_update(self, update: WeightUpdate) -> None:
        """Validate an update before servers load it, which may crash on weights that do not fit.

        :raises EngineError: the weights do not exist or do not fit.
        """
        await asyncio.to_thread(check_update, update, Path(self._model.path))

    def replicas(self) -> int:
        """Return the number of servers to start."""
        return 1

    @property
    def fleet(self) -> Fleet:
        """The servers of the engine.

        :raises EngineError: the engine is not running.
        """
        if self._closed or self._fleet is None:
            raise EngineError(
                f"the engine {self.name!r} is not running: it was not started, or is closed"
            )
        return self._fleet

    async def start(self, model: ModelConfig) -> EngineInfo:
        """Start all servers, or connect to them.

        :raises EngineError: a server did not start; all are ended.
        """
        if self._fleet is not None:
            raise EngineError(f"the engine {self.name!r} has already been started")
        self._model = model
        self._fleet = Fleet(
            self.name,
            self._urls(),
            launch=lambda one: self.launch(one, model),
            welcome=self._welcome,
            changed=self._refresh,
            patience=self.patience,
        )
        try:
            await self._fleet.start()
        except BaseException:
            await self.close()
            raise
        assert self._info is not None, "the servers report their capabilities"
        if self.shapes:
            self._shapings = _shapings(model, self._info)
        return self._info

    def _urls(self) -> list[str]:
        servers = self.context.servers
        started = not servers.urls if servers.started is None else servers.started
        return [*[""] * (self.replicas() if started else 0), *servers.urls]

    async def use_servers(self, urls: Sequence[str] | None) -> dict[str, str]:
        """Add and remove servers; a new one gets the latest weights before its first request."""
        fleet = self.fleet
        if urls is not None:
            await fleet.use(urls)
        return fleet.states

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Sample one completion; closing the generator cancels it in the server.

        :raises ContextLengthError: the prompt leaves no room for a token.
        :raises RequestError: a token id or parameter is not supported by the model or the server.
        :raises EngineError: no server can be restarted, or the engine is not running.
        """
        fleet = self._running()
        assert self._info is not None
        check_request(
            request, self._info, self.max_top_logprobs, penalties=self.shapes, grammar=self.shapes
        )
        if self._shapings is not None:
            # Checked here, where the request can still be refused; in the server it would be too
            # late.
            await self._shapings.prepared(request)
        room = self._info.max_context - len(request.prompt_ids)
        limit = min(request.sampling.max_tokens, room)
        request = replace(request, sampling=replace(request.sampling, max_tokens=limit))
        sampled: list[int] = []
        lost = 0
        self._requests += 1
        self._active += 1
        try:
            while True:
                # The event may have been cleared again before this task runs.
                while not self._open.is_set():
                    await self._open.wait()
                if self._closed:
                    yield GenerateChunk([], [], self._policy_version, "abort")
                    return
                rest = request.continued(sampled)
                chosen = fleet.choose(rest.prompt_ids)
                flight, halts = self._begin(fleet, chosen, rest), self._halts
                try:
                    async for piece in flight.pieces():
                        sampled += piece.token_ids
                        yield GenerateChunk(
                            piece.token_ids,
                            piece.logprobs,
                            flight.policy_version,
                            piece.finish_reason,
                            piece.top_logprobs,
                            cached_tokens=piece.cached_tokens if rest is request else None,
                        )
                        if piece.finish_reason is not None:
                            return
                    interrupted = self._halts > halts or chosen.removed or self._closed
                    if not (flight.heard or interrupted):
                        # Retrying could continue forever.
                        raise EngineError(
                            f"server {chosen.number} of {self.name} ended a request before "
                            "its first token, without a reason"
                        )
                except ServerGoneError as error:
                    lost += 1
                    await fleet.doubt(chosen, str(error))
                    if lost >= _SERVERS_LOST_BY_ONE_REQUEST:
                        raise EngineError(
                            f"{lost} servers of {self.name} failed while processing the same "
                            f"request. Last reason: {error}"
                        ) from error
                finally:
                    self._end(fleet, chosen, flight)
                    await flight.end()
                if len(sampled) >= limit:
                    # The request was interrupted after its last token.
                    yield GenerateChunk([], [], flight.policy_version, "length")
                    return
        finally:
            self._active -= 1

    async def update_weights(self, update: WeightUpdate) -> None:
        """Change the weights on all servers, or on none.

        :raises EngineError: the weights do not exist or do not fit, and the old ones are served; or
            no server survived the change.
        :raises SealError: no server has loaded the published weights; all are restarted with the
            old ones.
        """
        fleet = self._running()
        if update.channel not in self.weight_channels:
            raise EngineError(
                f"the engine {self.name!r} has no weight channel {update.channel!r}, only "
                f"{', '.join(self.weight_channels)}"
            )
        await self.check_update(update)
        async with self._weights:
            self._updating = True
            self._refresh()
            up = fleet.up
            try:
                await self._halt(fleet)
                errors = await asyncio.gather(*(self._load(fleet, one, update) for one in up))
                refused = [error for error in errors if isinstance(error, EngineError)]
                taken = not refused or None in errors
                if taken:
                    self._update, self._policy_version = update, update.policy_version
                    self._changed.set()
                    fleet.router.forget()
                for one, error in zip(up, errors, strict=True):
                    # A server that the sender did not reach still serves the old weights, which the
                    # others may not.
                    untouched = isinstance(error, WeightsGoneError) and not taken
                    if error is not None and not untouched:
                        fleet.lose(one, str(error))
                if not self._paused:
                    await self._go_on(fleet)
            except BaseException:
                # The caller was cancelled, and the state of the servers is unknown.
                for one in up:
                    fleet.lose(one, "a change of its weights was interrupted")
                raise
            finally:
                self._updating = False
                self._refresh()
        if not taken and isinstance(refused[0], SealError):
            raise refused[0]
        if not taken:
            raise EngineError(
                f"the weights of policy version {update.policy_version} were refused: "
                f"{refused[0]}; the servers of {self.name} keep the previous weights, and "
                "are restarted if necessary"
            )
        await fleet.until_up()

    async def seal(self) -> SealReport:
        """Return the proofs of servers that are up, and the failures of those replaced."""
        return self._sealing.report(self._policy_version, self._running().up)

    async def pause(self) -> None:
        """End all requests in the servers; they continue after `resume`."""
        fleet = self._running()
        async with self._weights:
            self._paused = True
            self._refresh()
            await self._halt(fleet)

    async def resume(self) -> None:
        """Continue sampling."""
        fleet = self._running()
        async with self._weights:
            await self._go_on(fleet)
            self._paused = False
            self._refresh()

    async def sleep(self) -> None:
        """Free the servers' device memory; meanwhile no request is answered and no server started.

        :raises EngineError: a server does not support it.
        """
        fleet = self._running()
        try:
            await fleet.rest()
            await self.pause()
        except BaseException:
            fleet.awake.set()
            raise
        for one in fleet.replicas:
            if one.up:
                await fleet.tell(one, one.server.sleep())

    async def wake(self) -> None:
        """Undo `sleep`.

        :raises EngineError: a server does not support it.
        """
        fleet = self.fleet
        fleet.awake.set()
        for one in fleet.replicas:
            if one.up:
                await fleet.tell(one, one.server.wake())
        await self.resume()

    async def stats(self) -> EngineStats:
        """Return counters summed over all servers, including those that died.

        ``forward_seconds`` is the time during which any server had a request; no more is known
        here.

        :raises EngineError: no server can be restarted.
        """
        fleet = self._running()
        await fleet.look()
        latest = [one.totals.latest for one in fleet.replicas]
        running = sum(stats.running for stats in latest)

        def total(name: str) -> int:
            return sum(one.totals.counter(name) for one in fleet.replicas)

        return EngineStats(
            running=running,
            waiting=max(0, self._active - running),
            requests=self._requests,
            prompt_tokens=total("prompt_tokens"),
            cached_tokens=total("cached_tokens"),
            sampled_tokens=total("sampled_tokens"),
            forward_seconds=self._busy.seconds,
        )

    async def metrics(self) -> str:
        """Return metrics of the servers that are up, labelled with their number as ``replica``."""
        up = self._fleet.up if self._fleet is not None else []
        texts = await asyncio.gather(*(one.server.metrics() for one in up), return_exceptions=True)
        by_number = {
            one.number: text for one, text in zip(up, texts, strict=True) if isinstance(text, str)
        }
        return await asyncio.to_thread(labelled, by_number)

    async def close(self) -> None:
        """End all servers that were started; idempotent."""
        self._closed = True
        self._refresh()
        if self._fleet is not None:
            await self._fleet.close()

    def _running(self) -> Fleet:
        fleet = self.fleet
        fleet.check()
        return fleet

    def _refresh(self) -> None:
        """Update whether requests may be sent, after any change of state."""
        fleet = self._fleet
        hopeless = self._closed or fleet is None or fleet.hopeless
        going = not (self._paused or self._updating) and fleet is not None and bool(fleet.up)
        if going or hopeless:
            self._open.set()
        else:
            self._open.clear()

    def _begin(self, fleet: Fleet, one: Replica, request: GenerateRequest) -> Flight:
        """Send a request. Nothing was awaited since `_open` was checked: its version is right."""
        flight = Flight(one.server.sample(request), self._policy_version)
        one.flights.add(flight)
        fleet.router.begin(one.number, request.prompt_ids)
        self._busy.begin()
        return flight

    def _end(self, fleet: Fleet, one: Replica, flight: Flight) -> None:
        one.forget(flight)
        fleet.router.end(one.number)
        self._busy.end()

    async def _welcome(self, one: Replica) -> None:
        """Bring a started server to the state of the others."""
        async with self.fleet.patient(one):
            info = await one.server.prepare()
            if one.url and self._info is not None:
                _check_like(self._info, info, one.url, self._model.path)
        while not await self._brought_up(one, info):
            _log.warning(
                "server %d of %s waits for weights of a new trainer", one.number, self.name
            )
            await self._changed.wait()

    async def _brought_up(self, one: Replica, info: EngineInfo) -> bool:
        """Give a server the latest weights and enter it; return False if their sender is gone."""
        async with self._weights, self.fleet.patient(one):
            self._changed.clear()
            if (update := self._latest(one)) is not None:
                await one.server.halt()
                try:
                    await one.server.load(update)
                except WeightsGoneError:
                    return False
                except EngineError as error:
                    if not one.url:
                        raise
                    raise EngineError(
                        f"the server at {one.url} cannot load the run's weights; start it with the "
                        f"model {self._model.path}, then add it again: {error}"
                    ) from error
                await self._sealing.prove(one, update, None)
                await one.server.go_on()
            one.totals.begin(await one.server.stats())
            if self._info is None or not one.url:
                self._info = info
            self.fleet.enter(one)
        return True

    def _latest(self, one: Replica) -> WeightUpdate | None:
        """Return the weights that a new server must load; None if it was started with them."""
        assert one.launched is not None
        if self._update is None and one.launched.process is None:
            # It is unknown what the server has served before.
            return WeightUpdate("safetensors_dir", 0, self._model.path)
        return self._update

    async def _halt(self, fleet: Fleet) -> None:
        """Stop sampling in all servers, and read all tokens sampled so far."""
        self._halts += 1

        async def halt(one: Replica) -> None:
            await fleet.ask(one, one.server.halt())
            for flight in one.flights:
                flight.drop_unless_begun()
            await asyncio.gather(*(flight.over() for flight in one.flights))

        await asyncio.gather(*map(halt, fleet.up))

    async def _go_on(self, fleet: Fleet) -> None:
        await asyncio.gather(*(fleet.ask(one, one.server.go_on()) for one in fleet.up))

    async def _load(self, fleet: Fleet, one: Replica, update: WeightUpdate) -> Exception | None:
        """Load weights in a server and return the error: an `EngineError` unless it was lost."""
        if not one.up:
            return ServerGoneError("it was lost while it was halted")
        try:
            async with fleet.patient(one):
                await one.server.load(update)
                await self._sealing.prove(one, update, self._update)
        except (AjetError, ServerGoneError) as error:
            refusal = one.up and isinstance(error, EngineError)
            return error if refusal else ServerGoneError(str(error))
        return None


def _shapings(model: ModelConfig, info: EngineInfo) -> Shapings:
    # Imported here because it needs numpy, which other engines do not need.
    from ajet_engines.shaping import Shapings

    return Shapings(model.path, info.vocab_size)


def _check_like(first: EngineInfo, info: EngineInfo, url: str, model: str) -> None:
    """Check that a server elsewhere can do what the engine's first one can.

    :raises EngineError: it cannot.
    """
    if info.vocab_size != first.vocab_size or info.max_context < first.max_context:
        raise EngineError(
            f"the server at {url} has a vocabulary of {info.vocab_size} and a context of "
            f"{info.max_context} tokens, not {first.vocab_size} and {first.max_context} as the "
            f"others; start it with the model {model} and this context, then add it again"
        )
    if info.needs_probe and not first.needs_probe:
        raise EngineError(
            f"the server at {url} cannot prove its weights as the others do; start it with the "
            "command in the plugin's README, then add it again"
        )
