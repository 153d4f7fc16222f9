"""The route that shows an episode's token tree."""

from __future__ import annotations

import pytest

from ajet_core.protocol import EpisodeTimelines
from ajet_testing.servers import CLIENT, CONTROL, Running, key

pytestmark = pytest.mark.processes


async def timelines(server: Running, episode_id: str) -> EpisodeTimelines:
    answer = await server.http.get(f"/v1/timelines/{episode_id}", headers=CONTROL)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return EpisodeTimelines.model_validate_json(answer.content)


async def test_an_open_episode_is_shown_as_it_grows(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    assert (await timelines(server, grant["episode_id"])).calls == []
    answer = (await server.chat(grant)).json()
    found = await timelines(server, grant["episode_id"])
    assert found.state == "open"
    (call,) = found.calls
    assert call.call_id == answer["id"]
    assert call.advantage is None
    sampled = sum(len(node.token_ids) for node in found.nodes if node.samplings)
    assert sampled == len(call.logprobs) == answer["usage"]["completion_tokens"]
    assert found.tokens == answer["usage"]["total_tokens"]
    assert [role.role for node in found.nodes for role in node.roles] == ["user", "assistant"]


async def test_a_trained_episode_has_its_advantages(server: Running) -> None:
    await server.roll()
    await server.batch()
    records = await server.service.store.episodes(batched=True)
    found = [await timelines(server, record.episode_id) for record in records]
    assert {record.batch_id for record in records} == {each.batch_id for each in found}
    for each in found:
        (call,) = each.calls
        assert call.advantage is not None
        assert (call.advantage > 0) == (each.reward == 1.0)


async def test_a_fork_is_told(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    for day in ("Monday", "Tuesday"):
        messages = [
            {"role": "system", "content": f"It is {day}."},
            {"role": "user", "content": "hello there, how are you today?"},
        ]
        assert (await server.chat(grant, messages=messages)).status_code == 200
    (fork,) = (await timelines(server, grant["episode_id"])).forks
    assert (fork.kind, fork.role, fork.field) == ("rewritten", "system", "content")
    assert (fork.before, fork.after) == ("It is Monday.", "It is Tuesday.")
    assert fork.recomputed_tokens > 0


@pytest.mark.parametrize(
    ("headers", "status", "kind"),
    [
        ({}, 401, "invalid_api_key"),
        ({"authorization": "Bearer someone"}, 401, "invalid_api_key"),
        (CLIENT, 403, "forbidden"),
    ],
)
async def test_only_the_control_token_opens_it(
    server: Running, headers: dict[str, str], status: int, kind: str
) -> None:
    await server.roll()
    grant = await server.claim()
    url = f"/v1/timelines/{grant['episode_id']}"
    answer = await server.http.get(url, headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


async def test_the_episodes_own_key_does_not_open_it(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    answer = await server.http.get(f"/v1/timelines/{grant['episode_id']}", headers=key(grant))
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "forbidden")


async def test_an_unknown_episode_is_not_found(server: Running) -> None:
    answer = await server.http.get("/v1/timelines/none", headers=CONTROL)
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "episode_not_found")
