"""A worker that imports components while the server starts, by the setting `workers.preload`."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import psutil
import pytest

from ajet_core.errors import UnknownComponentError
from ajet_installation.environment import Interpreter
from ajet_server.workers import spare_worker
from ajet_server.workers.spare_worker import SpareWorker
from ajet_testing.servers import Running, ServerFactory
from tests.support.runs import events

pytestmark = pytest.mark.usefixtures("worker_processes")

SCRIPTED = {"preload": {"engine": "scripted", "trainer": "scripted"}}


def spawned() -> set[int]:
    """The worker processes of servers in this process."""
    pids = set()
    for process in psutil.Process().children():
        # One that has ended, and whose status is not yet read, has no command line.
        with contextlib.suppress(psutil.ZombieProcess):
            if "ajet_server.workers" in process.cmdline():
                pids.add(process.pid)
    return pids


def serving(server: Running) -> set[int]:
    (ready,) = (e for e in events(server, "worker") if e["what"] == "ready")
    return set(ready["pids"])


async def test_the_first_run_takes_the_worker_that_waits(servers: ServerFactory) -> None:
    async with servers.running(workers=SCRIPTED) as server:
        waiting = spawned()
        assert len(waiting) == 1
        await server.roll()
        assert serving(server) == spawned() == waiting
        await server.batch()
    assert not spawned()


async def test_a_run_that_needs_two_workers_ends_it(servers: ServerFactory) -> None:
    async with servers.running(workers=SCRIPTED) as server:
        waiting = spawned()
        await server.roll(rollout={"mode": "async"})
        assert len(spawned()) == 2
        assert not serving(server) & waiting


async def test_a_run_that_needs_another_kind_of_worker_ends_it(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpareWorker, "take", lambda *_: None)
    async with servers.running(workers=SCRIPTED) as server:
        waiting = spawned()
        await server.roll()
        assert len(spawned()) == 1
        assert not serving(server) & waiting


async def test_components_of_two_interpreters_are_not_preloaded(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    two = {"engine": Interpreter("/a/python"), "trainer": Interpreter("/b/python")}
    monkeypatch.setattr(spare_worker, "choose_interpreters", lambda *_, **__: two)
    async with servers.running(workers=SCRIPTED):
        assert not spawned()
    assert "engine scripted and trainer scripted need two interpreters" in caplog.text


async def test_a_run_does_without_a_worker_that_was_killed(servers: ServerFactory) -> None:
    async with servers.running(workers=SCRIPTED) as server:
        (waiting,) = spawned()
        psutil.Process(waiting).kill()
        await server.roll()
        assert serving(server) == spawned() != {waiting}


async def test_it_ends_with_a_server_that_had_no_run(servers: ServerFactory) -> None:
    async with servers.running(workers=SCRIPTED):
        assert spawned()
    assert not spawned()


@pytest.mark.processes
async def test_a_run_that_is_cancelled_while_it_ends_the_worker_delays_no_shutdown(
    tmp_path: Path,
) -> None:
    spare = SpareWorker(tmp_path, ["collections:deque"])
    await spare.start()
    (busy,) = spawned()
    psutil.Process(busy).suspend()
    ending = asyncio.create_task(spare.close())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
    try:
        async with asyncio.timeout(5.0):
            await spare.close()
            while spawned():
                await asyncio.sleep(0.01)
    finally:
        if busy in spawned():
            psutil.Process(busy).kill()


async def test_a_server_without_the_setting_starts_none(servers: ServerFactory) -> None:
    async with servers.running():
        assert not spawned()


async def test_an_unknown_component_ends_the_start(servers: ServerFactory) -> None:
    with pytest.raises(UnknownComponentError, match="nothing-like-it"):
        async with servers.running(workers={"preload": {"engine": "nothing-like-it"}}):
            pass
