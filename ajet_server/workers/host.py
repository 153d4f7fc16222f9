"""The worker's side: makes the components and serves the server's calls.

The engine lives on the event loop, the trainer on one thread of its own, so that a training step does
not keep the engine from answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import socket
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ajet_core import __version__
from ajet_core.errors import AjetError, WorkerBootError, WorkerError
from ajet_core.interfaces import (
    ComponentSettings,
    Engine,
    EngineInfo,
    Trainer,
    TrainerInfo,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.timeline import TrainBatch
from ajet_server.workers import frames
from ajet_server.workers.codec import (
    BootPlan,
    BootReport,
    ComponentPlan,
    from_plain,
    pack_chunk,
    to_plain,
    unpack_request,
)

T = TypeVar("T")

_CLOSE_SECONDS = 2.0
# A new worker is there in about this time.
_IDLE_SECONDS = 5.0


def _import(target: str) -> Any:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise WorkerBootError(
            f"cannot import {target!r} in this worker's interpreter, {sys.executable}: {error}; install what is missing "
            "there, or make an environment for it (ajet doctor says how), or name another interpreter in the setting "
            "workers.python"
        ) from error


def _make(plan: ComponentPlan, context: WorkerContext) -> Any:
    settings_type: type[ComponentSettings] = _import(plan.settings_target)
    return _import(plan.target)(settings_type.model_validate(plan.settings), context)


def _check_version(of_server: object) -> None:
    if of_server != __version__:
        raise WorkerBootError(
            f"this worker's interpreter, {sys.executable}, has agentjet {__version__}, and the server is agentjet "
            f"{of_server}: both must have the same"
        )


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off during a boot, and freeze what the boot has made.

    Imports make hundreds of thousands of objects that stay: looking for garbage among them takes a sixth of a boot's
    time, and would hold up answers as long later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class WorkerHost:
    """Makes the components and serves one server after the other with them."""

    def __init__(self) -> None:
        self._writer: frames.FrameWriter
        self._booted: tuple[BootPlan, BootReport] | None = None
        self._asleep = False
        self._engine: Engine | None = None
        self._trainer: Trainer | None = None
        self._trainer_thread = ThreadPoolExecutor(1, thread_name_prefix="trainer")
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._chunks: list[list[Any]] = []
        self._methods: dict[str, Callable[[int, Any], Awaitable[Any]]] = {
            "boot": self._boot,
            "adopt": self._adopt,
            "ping": self._ping,
            "generate": self._generate,
            "engine.update_weights": self._update_weights,
            "engine.seal": self._seal,
            "engine.pause": self._pause,
            "engine.resume": self._resume,
            "engine.sleep": self._sleep,
            "engine.wake": self._wake,
            "engine.stats": self._stats,
            "engine.metrics": self._metrics,
            "trainer.step": self._step,
            "trainer.rehearse": self._rehearse,
            "trainer.publish": self._publish,
            "trainer.save": self._save,
            "trainer.export": self._export,
        }

    async def serve(self, connection: socket.socket) -> bool:
        """Answer calls until the server closes the connection.

        :return: whether the server went away without saying that this worker is needed no more, and another one
            can go on with it.
        """
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=1 << 20)
        self._writer = frames.FrameWriter(writer)
        async for frame in frames.read(reader):
            kind, *rest = frame
            if kind == frames.END:
                return False
            call_id = rest[0]
            if kind == frames.CALL:
                method, params = rest[1:]
                task = asyncio.create_task(self._answer(call_id, method, params))
                self._tasks[call_id] = task
                task.add_done_callback(functools.partial(self._forget, call_id))
            elif kind == frames.CANCEL and (running := self._tasks.get(call_id)) is not None:
                running.cancel()
        return self._booted is not None

    async def forsake_calls(self) -> bool:
        """End the calls of a server that is gone; False if some do not end.

        A training step goes on: nothing can stop it.
        """
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        if not running:
            return True
        _, unending = await asyncio.wait(running, timeout=_CLOSE_SECONDS)
        return not unending

    async def close(self) -> None:
        """Free the components."""
        await self.forsake_calls()
        # Nobody waits for this worker any more: a step in progress must not keep its memory alive.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                if self._engine is not None:
                    await self._engine.close()
                if self._trainer is not None:
                    await self._on_trainer(lambda trainer: trainer.close())
        self._trainer_thread.shutdown(wait=False)

    def _forget(self, call_id: int, _: asyncio.Task[None]) -> None:
        self._tasks.pop(call_id, None)

    async def _answer(self, call_id: int, method: str, params: Any) -> None:
        try:
            handler = self._methods.get(method)
            if handler is None:
                raise WorkerError(f"unknown method {method!r}")
            answer = frames.pack([frames.RESULT, call_id, await handler(call_id, params)])
        except asyncio.CancelledError:
            answer = frames.pack([frames.RESULT, call_id, None])
        except AjetError as error:
            answer = frames.pack([frames.ERROR, call_id, error.to_payload()])
        # A component may raise anything; its caller is in another process and must hear of it.
        except Exception as error:  # noqa: BLE001
            text = "".join(traceback.format_exception(error)[-12:])
            cls = WorkerBootError if method == "boot" else WorkerError
            failure = cls(f"{method} failed:\n{text}").to_payload()
            answer = frames.pack([frames.ERROR, call_id, failure])
        self._flush_chunks()
        self._writer.write(answer)

    def _need_engine(self) -> Engine:
        if self._engine is None:
            raise WorkerError("this worker hosts no engine")
        return self._engine

    async def _on_trainer(self, work: Callable[[Trainer], T]) -> T:
        trainer = self._trainer
        if trainer is None:
            raise WorkerError("this worker hosts no trainer")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._trainer_thread, work, trainer)

    async def _boot(self, _: int, params: Any) -> Any:
        # Before the plan is read: another version may have written it in another form.
        _check_version(params.get("version"))
        plan = from_plain(BootPlan, params)
        with _without_garbage_collection():
            report = await self._make_components(plan)
        self._booted = plan, report
        return to_plain(report)

    async def _make_components(self, plan: BootPlan) -> BootReport:
        context = WorkerContext(
            run_dir=Path(plan.run_dir),
            seed=plan.seed,
            servers=plan.servers,
            collective_host=plan.collective_host,
        )
        trainer_info: TrainerInfo | None = None
        engine_info: EngineInfo | None = None
        # The trainer comes first: an engine in the same process then takes over its weights.
        if plan.trainer is not None:
            self._trainer = _make(plan.trainer, context)
            trainer_info = await self._on_trainer(lambda t: t.start(plan.model, plan.algorithm))
            if plan.checkpoint is not None:
                directory = Path(plan.checkpoint)
                await self._on_trainer(lambda t: t.load(directory))
        if (channel := plan.channel) is not None:
            version = plan.policy_version
            await self._on_trainer(lambda t: t.publish(channel, version))
        if plan.engine is not None:
            self._engine = _make(plan.engine, context)
            engine_info = await self._need_engine().start(plan.model)
        return BootReport(engine_info, trainer_info)

    async def _adopt(self, _: int, params: Any) -> Any:
        """As `_boot`, with the components that are there; None if they are others, or cannot be put back."""
        plan = from_plain(BootPlan, params)
        if self._booted is None or self._booted[0].components != plan.components:
            return None
        if not await self._is_idle():
            return None
        if self._trainer is not None:
            if plan.checkpoint is None:
                return None
            directory = Path(plan.checkpoint)
            await self._on_trainer(lambda t: t.load(directory))
            if (channel := plan.channel) is not None:
                version = plan.policy_version
                await self._on_trainer(lambda t: t.publish(channel, version))
        if self._asleep:
            # The server was killed while a step was trained.
            await self._wake(0, None)
        elif self._engine is not None:
            await self._engine.resume()
        return to_plain(self._booted[1])

    async def _is_idle(self) -> bool:
        """Whether what the last server had begun ends soon; the engine is paused then."""
        try:
            async with asyncio.timeout(_IDLE_SECONDS):
                if self._engine is not None:
                    await self._engine.pause()
                if self._trainer is not None:
                    await self._on_trainer(lambda _: None)
        except TimeoutError:
            return False
        return True

    async def _ping(self, _: int, __: Any) -> None:
        """Nothing: that it is answered is the answer."""

    async def _generate(self, call_id: int, params: Any) -> None:
        request = unpack_request(params)
        chunks = self._need_engine().generate(request)
        try:
            async for chunk in chunks:
                if not self._chunks:
                    asyncio.get_running_loop().call_soon(self._flush_chunks)
                self._chunks.append([call_id, pack_chunk(chunk)])
        finally:
            # Closing the generator is what tells the engine that a cancelled call's slot is free.
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    def _flush_chunks(self) -> None:
        """Send in one frame what all running calls produced in this turn of the event loop."""
        if self._chunks:
            self._writer.write(frames.pack([frames.CHUNKS, self._chunks]))
            self._chunks = []

    async def _update_weights(self, _: int, params: Any) -> None:
        await self._need_engine().update_weights(from_plain(WeightUpdate, params))

    async def _seal(self, _: int, __: Any) -> Any:
        return to_plain(await self._need_engine().seal())

    async def _pause(self, _: int, __: Any) -> None:
        await self._need_engine().pause()

    async def _resume(self, _: int, __: Any) -> None:
        await self._need_engine().resume()

    async def _sleep(self, _: int, __: Any) -> None:
        engine = self._need_engine()
        # Also if it is interrupted, or fails half-way.
        self._asleep = True
        await engine.sleep()

    async def _wake(self, _: int, __: Any) -> None:
        await self._need_engine().wake()
        self._asleep = False

    async def _stats(self, _: int, __: Any) -> Any:
        return to_plain(await self._need_engine().stats())

    async def _metrics(self, _: int, __: Any) -> str:
        return await self._need_engine().metrics()

    async def _step(self, _: int, params: Any) -> Any:
        # A batch may have millions of tokens: it is decoded on the trainer's thread too.
        return await self._on_trainer(
            lambda trainer: to_plain(trainer.step(from_plain(TrainBatch, params)))
        )

    async def _rehearse(self, _: int, params: Any) -> Any:
        return await self._on_trainer(
            lambda trainer: to_plain(trainer.rehearse(from_plain(TrainBatch, params)))
        )

    async def _save(self, _: int, params: Any) -> None:
        directory = Path(params["directory"])
        await self._on_trainer(lambda trainer: trainer.save(directory))

    async def _export(self, _: int, params: Any) -> None:
        directory = Path(params["directory"])
        await self._on_trainer(lambda trainer: trainer.export(directory))

    async def _publish(self, _: int, params: Any) -> Any:
        channel, version = params["channel"], params["policy_version"]
        return to_plain(await self._on_trainer(lambda trainer: trainer.publish(channel, version)))
