"""Workers that outlive the server that started them, and are found by the next one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ajet_server.workers import process
from ajet_server.workers.codec import BootPlan, to_plain
from ajet_server.workers.process import WorkerProcess
from ajet_server.workers.remote import RemoteTrainer
from ajet_server.workers.rendezvous import SUPPORTED, find_worker, wait_for_server
from ajet_testing.faults import HoldGate
from ajet_testing.scripted_engine import ASLEEP

from .test_process import batch, engine_of, plan, request, tokens

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not SUPPORTED, reason="needs Linux")]

# A server in miniature: boots a worker, says so, and waits to be killed.
SERVER = """
import asyncio, json, pathlib, sys
from ajet_core.timeline import TrainBatch
from ajet_server.workers.codec import BootPlan, from_plain
from ajet_server.workers.process import WorkerProcess
from ajet_server.workers.remote import RemoteTrainer

async def main():
    run_dir, plan, seconds = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3])
    worker = await WorkerProcess.spawn(
        run_dir / "w.log", None, run_dir / "workers" / "w.sock", seconds
    )
    await worker.boot(from_plain(BootPlan, plan), 60.0)
    if len(sys.argv) > 4:
        batch = from_plain(TrainBatch, json.loads(sys.argv[4]))
        asyncio.ensure_future(RemoteTrainer(worker.connection).step(batch))
        while not (run_dir / "scripted-trainer.hung").exists():
            await asyncio.sleep(0.01)
    print(worker.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def orphan(run_dir: Path, booted: BootPlan, seconds: float = 60.0, step: str = "") -> int:
    """The pid of a worker whose server was killed."""
    command = [sys.executable, "-c", SERVER, str(run_dir), json.dumps(to_plain(booted))]
    command += [str(seconds), *([step] if step else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    return pid


async def find(run_dir: Path) -> WorkerProcess:
    """The orphan, once it waits."""
    path = run_dir / "workers" / "w.sock"
    while True:
        found = await WorkerProcess.find(path, run_dir / "w.log")
        if found is not None:
            return found
        await asyncio.sleep(0)


async def checkpoint(worker: WorkerProcess, directory: Path) -> Path:
    await RemoteTrainer(worker.connection).save(directory)
    return directory


async def made_checkpoint(run_dir: Path) -> Path:
    """A checkpoint of a trainer without any step."""
    worker = await WorkerProcess.spawn(run_dir / "first.log")
    try:
        await worker.boot(plan(run_dir), 60.0)
        return await checkpoint(worker, run_dir / "checkpoint")
    finally:
        await worker.close()


async def test_a_worker_is_found_put_back_and_used_again(tmp_path: Path) -> None:
    booted = plan(tmp_path)
    saved = await made_checkpoint(tmp_path)
    pid = await asyncio.to_thread(orphan, tmp_path, booted)
    worker = await find(tmp_path)
    try:
        assert worker.pid == pid
        await RemoteTrainer(worker.connection).step(batch())
        again = replace(booted, checkpoint=str(saved), policy_version=3)
        report = await worker.adopt(again, 30.0)
        assert report is not None
        assert report.engine is not None
        assert report.trainer is not None
        # The step above is undone.
        await checkpoint(worker, tmp_path / "after")
        name = "scripted_trainer.json"
        assert (tmp_path / "after" / name).read_text() == (saved / name).read_text()
        assert await tokens(worker, request())
    finally:
        await worker.close()
    assert not (tmp_path / "workers" / "w.sock").exists()


async def test_an_engine_that_slept_when_its_server_was_killed_is_woken(tmp_path: Path) -> None:
    booted = plan(tmp_path)
    saved = await made_checkpoint(tmp_path)
    await asyncio.to_thread(orphan, tmp_path, booted)
    worker = await find(tmp_path)
    try:
        await engine_of(worker).sleep()
        assert (tmp_path / ASLEEP).exists()
        assert await worker.adopt(replace(booted, checkpoint=str(saved)), 30.0) is not None
        assert not (tmp_path / ASLEEP).exists()
        assert await tokens(worker, request())
    finally:
        await worker.close()


async def test_a_worker_of_other_components_or_without_a_checkpoint_is_not_used(
    tmp_path: Path,
) -> None:
    booted = plan(tmp_path)
    saved = str(await made_checkpoint(tmp_path))
    await asyncio.to_thread(orphan, tmp_path, booted)
    worker = await find(tmp_path)
    try:
        assert await worker.adopt(booted, 30.0) is None
        for changes in (
            {"seed": 1},
            {"version": "0.0.0"},
            {"engine": plan(tmp_path, engine={"vocab_size": 7}).engine},
        ):
            other = replace(booted, checkpoint=saved, **changes)
            assert await worker.adopt(other, 30.0) is None
        assert await worker.adopt(replace(booted, checkpoint=saved + "-none"), 30.0) is None
        assert await worker.adopt(replace(booted, checkpoint=saved), 30.0) is not None
    finally:
        await worker.close()


async def test_a_worker_that_was_told_to_end_waits_for_nobody(tmp_path: Path) -> None:
    rendezvous = tmp_path / "workers" / "w.sock"
    worker = await WorkerProcess.spawn(tmp_path / "w.log", None, rendezvous, 600.0)
    await worker.boot(plan(tmp_path), 60.0)
    await worker.close()
    assert "exit status 0" in worker.died.result()
    assert find_worker(rendezvous) is None


async def test_a_worker_that_nobody_finds_ends(tmp_path: Path) -> None:
    pid = await asyncio.to_thread(orphan, tmp_path, plan(tmp_path), 0.2)
    descriptor = os.pidfd_open(pid)
    try:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, ended.set)
        await ended.wait()
        asyncio.get_running_loop().remove_reader(descriptor)
    finally:
        os.close(descriptor)
    assert not (tmp_path / "workers" / "w.sock").exists()


async def test_a_found_worker_that_dies_is_known_to_be_dead(tmp_path: Path) -> None:
    await asyncio.to_thread(orphan, tmp_path, plan(tmp_path))
    worker = await find(tmp_path)
    worker.kill()
    assert f"worker {worker.pid} ended" in await worker.died
    await worker.close()


async def test_the_rendezvous_may_have_a_long_name(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["a-directory-with-a-long-name"] * 5) / "w.sock"
    assert len(str(path)) > 108
    waiting = asyncio.create_task(wait_for_server(path, 60.0))
    found = None
    while found is None:
        await asyncio.sleep(0)
        found = find_worker(path)
    theirs = await waiting
    assert theirs is not None
    connection, pid = found
    assert pid == os.getpid()
    with connection, theirs:
        connection.sendall(b"x")
        assert await asyncio.get_running_loop().run_in_executor(None, theirs.recv, 1) == b"x"
    assert not path.exists()
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_a_file_in_the_place_of_a_rendezvous_is_no_worker(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    path.write_text("not a socket")
    assert find_worker(path) is None
    path.unlink()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path)[:107])
    assert find_worker(path) is None


async def test_a_worker_that_takes_no_connections_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "w.sock"
    with socket.socket(socket.AF_UNIX) as frozen, contextlib.ExitStack() as before:
        frozen.bind(str(path))
        frozen.listen(0)
        queued = 0
        while queued == 0:
            connection = before.enter_context(socket.socket(socket.AF_UNIX))
            connection.setblocking(False)
            queued = connection.connect_ex(str(path))
        assert queued == errno.EAGAIN
        assert find_worker(path) is None


async def test_a_frozen_worker_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = plan(tmp_path)
    saved = await made_checkpoint(tmp_path)
    await asyncio.to_thread(orphan, tmp_path, booted)
    worker = await find(tmp_path)
    os.kill(worker.pid, signal.SIGSTOP)
    monkeypatch.setattr(process, "_ANSWER_SECONDS", 0.1)
    assert await worker.adopt(replace(booted, checkpoint=str(saved)), 600.0) is None
    await worker.close(0.1)
    assert worker.died.done()


async def test_a_step_that_does_not_end_keeps_a_worker_from_being_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = plan(tmp_path)
    assert booted.trainer is not None
    hanging = replace(booted, trainer=replace(booted.trainer, settings={"hangs_at": 1}))
    saved = await made_checkpoint(tmp_path)
    with HoldGate(tmp_path, "trainer") as gate:
        await asyncio.to_thread(orphan, tmp_path, hanging, 60.0, json.dumps(to_plain(batch())))
        worker = await find(tmp_path)
        try:
            ready = replace(hanging, checkpoint=str(saved))
            assert await worker.adopt(ready, 0.5) is None
            gate.release()
            assert await worker.adopt(ready, 30.0) is not None
        finally:
            await worker.close()
