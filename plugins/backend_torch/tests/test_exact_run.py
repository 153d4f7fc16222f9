"""Two exact runs of one seed end with the same bits, even if a worker of one was killed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from ajet_cli.replay.comparison import is_time
from ajet_testing.real_trainer import servers_with
from ajet_testing.servers import CONTROL, Running

TASKS = ("a", "b", "c")
STEPS = 3
Sample = tuple[str, str, float | None, list[tuple[list[int], list[int], list[float]]]]


async def start(server: Running, **algorithm: Any) -> None:
    body = {
        **server.config(),
        "engine": {"name": "torch", "settings": {"device": "cpu"}},
        "trainer": {"name": "torch", "settings": {"device": "cpu"}},
        "batch": {"tasks": len(TASKS), "episodes_per_task": 2},
        "algorithm": {"learning_rate": 1e-2, "minibatches": 2, **algorithm},
        "checkpoint_every": 2,
        "seed": 5,
        "exact": True,
    }
    (await server.http.put("/v1/run", headers=CONTROL, json=body)).raise_for_status()
    await resume(server)


async def resume(server: Running) -> None:
    answer = await server.http.post(
        "/v1/run/start", headers=CONTROL, json={"wait_seconds": 250.0}, timeout=None
    )
    assert answer.json()["state"] == "ROLLING", answer.text


async def episode(server: Running, task: str) -> None:
    """Two calls; the reward depends on what the model said."""
    grant = await server.claim(task)
    said = ""
    for turn in range(2):
        answer = await server.chat(grant, f"{task} {turn} {said}", max_tokens=6)
        assert answer.status_code == 200, answer.text
        said = answer.json()["choices"][0]["message"]["content"] or ""
    reward = hashlib.sha256(said.encode()).digest()[0] / 255
    assert (await server.end(grant, reward)).status_code == 200


async def batch(server: Running, order: random.Random) -> None:
    claims = [task for task in TASKS for _ in range(2)]
    order.shuffle(claims)
    await asyncio.gather(*(episode(server, task) for task in claims))


async def until_step(server: Running, step: int) -> None:
    coordinator = server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step >= step and server.service.board.state == "ROLLING"
    )


async def result(server: Running) -> tuple[list[Sample], list[dict[str, float]], str]:
    """The samples, the metrics without times, and the hash of the last weights."""
    store = server.service.store
    samples: list[Sample] = []
    for record in await store.episodes(state="ended"):
        calls = (await store.calls([record.episode_id]))[record.episode_id]
        said = [(call.prompt_ids, call.sampled_ids, call.logprobs) for call in calls]
        samples.append((record.task_id, record.episode_id[:16], record.reward, said))
    metrics: list[dict[str, float]] = []
    for step in await store.steps():
        metrics.append({name: v for name, v in step.metrics.items() if not is_time(name)})
    answer = await server.http.post("/v1/run/stop", headers=CONTROL, json={"wait_seconds": 60.0})
    answer.raise_for_status()
    (weights,) = (server.run_dir / "checkpoints").glob(f"step-{STEPS:06d}/weights.safetensors")
    return sorted(samples), metrics, hashlib.sha256(weights.read_bytes()).hexdigest()


def worker_pid(server: Running) -> int:
    loop = server.service.coordinator.loop
    assert loop is not None
    workers = loop.supervisor.running
    assert workers is not None
    return workers.trainer_process.pid


async def whole_run(directory: Path, order: int, *, killed: bool) -> Any:
    """Run `STEPS` steps.

    :param killed: kill the worker after a step without a checkpoint, while calls are open, and end
        the server after the second step.
    """
    servers, shuffled = servers_with("torch", directory), random.Random(order)
    async with servers.running() as server:
        await start(server)
        await batch(server, shuffled)
        await until_step(server, 1)
        rolling = asyncio.create_task(batch(server, shuffled))
        if killed:
            os.kill(worker_pid(server), signal.SIGKILL)
        await rolling
        await until_step(server, 2)
        if not killed:
            await batch(server, shuffled)
            await until_step(server, 3)
            return await result(server)
    async with servers.running() as server:
        await resume(server)
        await batch(server, shuffled)
        await until_step(server, 3)
        return await result(server)


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_two_runs_of_one_seed_end_with_the_same_bits(tmp_path: Path) -> None:
    first = await whole_run(tmp_path / "first", 1, killed=False)
    second = await whole_run(tmp_path / "second", 2, killed=True)
    assert first == second
    _, metrics, _ = first
    assert [step["logprob_gap"] for step in metrics] == [0.0] * STEPS
    assert all(step["grad_norm"] > 0 for step in metrics)
