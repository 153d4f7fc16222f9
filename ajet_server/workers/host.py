"""The worker's side: create the components and serve the server's calls.

The engine runs on the event loop and the trainer in a separate thread, so that a training step does
not block the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Any, TypeVar, get_origin

from ajet_core import __version__
from ajet_core.errors import AjetError, EngineError, WorkerBootError, WorkerError
from ajet_core.interfaces import (
    ComponentSettings,
    Engine,
    EngineInfo,
    Trainer,
    TrainerInfo,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.plugin.targets import plugin_faults
from ajet_server.workers import frames, methods
from ajet_server.workers.callee import Callee, CallInProgress, Handler
from ajet_server.workers.codec import (
    BootPlan,
    BootReport,
    ComponentPlan,
    from_plain,
    pack_chunk,
    to_plain,
    unpack_request,
)
from ajet_server.workers.delta_end import DeltaEnd
from ajet_server.workers.methods import Method
from ajet_server.workers.rendezvous import accepted

P = TypeVar("P")
R = TypeVar("R")

_log = logging.getLogger("ajet.worker")

_CLOSE_SECONDS = 2.0
# A new worker would start in about this time.
_IDLE_SECONDS = 5.0


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise WorkerBootError(
            f"cannot import {target!r} in this worker's interpreter, {sys.executable}: "
            f"{error}; install the missing packages there, create an environment (`ajet "
            "doctor` shows how), or set workers.python to another interpreter"
        ) from error


@contextlib.contextmanager
def _faults(plan: ComponentPlan, what: str, kind: type[AjetError]) -> Iterator[None]:
    """Raise what a component raises as `kind`, with its plugin; log the traceback here."""
    try:
        with plugin_faults(str(plan), what, kind):
            yield
    except kind as error:
        if error.__cause__ is not None:
            _log.error("%s", error.message, exc_info=error.__cause__)
        raise


def _checked(kind: type[R] | UnionType, result: R) -> R:
    """Return a component's result.

    :raises TypeError: it has another type.
    """
    expected = get_origin(kind) if isinstance(kind, GenericAlias) else kind
    if not isinstance(result, expected or object):
        raise TypeError(f"it returned a {type(result).__name__} instead of {kind}")
    return result


def _make(plan: ComponentPlan, context: WorkerContext) -> Any:
    settings_type: type[ComponentSettings] = _import(plan.settings_target)
    target = _import(plan.target)
    with _faults(plan, "cannot be created", WorkerBootError):
        return target(settings_type.model_validate(plan.settings), context)


def _check_version(of_server: object) -> None:
    if of_server != __version__:
        raise WorkerBootError(
            f"this worker's interpreter, {sys.executable}, has agentjet {__version__}, but "
            f"the server is agentjet {of_server}: install the same version in both"
        )


def _plain_result(method: Method[P, R], result: R) -> Any:
    # A component may return a value although the method has no result.
    return None if method.result is NoneType else to_plain(_checked(method.result, result))


def _failed_in(method: str) -> str:
    return f"failed in {method.rpartition('.')[2]}"


def _failed(method: str) -> type[AjetError]:
    return WorkerBootError if method == methods.BOOT.name else WorkerError


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector during a boot, and freeze the objects created by it.

    Imports create hundreds of thousands of permanent objects. Collecting among them takes a sixth
    of a boot's time, and later collections would delay responses by as much.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class WorkerHost:
    """Creates the components and serves one server after the other with them."""

    def __init__(self) -> None:
        self._server: Callee | None = None
        self._callers: dict[str, asyncio.Task[None]] = {}
        self._called_by: set[Callee] = set()
        self._booted: tuple[BootPlan, BootReport] | None = None
        self._asleep = False
        self._engine: Engine | None = None
        self._trainer: Trainer | None = None
        self._engine_plan: ComponentPlan
        self._trainer_plan: ComponentPlan
        self._weights: DeltaEnd
        self._trainer_thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self._handlers: dict[str, Handler] = dict(
            [
                (methods.GENERATE, self._generate),
                (methods.BOOT.name, self._boot_of_any_version),
                self._on_loop(methods.ADOPT, self._adopt),
                self._on_loop(methods.PING, self._ping),
                self._on_loop(methods.LISTEN, self._listen),
                self._on_loop(methods.IMPORT, self._import_ahead),
                self._on_engine(methods.UPDATE_WEIGHTS, self._update_weights),
                self._on_engine(methods.SEAL, lambda engine, _: engine.seal()),
                self._on_engine(methods.PAUSE, lambda engine, _: engine.pause()),
                self._on_engine(methods.RESUME, lambda engine, _: engine.resume()),
                self._on_engine(methods.SLEEP, self._sleep),
                self._on_engine(methods.WAKE, self._wake),
                self._on_engine(
                    methods.USE_SERVERS, lambda engine, servers: engine.use_servers(servers.urls)
                ),
                self._on_engine(methods.STATS, lambda engine, _: engine.stats()),
                self._on_engine(methods.METRICS, lambda engine, _: engine.metrics()),
                self._on_trainer(methods.STEP, lambda trainer, batch: trainer.step(batch)),
                self._on_trainer(methods.REHEARSE, lambda trainer, batch: trainer.rehearse(batch)),
                self._on_trainer(methods.PUBLISH, lambda t, args: self._weights.publish(t, *args)),
                self._on_trainer(methods.SAVE, lambda trainer, path: trainer.save(Path(path))),
                self._on_trainer(methods.EXPORT, lambda trainer, path: trainer.export(Path(path))),
            ]
        )

    async def serve(self, connection: socket.socket) -> bool:
        """Serve calls until the server closes the connection.

        :return: whether another server can continue with this worker: it has booted, and the server
            disappeared without ending it.
        """
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
        self._server = Callee(self._handlers, frames.FrameWriter(writer), _failed)
        async for frame in frames.read(reader):
            if frame[0] == frames.END:
                return False
            self._server.receive(frame)
        return self._booted is not None

    async def cancel_calls(self) -> bool:
        """Cancel the calls of a server that is gone; return False if some do not end.

        Other callers are disconnected: they reconnect when the next server requests it. A training
        step continues: it cannot be interrupted.
        """
        for callee in self._called_by:
            callee.close()
        calling = [*self._called_by, *([] if self._server is None else [self._server])]
        return all(await asyncio.gather(*(callee.cancel_all() for callee in calling)))

    async def close(self) -> None:
        """Close the components."""
        await self.cancel_calls()
        for accepting in list(self._callers.values()):
            accepting.cancel()
        # Whatever fails, the rest is closed.
        if self._engine is not None:
            await self._close(self._engine_plan, self._engine.close)
        if self._trainer is not None:
            await self._close(self._trainer_plan, lambda: self._in_thread(lambda t: t.close()))
        self._trainer_thread.shutdown(wait=False)
        if self._server is not None:
            self._server.close()

    async def _close(self, plan: ComponentPlan, close: Callable[[], Awaitable[None]]) -> None:
        # Do not wait for a step in progress: it would keep the worker's memory allocated.
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                with _faults(plan, "failed in close", WorkerError):
                    await close()
        except TimeoutError:
            _log.warning("%s has not closed after %g s", plan, _CLOSE_SECONDS)
        except AjetError as error:
            # Other exceptions are in the log already.
            if error.__cause__ is None:
                _log.error("%s failed in close: %s", plan, error.message)

    async def _import_ahead(self, targets: list[str]) -> None:
        """Import what the next boot will need; that boot reports what cannot be imported."""
        with _without_garbage_collection(), contextlib.suppress(WorkerBootError):
            for target in targets:
                _import(target)

    async def _listen(self, path: str) -> None:
        """Let other processes of this user connect to `path` to call `ServingEngine.generate`."""
        if path not in self._callers:
            listening = asyncio.get_running_loop().create_future()
            accepting = asyncio.create_task(self._accept(Path(path), listening))
            self._callers[path] = accepting
            # The next `LISTEN` tries again.
            accepting.add_done_callback(lambda _: self._callers.pop(path, None))
            await asyncio.wait([accepting, listening], return_when=asyncio.FIRST_COMPLETED)
            if accepting.done():
                await accepting

    async def _accept(self, path: Path, listening: asyncio.Future[None]) -> None:
        serving: set[asyncio.Task[None]] = set()
        async for connection in accepted(path, listening):
            task = asyncio.create_task(self._serve_caller(connection))
            serving.add(task)
            task.add_done_callback(serving.discard)

    async def _serve_caller(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
        generate = {methods.GENERATE: self._generate}
        callee = Callee(generate, frames.FrameWriter(writer))
        self._called_by.add(callee)
        try:
            async for frame in frames.read(reader):
                if frame[0] == frames.END:
                    return
                callee.receive(frame)
        finally:
            self._called_by.discard(callee)
            await callee.cancel_all()
            callee.close()

    def _need_engine(self) -> Engine:
        if self._engine is None:
            raise WorkerError("this worker hosts no engine")
        return self._engine

    async def _in_thread(self, work: Callable[[Trainer], R]) -> R:
        trainer = self._trainer
        if trainer is None:
            raise WorkerError("this worker hosts no trainer")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._trainer_thread, work, trainer)

    def _on_loop(
        self, method: Method[P, R], answer: Callable[[P], Awaitable[R]]
    ) -> tuple[str, Handler]:
        async def handle(_: CallInProgress, plain: Any) -> Any:
            return _plain_result(method, await answer(from_plain(method.params, plain)))

        return method.name, handle

    def _on_engine(
        self, method: Method[P, R], answer: Callable[[Engine, P], Awaitable[R]]
    ) -> tuple[str, Handler]:
        async def handle(_: CallInProgress, plain: Any) -> Any:
            engine, params = self._need_engine(), from_plain(method.params, plain)
            # Unlike failures of the trainer, those of the engine say nothing about the batch.
            with _faults(self._engine_plan, _failed_in(method.name), EngineError):
                return _plain_result(method, await answer(engine, params))

        return method.name, handle

    def _on_trainer(
        self, method: Method[P, R], answer: Callable[[Trainer, P], R]
    ) -> tuple[str, Handler]:
        # Batches may have millions of tokens: convert them in the trainer's thread too.
        def work(trainer: Trainer, plain: Any) -> Any:
            params = from_plain(method.params, plain)
            with _faults(self._trainer_plan, _failed_in(method.name), WorkerError):
                return _plain_result(method, answer(trainer, params))

        async def handle(_: CallInProgress, plain: Any) -> Any:
            return await self._in_thread(lambda trainer: work(trainer, plain))

        return method.name, handle

    async def _boot_of_any_version(self, _: CallInProgress, plain: Any) -> Any:
        # Check before reading the plan: another version may have a different format.
        _check_version(plain.get("version"))
        return to_plain(await self._boot(from_plain(methods.BOOT.params, plain)))

    async def _boot(self, plan: BootPlan) -> BootReport:
        with _without_garbage_collection():
            report = await self._make_components(plan)
        self._booted = plan, report
        return report

    async def _make_components(self, plan: BootPlan) -> BootReport:
        context = WorkerContext(
            run_dir=Path(plan.run_dir),
            seed=plan.seed,
            exact=plan.exact,
            servers=plan.servers,
            collective_host=plan.collective_host,
        )
        self._weights = DeltaEnd(plan.weights, context.run_dir)
        trainer_info: TrainerInfo | None = None
        engine_info: EngineInfo | None = None
        # Start the trainer first: an engine in the same process then takes over its weights.
        if plan.trainer is not None:
            self._trainer_plan, self._trainer = plan.trainer, _make(plan.trainer, context)
            trainer_info = await self._boot_trainer(
                "start", lambda t: _checked(TrainerInfo, t.start(plan.model, plan.algorithm))
            )
            if plan.checkpoint is not None:
                directory = Path(plan.checkpoint)
                await self._boot_trainer("load", lambda t: t.load(directory))
        if (channel := plan.channel) is not None:
            version = plan.policy_version
            await self._boot_trainer(
                "publish", lambda t: self._weights.publish(t, channel, version)
            )
        if plan.engine is not None:
            self._engine_plan, self._engine = plan.engine, _make(plan.engine, context)
            with _faults(plan.engine, "failed in start", WorkerBootError):
                engine_info = _checked(EngineInfo, await self._need_engine().start(plan.model))
        return BootReport(engine_info, trainer_info)

    async def _boot_trainer(self, method: str, work: Callable[[Trainer], R]) -> R:
        with _faults(self._trainer_plan, f"failed in {method}", WorkerBootError):
            return await self._in_thread(work)

    async def _adopt(self, plan: BootPlan) -> BootReport | None:
        """Reuse the present components at the plan's checkpoint; None if that is not possible."""
        if self._booted is None or self._booted[0].components != plan.components:
            return None
        if not await self._is_idle():
            return None
        if self._trainer is not None:
            if plan.checkpoint is None:
                return None
            directory = Path(plan.checkpoint)
            await self._in_thread(lambda t: t.load(directory))
            if (channel := plan.channel) is not None:
                version = plan.policy_version
                await self._in_thread(lambda t: self._weights.publish(t, channel, version))
        if self._engine is not None:
            # The engine sleeps if the server was killed during a training step.
            await (self._wake(self._engine, None) if self._asleep else self._engine.resume())
            if plan.servers.urls != self._booted[0].servers.urls:
                await self._engine.use_servers(plan.servers.urls)
        return self._booted[1]

    async def _is_idle(self) -> bool:
        """Return whether the last server's work ends soon; if so, the engine is paused."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                if self._engine is not None:
                    await self._engine.pause()
                if self._trainer is not None:
                    await self._in_thread(lambda _: None)
        except TimeoutError:
            return False
        return True

    async def _update_weights(self, engine: Engine, update: WeightUpdate) -> None:
        await self._weights.receive(engine, update)

    async def _ping(self, _: None) -> None:
        """Do nothing: the response shows that the worker is alive."""

    async def _generate(self, call: CallInProgress, params: Any) -> None:
        request, engine = unpack_request(params), self._need_engine()
        with _faults(self._engine_plan, _failed_in(methods.GENERATE), WorkerError):
            chunks = engine.generate(request)
            try:
                async for chunk in chunks:
                    call.send_chunk(pack_chunk(chunk))
            finally:
                # Closing the generator tells the engine that a cancelled call's slot is free.
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()

    async def _sleep(self, engine: Engine, _: None) -> None:
        # Set the flag even if sleeping is interrupted or fails halfway.
        self._asleep = True
        await engine.sleep()

    async def _wake(self, engine: Engine, _: None) -> None:
        await engine.wake()
        self._asleep = False
