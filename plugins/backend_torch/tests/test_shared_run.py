"""The trainer under a real server whose run two clients share."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ajet_testing.real_trainer import servers_with
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Headers,
    Running,
    ServerFactory,
    claim_as,
    new_token,
)

pytestmark = pytest.mark.usefixtures("worker_tasks")


@pytest.fixture
def servers(tmp_path: Path) -> ServerFactory:
    return servers_with("torch", tmp_path)


async def episode(server: Running, headers: Headers, task: str, reward: float) -> str:
    grant = (await claim_as(server, headers, task)).json()
    answer = await server.chat(grant, f"hello {task}", max_tokens=6)
    assert answer.status_code == 200, answer.text
    url = f"/v1/episodes/{grant['episode_id']}/end"
    answer = await server.http.post(url, headers=headers, json={"reward": reward})
    assert answer.status_code == 200, answer.text
    return str(grant["episode_id"])


@pytest.mark.timeout(300)
async def test_episodes_whose_gradients_are_refused_are_quarantined_and_the_others_trained(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        body = {
            **server.config(),
            "engine": {"name": "torch", "settings": {"device": "cpu"}},
            "trainer": {
                "name": "torch",
                "settings": {"device": "cpu", "grad_norm_limit": 1000.0},
            },
            # Large rewards are large gradients.
            "algorithm": {"advantage": "group_mean"},
        }
        (await server.http.put("/v1/run", headers=CONTROL, json=body)).raise_for_status()
        started = await server.http.post(
            "/v1/run/start", headers=CONTROL, json={"wait_seconds": 250.0}, timeout=None
        )
        assert started.json()["state"] == "ROLLING"
        mallory, headers = await new_token(server, "mallory")
        coordinator, store = server.service.coordinator, server.service.store
        for step in (1, 2):
            grants = await asyncio.gather(
                *(episode(server, CLIENT, "a", reward) for reward in (0.0, 1.0)),
                *(episode(server, headers, "b", reward) for reward in (0.0, 1e6)),
            )

            def trained_or_paused(step: int = step) -> bool:
                return coordinator.step >= step or bool(coordinator.paused)

            await server.service.board.wait_until(trained_or_paused)
            assert (coordinator.error, coordinator.paused, coordinator.step) == (None, None, step)
            (quarantined,) = await store.batches(after_step=step - 1, refused=True)
            assert set(quarantined.episode_ids) <= set(grants[2:])
            assert "grad_norm_limit" in quarantined.refused
            assert f"of client {mallory}" in quarantined.refused
            for grant in grants[:2]:
                (score,) = (await store.scores(grant)).values()
                assert score.advantage
        # The weights that were trained in between are served.
        assert [s.metrics["logprob_gap"] < 1e-4 for s in await store.steps()] == [True, True]
