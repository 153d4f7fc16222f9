"""A curriculum goes on with what it has measured when program and server are killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx2
import pytest

from agentjet.agents.curriculum import Measured
from agentjet.client import AsyncSwarmClient, Task
from tests.agents.curriculum_program import CHOICE, EPOCHS, TASKS
from tests.support.served_processes import CONTROL, call, kill, serving

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux"),
]
TOKEN = CONTROL["authorization"].removeprefix("Bearer ")


async def configure(http: httpx2.AsyncClient, model_dir: Path) -> None:
    config = {
        "model": {"path": str(model_dir), "renderer": "qwen3"},
        "engine": {"name": "scripted"},
        "trainer": {"name": "scripted"},
        "batch": {"tasks": 2, "episodes_per_task": 2},
        "checkpoint_every": 1,
    }
    await call(http, "PUT", "/v1/run", config)


async def start(http: httpx2.AsyncClient) -> None:
    await call(http, "POST", "/v1/run/start", {"wait_seconds": 60})


async def program(url: str, directory: Path, hold: int = 1000) -> asyncio.subprocess.Process:
    (directory / "counts").mkdir(exist_ok=True)
    environ = {
        **os.environ,
        "AJET_URL": url,
        "AJET_TOKEN": TOKEN,
        "STANDING": str(directory / "standing"),
        "COUNTS": str(directory / "counts"),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agents.curriculum_program", str(hold), env=environ
    )


async def rolled_out(url: str) -> list[list[str]]:
    """Return the tasks of each epoch."""
    async with AsyncSwarmClient(url, TOKEN) as client:
        epochs = []
        for epoch in range(1, EPOCHS + 1):
            groups = [Task(name, group=f"{name}@{epoch}") for name in TASKS]
            finished = (await client.resume(groups, episodes_per_task=2)).finished
            epochs.append([task.id for task in finished])
    return epochs


@pytest.mark.nightly
async def test_program_and_server_are_killed(model_dir: Path, tmp_path: Path) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    whole.mkdir()
    parted.mkdir()
    async with serving(whole / "run", model_dir) as (server, http):
        await configure(http, model_dir)
        await start(http)
        assert await (await program(server.url, whole)).wait() == 0
        expected = await rolled_out(server.url)
    assert [len(names) for names in expected] == [2] * EPOCHS
    async with serving(parted / "run", model_dir) as (server, http):
        await configure(http, model_dir)
        await start(http)
        # In the middle of an epoch.
        stands = await program(server.url, parted, 15)
        while not (parted / "standing").exists():
            assert stands.returncode is None
            await asyncio.sleep(0.05)
        stands.kill()
        await stands.wait()
        await kill(server)
    async with serving(parted / "run", model_dir) as (server, http):
        await start(http)
        assert await (await program(server.url, parted)).wait() == 0
        assert await rolled_out(server.url) == expected
    # Without what was measured, the epochs would have had other tasks.
    tasks, nothing = [Task(name) for name in TASKS], Measured()
    assert [
        sorted(task.id for task in CHOICE.choose(tasks, epoch, nothing))
        for epoch in range(1, EPOCHS + 1)
    ] != [sorted(names) for names in expected]
