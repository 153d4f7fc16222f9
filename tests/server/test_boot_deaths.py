"""Workers that are killed while they boot: the run goes on by itself, as after any other death."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import ServerState
from ajet_testing.servers import CONTROL, Running, ServerFactory, error_of
from tests.support.runs import events
from tests.support.served_processes import call, kill, serving, start_run, until

pytestmark = pytest.mark.usefixtures("worker_processes")


def deaths(server: Running) -> list[str]:
    """What the events say of workers that died."""
    return [e["message"] for e in events(server, "worker") if e["what"] == "died"]


async def until_rolling(server: Running) -> None:
    """Wait for the run, which must not fail."""
    service = server.service
    await service.board.wait_until(lambda: service.board.rolling or not service.coordinator.running)
    assert service.coordinator.error is None


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ("sync", "start"),
        ("async", "publish"),
        pytest.param("sync", "publish", marks=pytest.mark.nightly),
        pytest.param("async", "start", marks=pytest.mark.nightly),
    ],
)
async def test_a_first_start_survives_a_worker_that_is_killed(
    server: Running, method: str, mode: str
) -> None:
    await server.roll(trainer={"dies_in": method}, rollout={"mode": mode})
    assert len(deaths(server)) == 1
    await server.batch()


async def test_a_run_that_is_taken_up_survives_a_worker_that_is_killed_while_it_loads(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(trainer={"dies_in": "load"}, checkpoint_every=1)
        await server.batch()
        assert not deaths(server)
    async with servers.running() as server:
        await until_rolling(server)
        (death,) = deaths(server)
        assert "died during startup" in death
        assert server.service.coordinator.step == 1
        await server.batch()


async def test_workers_that_are_always_killed_end_the_run_with_a_possible_cause(
    servers: ServerFactory,
) -> None:
    async with servers.running(worker_restarts=2) as server:
        await server.put_run(trainer={"dies_in": "start", "once": False})
        answer = await server.http.post(
            "/v1/run/start", headers=CONTROL, json={"wait_seconds": 60.0}
        )
        assert answer.status_code == 500
        error = error_of(answer)
        assert error["type"] == "worker_boot_failed"
        assert "died 3 times in a row before the run was ready" in error["message"]
        assert "server.worker_restarts" in error["message"]
        assert "memory runs out" in error["message"]
        assert len(deaths(server)) == 3
        assert server.service.board.state is ServerState.OFFLINE


async def test_a_start_that_waits_briefly_says_that_the_server_still_boots(
    servers: ServerFactory,
) -> None:
    async with servers.running(worker_restarts=1000) as server:
        await server.put_run(trainer={"dies_in": "start", "once": False})
        start: dict[str, Any] = {"headers": CONTROL, "json": {"wait_seconds": 0.0}}
        answer = await server.http.post("/v1/run/start", **start)
        assert (answer.status_code, answer.json()["state"]) == (200, "BOOTING")
        await server.service.board.wait_until(lambda: len(deaths(server)) > 1)
        answer = await server.http.post("/v1/run/start", **start)
        assert (answer.status_code, answer.json()["state"]) == (200, "BOOTING")


@pytest.mark.processes
async def test_a_worker_that_is_killed_during_its_adoption_is_replaced(
    model_dir: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    async with serving(run_dir, model_dir) as (server, http):
        await start_run(http, model_dir, dies_in="load")
        for reward in (0.0, 1.0):
            grant = await call(http, "POST", "/v1/episodes", {"task_id": "a"})
            await call(http, "POST", f"/v1/episodes/{grant['episode_id']}/end", {"reward": reward})
        await until(http, step=1, state="ROLLING")
        await kill(server)
    async with serving(run_dir, model_dir) as (_, http):
        await until(http, step=1, state="ROLLING")
        assert (run_dir / "scripted-trainer.died").exists()
