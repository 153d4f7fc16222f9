"""An episode without an answered call has no reward, unless that is allowed by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentjet import AsyncSwarmClient
from agentjet.client import EpisodeOutcome
from ajet_core.protocol import RunConfig
from ajet_testing.servers import CLIENT, TOKENS, Running, ServerFactory, error_of


async def rolled(server: Running, **rollout: Any) -> None:
    await server.roll(rollout={"allow_no_calls": False, **rollout})


async def end(server: Running, grant: dict[str, Any], **fields: Any) -> httpx2.Response:
    url = f"/v1/episodes/{grant['episode_id']}/end"
    return await server.http.post(url, headers=CLIENT, json={"reward": 0.0, **fields})


async def status(server: Running, grant: dict[str, Any]) -> dict[str, Any]:
    answer = await server.http.get(f"/v1/episodes/{grant['episode_id']}", headers=CLIENT)
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("kind", ["train", "eval"])
async def test_its_end_is_an_abort(server: Running, kind: str) -> None:
    await rolled(server)
    grant = await server.claim("a", kind=kind)
    refused = await end(server, grant)
    assert refused.status_code == 410
    assert "no model call of it was answered" in error_of(refused)["message"]
    found = await status(server, grant)
    assert (found["state"], found["cause"], found["reward"]) == ("aborted", "no_calls", None)
    # A repeated request changes nothing.
    again = await end(server, grant, allow_no_calls=True)
    assert again.status_code == 410
    assert (await server.service.store.counters())["aborted_no_calls"] == 1


async def test_a_call_that_no_client_saw_does_not_count(server: Running) -> None:
    await rolled(server)
    grant = await server.claim("a")
    episode = server.service.episodes.open[grant["episode_id"]]
    await server.chat(grant)
    (call,) = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    assert episode.session.answered == {"": 1}
    assert call.finish_reason != "abort"
    assert (await end(server, grant)).status_code == 200


async def test_it_is_allowed_by_name(server: Running) -> None:
    await rolled(server)
    by_request, by_claim = await server.claim("a"), await server.claim("b", allow_no_calls=True)
    for grant, fields in ((by_request, {"allow_no_calls": True}), (by_claim, {})):
        answer = await end(server, grant, **fields)
        assert (answer.status_code, answer.json()["reward"]) == (200, 0.0)


async def test_the_run_allows_it(server: Running) -> None:
    await rolled(server, allow_no_calls=True)
    own, strict = await server.claim("a"), await server.claim("b", allow_no_calls=False)
    assert (await end(server, own)).status_code == 200
    assert (await end(server, strict)).status_code == 410


async def test_calls_before_a_restart_count(servers: ServerFactory) -> None:
    async with servers.running() as first:
        await rolled(first)
        called, silent = await first.claim("a"), await first.claim("b")
        await first.chat(called)
    async with servers.running() as second:
        assert (await end(second, called)).status_code == 200
        assert (await end(second, silent)).status_code == 410


async def test_runners_do_not_train_episodes_without_calls(server: Running) -> None:
    await rolled(server)
    async with AsyncSwarmClient(server.url, TOKENS.control) as client:

        async def agent(task: Any, episode: Any) -> Any:
            return EpisodeOutcome(reward=0.0, allow_no_calls=task.id == "nop")

        report = await client.run_episodes_until_all_complete(
            ["nop", "a"], agent, retries=0, concurrency=2
        )
    assert [result.task.id for result in report.outcomes] == ["nop"]
    (failure,) = report.failures
    assert failure.reason.startswith("EpisodeClosedError: ")
    assert "no model call of it was answered" in str(report)


def test_the_default_of_a_run_refuses_them(tmp_path: Path) -> None:
    config = RunConfig.model_validate({"model": {"path": str(tmp_path)}})
    assert config.rollout.allow_no_calls is None
