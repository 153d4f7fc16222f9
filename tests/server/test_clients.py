"""Both clients against a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from agentjet.client import AsyncSwarmClient, Episode, SwarmClient, Task
from ajet_core.errors import (
    BatchStarvedError,
    ConfigError,
    EpisodeClosedError,
    ForbiddenError,
    NotRollingError,
)
from ajet_core.protocol import RunConfig
from ajet_server.admission import admission
from ajet_server.observe import watchdog
from ajet_testing.servers import CLIENT, TOKENS, Running, ServerFactory

pytestmark = pytest.mark.processes

QUESTION = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def run_config(server: Running) -> RunConfig:
    return RunConfig.model_validate(server.config())


async def test_the_async_client_trains_a_batch_and_isolates_a_failing_agent(
    server: Running,
) -> None:
    failed: list[str] = []

    async def agent(task: Task, episode: Episode) -> float:
        if task.id == "b" and not failed:
            failed.append(episode.episode_id)
            raise ValueError("no such tool")
        key = {"authorization": f"Bearer {episode.api_key}"}
        url = f"{episode.base_url}/chat/completions"
        answer = await server.http.post(url, headers=key, json=QUESTION)
        answer.raise_for_status()
        return float(len(answer.json()["choices"][0]["message"]["content"] or "") % 3)

    async with AsyncSwarmClient(server.url, token=TOKENS.control) as client:
        await client.sync_train_config(run_config(server))
        assert (await client.start_engine()).state == "ROLLING"
        report = await client.run_episodes_until_all_complete(
            ["a", "b"], agent, episodes_per_task=2
        )
        assert len(report.outcomes) == 4
        assert report.failures == []
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        assert (await client.status()).policy_version == 1
        record = await server.service.store.get_episode(failed[0])
        assert record is not None
        assert record.state == "aborted"
        assert "ValueError: no such tool" in record.reason
        assert (await client.stop_engine()).export_dir is not None


async def test_the_sync_client_does_the_same_from_threads(server: Running) -> None:
    def work() -> tuple[int, int]:
        with SwarmClient(server.url, token=TOKENS.control) as client:
            client.sync_train_config(run_config(server))
            client.start_engine()

            def agent(task: Task, episode: Episode) -> float:
                key = {"authorization": f"Bearer {episode.api_key}"}
                url = f"{episode.base_url}/chat/completions"
                httpx2.post(url, headers=key, json=QUESTION, timeout=60).raise_for_status()
                return 1.0 if task.id == "a" else 0.0

            report = client.run_episodes_until_all_complete(["a", "b"], agent, episodes_per_task=2)
            with client.episode("c", kind="eval") as episode:
                assert client.can_continue_episode(episode)
                episode.end(0.5)
                assert not client.can_continue_episode(episode)
            client.stop_engine()
            return len(report.outcomes), client.status().step

    assert await asyncio.to_thread(work) == (4, 1)


async def test_errors_arrive_as_their_classes(server: Running) -> None:
    async with AsyncSwarmClient(server.url, token=TOKENS.client) as client:
        with pytest.raises(ForbiddenError):
            await client.sync_train_config(run_config(server))
        with pytest.raises(NotRollingError, match="OFFLINE"):
            await client.begin_episode("a", timeout=5)
    async with AsyncSwarmClient(server.url, token=TOKENS.control) as client:
        config = server.config()
        config["engine"] = {"name": "warp"}
        with pytest.raises(ConfigError, match="scripted"):
            await client.sync_train_config(RunConfig.model_validate(config))
        await client.sync_train_config(run_config(server))
        await client.start_engine()
        episode = await client.begin_episode("a")
        await client.abort_episode(episode, "changed my mind")
        with pytest.raises(EpisodeClosedError, match="changed my mind"):
            await client.end_episode(episode, 1.0)


async def test_events_reach_the_client(server: Running) -> None:
    async with AsyncSwarmClient(server.url, token=TOKENS.control) as client:
        await client.sync_train_config(run_config(server))
        await client.start_engine()
        seen = []
        async for event in client.events(since=0):
            seen.append((event.type, event.data.get("state")))
            if event.data.get("state") == "ROLLING":
                break
        assert ("state", "BOOTING") in seen


async def test_a_client_hears_that_the_step_it_waits_for_lacks_tasks(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_QUIET_SECONDS", 0.0)
    await server.roll()
    async with AsyncSwarmClient(server.url, token=TOKENS.client) as client:
        await server.episode("a", 0.0)
        with pytest.raises(BatchStarvedError) as caught:
            await client.wait_for_step(1)
        assert "lack episodes" in caught.value.message
        # Whose tasks they are is for the operator to see.
        assert "'a'" not in caught.value.message
        await server.episode("a", 1.0)
        with pytest.raises(BatchStarvedError, match=r"1 of 2 tasks.*1 more"):
            await client.wait_for_step(1)
        await asyncio.gather(*(server.episode("b", reward) for reward in (0.0, 1.0)))
        assert (await client.wait_for_step(1)).step == 1


@pytest.mark.parametrize("rollout", [{}, {"mode": "async"}])
async def test_a_client_that_asks_again_for_a_complete_task_does_not_wait_for_ever(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch, rollout: dict[str, str]
) -> None:
    """It did not hear that its episode ended, and goes on to its next task only after this one."""
    async with servers.running(stuck_seconds=0.05) as server:
        await server.roll(rollout=rollout)
        for reward in (0.0, 1.0):
            await server.episode("a", reward)
        late: dict[str, Any] = {"headers": CLIENT, "json": {"task_id": "a", "wait_seconds": 0.0}}
        assert (await server.http.post("/v1/episodes", **late)).status_code == 503
        monkeypatch.setattr(admission, "RELIEF_SECONDS", 0.0)
        waiting = await server.claim("a")
        # Others of it wait now, until that one is over.
        assert (await server.http.post("/v1/episodes", **late)).status_code == 503
        await server.end(waiting, 0.5)
        monkeypatch.setattr(admission, "RELIEF_SECONDS", 600.0)
        for reward in (0.0, 1.0):
            await server.episode("b", reward)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        (batch,) = await server.service.store.batches(after_step=0)
        assert len(batch.episode_ids) == 5


async def test_a_claim_that_already_waits_is_relieved_too(
    servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with servers.running(stuck_seconds=0.05) as server:
        await server.roll()
        for reward in (0.0, 1.0):
            await server.episode("a", reward)
        waiting = asyncio.create_task(server.claim("a"))
        while server.service.admission.waiting_count == 0:
            await asyncio.sleep(0)
        monkeypatch.setattr(admission, "RELIEF_SECONDS", 0.0)
        await server.end(await waiting, 0.5)
