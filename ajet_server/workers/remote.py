"""The server's proxies of an engine and a trainer that run in a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ajet_core.interfaces import (
    EngineStats,
    GenerateChunk,
    GenerateRequest,
    SealReport,
    ServingEngine,
    StepReport,
    WeightUpdate,
)
from ajet_core.timeline import TrainBatch
from ajet_server.workers import methods
from ajet_server.workers.codec import ModelServerUrls
from ajet_server.workers.connection import WorkerConnection


class RemoteEngine(ServingEngine):
    """The engine of a worker. Any method also raises `WorkerDiedError` if the worker ends first.

    :param worker: the worker's name in logs.
    """

    def __init__(self, connection: WorkerConnection, worker: str) -> None:
        self._connection = connection
        self._worker = worker

    def __str__(self) -> str:
        return self._worker

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self._connection.generate(request)

    async def update_weights(self, update: WeightUpdate) -> None:
        await self._connection.call(methods.UPDATE_WEIGHTS, update)

    async def seal(self) -> SealReport:
        return await self._connection.call(methods.SEAL, None)

    async def pause(self) -> None:
        await self._connection.call(methods.PAUSE, None)

    async def resume(self) -> None:
        await self._connection.call(methods.RESUME, None)

    async def sleep(self) -> None:
        await self._connection.call(methods.SLEEP, None)

    async def wake(self) -> None:
        await self._connection.call(methods.WAKE, None)

    async def use_servers(self, urls: Sequence[str] | None) -> dict[str, str]:
        listed = None if urls is None else list(urls)
        return await self._connection.call(methods.USE_SERVERS, ModelServerUrls(listed))

    async def stats(self) -> EngineStats:
        return await self._connection.call(methods.STATS, None)

    async def metrics(self) -> str:
        return await self._connection.call(methods.METRICS, None)


class RemoteTrainer:
    """The trainer of a worker: the methods of a started `Trainer`, as coroutines.

    The methods of a `Trainer` block their thread, so the server's event loop cannot call them. Any
    method here also raises `WorkerDiedError` if the worker ends first.
    """

    def __init__(self, connection: WorkerConnection) -> None:
        self._connection = connection

    async def step(self, batch: TrainBatch) -> StepReport:
        """Train on a batch, as `Trainer.step` does."""
        return await self._connection.call(methods.STEP, batch)

    async def rehearse(self, batch: TrainBatch) -> StepReport:
        """Rehearse a batch, as `Trainer.rehearse` does."""
        return await self._connection.call(methods.REHEARSE, batch)

    async def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish the weights, as `Trainer.publish` does."""
        return await self._connection.call(methods.PUBLISH, (channel, policy_version))

    async def save(self, directory: Path) -> None:
        """Save a checkpoint, as `Trainer.save` does."""
        await self._connection.call(methods.SAVE, str(directory))

    async def export(self, directory: Path) -> None:
        """Export the model, as `Trainer.export` does."""
        await self._connection.call(methods.EXPORT, str(directory))
