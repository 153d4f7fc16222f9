"""Real worker processes with the scripted components."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from ajet_core import __version__
from ajet_core.errors import (
    ContextLengthError,
    EngineError,
    WorkerBootError,
    WorkerDiedError,
    WorkerError,
)
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_core.timeline import (
    TrainBatch,
    TrainCall,
    TrainEpisode,
    TrainSegment,
    TrainSpan,
    TrainTree,
)
from ajet_installation import Interpreter
from ajet_server.workers.codec import BootPlan, ComponentPlan
from ajet_server.workers.methods import Method
from ajet_server.workers.process import WorkerProcess
from ajet_server.workers.remote import RemoteEngine, RemoteTrainer
from ajet_testing.faults import HoldGate

pytestmark = pytest.mark.processes


def plan(run_dir: Path, *, engine: dict[str, Any] | None = None, target: str = "") -> BootPlan:
    scripted = "ajet_testing.scripted_"
    return BootPlan(
        run_dir=str(run_dir),
        seed=0,
        model=ModelConfig(path="none"),
        algorithm=AlgorithmConfig(),
        engine=ComponentPlan(
            "scripted",
            target or f"{scripted}engine:ScriptedEngine",
            f"{scripted}engine:ScriptedEngineSettings",
            engine or {},
        ),
        trainer=ComponentPlan(
            "scripted",
            f"{scripted}trainer:ScriptedTrainer",
            f"{scripted}trainer:ScriptedTrainerSettings",
            {},
        ),
        checkpoint=None,
    )


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    spawned = await WorkerProcess.spawn(tmp_path / "logs" / "worker.log")
    yield spawned
    await spawned.close()


def request(prompt: int = 3, **sampling: Any) -> GenerateRequest:
    return GenerateRequest(
        "r", list(range(prompt)), SamplingParams(**{"max_tokens": 64, **sampling})
    )


def batch() -> TrainBatch:
    call = TrainCall("c", 0, 1.0, 0.7, [-0.5], [3])
    tree = TrainTree([TrainSegment(-1, [1, 2], [TrainSpan(1, 0, 0, 1)])])
    return TrainBatch("b", 1, [TrainEpisode("e", "g", 0.5)], [call], [tree], 2)


def engine_of(worker: WorkerProcess) -> RemoteEngine:
    return RemoteEngine(worker.connection, "worker")


async def tokens(worker: WorkerProcess, asked: GenerateRequest) -> list[int]:
    return [t async for chunk in engine_of(worker).generate(asked) for t in chunk.token_ids]


async def test_requests_run_side_by_side_and_keep_their_own_chunks(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    await worker.boot(plan(tmp_path), 30)
    alone = [await tokens(worker, request(n)) for n in range(1, 9)]
    together = await asyncio.gather(*(tokens(worker, request(n)) for n in range(1, 9)))
    assert together == alone
    assert len({tuple(t) for t in alone}) == 8


async def test_a_worker_of_another_agentjet_is_refused_with_both_versions(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    newer = replace(plan(tmp_path), version="99.0")
    with pytest.raises(WorkerBootError, match=rf"{__version__}, but the server is agentjet 99\.0"):
        await worker.boot(newer, 30)


async def test_a_component_error_arrives_as_its_class(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    await worker.boot(plan(tmp_path, engine={"max_context": 4, "raises_at": 1}), 30)
    with pytest.raises(ContextLengthError, match="shorten the prompt"):
        await tokens(worker, request(10))
    with pytest.raises(EngineError, match="scripted failure"):
        await tokens(worker, request(1))
    assert await tokens(worker, request(1))


async def test_a_batch_crosses_the_process_border_unchanged(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    await worker.boot(plan(tmp_path), 30)
    report = await RemoteTrainer(worker.connection).step(batch())
    assert report.step == 1
    assert report.tokens_trained == 1


async def test_leaving_a_stream_cancels_it_in_the_worker(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    await worker.boot(plan(tmp_path, engine={"reply_length": 100_000, "max_context": 200_000}), 30)
    stream = engine_of(worker).generate(request(1, max_tokens=100_000))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    while (await engine_of(worker).stats()).running:
        pass
    assert await tokens(worker, request(1, max_tokens=3))


async def test_an_unknown_method_is_an_error_not_a_death(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerError, match="unknown method"):
        await worker.connection.call(Method("format.disk", NoneType, NoneType), None)
    assert not worker.died.done()


async def test_a_killed_worker_fails_its_calls_and_says_how_it_ended(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    with HoldGate(tmp_path, "engine"):
        await worker.boot(plan(tmp_path, engine={"hangs_at": 1}), 30)
        call = asyncio.create_task(tokens(worker, request()))
        while not (await engine_of(worker).stats()).running:
            pass
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="killed by signal 9"):
            await call
    with pytest.raises(WorkerDiedError):
        await engine_of(worker).stats()
    assert "killed by signal 9" in await worker.died


async def test_a_boot_that_fails_shows_the_traceback(worker: WorkerProcess, tmp_path: Path) -> None:
    with pytest.raises(WorkerBootError, match=r"cannot import 'no\.such:Engine'"):
        await worker.boot(plan(tmp_path, target="no.such:Engine"), 30)
    with pytest.raises(WorkerBootError, match="abstract"):
        await worker.boot(plan(tmp_path, target="ajet_core.interfaces:Engine"), 30)


async def test_a_component_that_cannot_be_created_is_named(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    # Its arguments are not those of an engine.
    with pytest.raises(
        WorkerBootError, match=r"'scripted' \(fractions:Fraction\) cannot be created: TypeError"
    ):
        await worker.boot(plan(tmp_path, target="fractions:Fraction"), timeout=60)


async def test_a_boot_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho thinking >&2\nexec cat /dev/zero > /dev/null\n")
    python.chmod(0o755)
    worker = await WorkerProcess.spawn(tmp_path / "worker.log", Interpreter(str(python)))
    with pytest.raises(WorkerBootError, match="boot_timeout_seconds"):
        await worker.boot(plan(tmp_path), 0.2)
    worker.kill()
    await worker.close()


async def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerBootError, match="/no/such/python"):
        await WorkerProcess.spawn(tmp_path / "worker.log", Interpreter("/no/such/python"))


async def test_a_worker_ends_when_its_server_is_gone(tmp_path: Path) -> None:
    """The server is killed outright, so nothing but the closed socket tells the worker."""
    script = tmp_path / "server.py"
    script.write_text(
        "import asyncio, os, pathlib, signal\n"
        "from ajet_server.workers.process import WorkerProcess\n"
        "async def main():\n"
        f"    worker = await WorkerProcess.spawn(pathlib.Path({str(tmp_path / 'w.log')!r}))\n"
        "    print(worker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    pid = int(await server.stdout.readline())
    await server.wait()
    # An orphan is not our child: watch it through a descriptor that becomes readable at its end.
    descriptor = os.pidfd_open(pid)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)


async def test_the_death_of_a_worker_is_noticed_though_what_it_forked_lives_on(
    tmp_path: Path,
) -> None:
    """It has the connection to the server as well, and may keep it open for ever."""
    forking = tmp_path / "python"
    forking.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nkill -9 $$\n")
    forking.chmod(0o700)
    worker = await WorkerProcess.spawn(tmp_path / "worker.log", Interpreter(str(forking)))
    try:
        assert "killed by signal 9" in await worker.died
        with pytest.raises(WorkerDiedError):
            await worker.ping()
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    await worker.close()
