"""The table of a worker's methods, with a server's end and a worker's end in one process."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ajet_core.interfaces import ServingEngine, Trainer, WorkerContext
from ajet_core.protocol import ModelConfig
from ajet_server.workers import methods
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.host import WorkerHost
from ajet_server.workers.methods import Method
from ajet_server.workers.remote import RemoteEngine, RemoteTrainer
from ajet_testing.scripted_engine import ScriptedEngine, ScriptedEngineSettings

from .test_process import plan, request

METHODS: list[Method[Any, Any]] = [
    value for value in vars(methods).values() if isinstance(value, Method)
]


@pytest.fixture
async def connection() -> AsyncIterator[WorkerConnection]:
    """A connection to a worker's host in this process."""
    ours, theirs = socket.socketpair()
    host = WorkerHost()
    serving = asyncio.create_task(host.serve(theirs))
    opened = await WorkerConnection.open(ours)
    reading = asyncio.create_task(opened.read())
    yield opened
    opened.close()
    await serving
    await host.close()
    reading.cancel()


async def test_a_worker_knows_every_method(connection: WorkerConnection) -> None:
    calls = (connection.call(method, None) for method in METHODS)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [a for a in answers if a is not None and "unknown method" in str(a)] == []


@pytest.mark.parametrize("name", [name for name in vars(RemoteTrainer) if not name.startswith("_")])
def test_a_remote_trainer_has_the_methods_of_a_trainer(name: str) -> None:
    method = getattr(RemoteTrainer, name)
    assert inspect.iscoroutinefunction(method)
    assert inspect.signature(method) == inspect.signature(getattr(Trainer, name))


async def test_an_engine_answers_alike_in_this_process_and_behind_a_connection(
    connection: WorkerConnection, tmp_path: Path
) -> None:
    await connection.call(methods.BOOT, plan(tmp_path))
    engine = ScriptedEngine(ScriptedEngineSettings(), WorkerContext(tmp_path))
    await engine.start(ModelConfig(path="none"))

    async def sampled(serving: ServingEngine) -> list[int]:
        return [t async for chunk in serving.generate(request()) for t in chunk.token_ids]

    assert await sampled(RemoteEngine(connection, "worker")) == await sampled(engine)
    await engine.close()
