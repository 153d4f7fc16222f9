"""An engine with other weights than published is replaced; if that fails, the run pauses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet_core.protocol import ServerState
from ajet_testing.servers import CONTROL, Running, ServerFactory
from ajet_testing.weights.planted import PLANTED
from tests.support.runs import events, finish_batch, status, until_state

pytestmark = pytest.mark.processes


async def metrics(server: Running) -> dict[str, float]:
    step: dict[str, Any] = (await status(server))["last_step"]
    return dict(step["metrics"])


async def test_a_step_says_how_much_was_proven_and_how_long_it_took(server: Running) -> None:
    await server.roll()
    await server.batch()
    found = await metrics(server)
    assert found["sealed_tensors"] == 1
    assert 0 <= found["seal_seconds"] < 60


async def test_a_stale_engine_is_replaced_before_it_answers_and_the_batch_trained_again(
    server: Running,
) -> None:
    await server.roll(engine={"stale_at": 1})
    await server.batch()
    assert server.service.coordinator.step == 1
    (told,) = events(server, "seal")
    assert told["policy_version"] == 1
    assert "does not serve the weights of policy version 1" in told["message"]
    assert [e["what"] for e in events(server, "worker")] == ["ready", "died", "ready"]
    # What was sampled since then is of the weights that were published.
    grant = await server.claim("c")
    assert (await server.chat(grant)).status_code == 200
    (call,) = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    assert set(call.policy_versions) == {1}


async def test_weights_that_fail_the_proof_again_pause_the_run_until_it_is_resumed(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(engine={"stale_at": 1, "once": False})
        await finish_batch(server)
        await until_state(server, ServerState.PAUSED)
        assert server.service.coordinator.step == 0
        assert len(events(server, "seal")) == 2
        found = await status(server)
        assert "failed the proof of the same weights again" in found["paused"]
        assert "policy version 1" in found["paused"]
        # It is paused without workers, and answers nevertheless; resuming tries once more.
        for tried in (4, 6):
            answer = await server.http.post("/v1/run/resume", headers=CONTROL)
            assert answer.status_code == 200
            board = server.service.board
            await board.wait_until(
                lambda tried=tried, board=board: (  # type: ignore[misc]
                    board.state is ServerState.PAUSED and len(events(server, "seal")) == tried
                )
            )
        assert server.service.coordinator.running


async def test_a_run_that_is_paused_without_workers_can_be_stopped(server: Running) -> None:
    await server.roll(engine={"stale_at": 1, "once": False})
    await finish_batch(server)
    await until_state(server, ServerState.PAUSED)
    async with asyncio.timeout(60):
        answer = await server.http.post("/v1/run/stop", headers=CONTROL)
    assert answer.status_code == 200
    assert answer.json()["state"] == "OFFLINE"


BY_PROBE: dict[str, Any] = {
    "weight_channel": "digest_file",
    "trainer": {"reports_checksums": False, "sways": 0.05},
}


async def test_without_checksums_every_update_is_proven_by_a_probe(server: Running) -> None:
    await server.roll(engine={"sways": 0.05}, **BY_PROBE)
    for _ in range(2):
        await server.batch()
        found = await metrics(server)
        assert (found["sealed_tensors"], found["sealed_servers"]) == (0, 1)
        assert found["probe_change"] > 12 * found["probe_noise"] > 0
    assert not events(server, "seal")


@pytest.mark.parametrize("fault", PLANTED)
async def test_an_engine_that_a_probe_does_not_find_its_weights_in_is_replaced(
    server: Running, fault: str
) -> None:
    await server.roll(engine={"sways": 0.05, "stale_at": 1, "planted": fault}, **BY_PROBE)
    await server.batch()
    assert server.service.coordinator.step == 1
    (told,) = events(server, "seal")
    assert "does not serve the weights of policy version 1" in told["message"]
    assert ("still serves policy version 0" in told["message"]) is (fault == "stale")
    assert (await metrics(server))["sealed_servers"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": {"reports_checksums": True, "sways": 0.05}},
        {"lora": {"rank": 4}},
        {"weight_channel": "in_process"},
    ],
    ids=["checksums", "adapters", "shared"],
)
async def test_a_probe_is_not_scored_where_it_is_not_needed_or_cannot_tell(
    server: Running, changes: dict[str, Any]
) -> None:
    model = {"path": str(server.model_dir), "renderer": "qwen3", "lora": changes.pop("lora", None)}
    await server.roll(engine={"sways": 0.05}, **{**BY_PROBE, **changes, "model": model})
    await server.batch()
    assert "probe_noise" not in await metrics(server)


async def test_a_probe_that_the_trainer_cannot_score_proves_nothing_and_stops_nothing(
    server: Running,
) -> None:
    trainer = {"reports_checksums": False, "memory": 32}
    await server.roll(weight_channel="digest_file", trainer=trainer)
    await server.batch()
    assert server.service.coordinator.step == 1
    assert (await metrics(server))["sealed_servers"] == 0
