"""The page and the routes that it is drawn from, on a server."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from ajet_server.page.models import Conversation, EpisodeRows, Overview, StepCurves, TaskRows
from ajet_testing.servers import CONTROL, Running, new_token

pytestmark = pytest.mark.processes

HOSTILE = '<img src=x onerror="alert(1)"> \u202e \x1b[2J'


async def get(server: Running, path: str, **query: Any) -> Any:
    """The JSON that a route answers."""
    answer = await server.http.get(path, params=query, headers=CONTROL)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def rows(server: Running, **query: Any) -> EpisodeRows:
    """A list of episodes."""
    return EpisodeRows.model_validate(await get(server, "/v1/episodes", **query))


async def test_the_page_needs_no_token_and_runs_only_its_own_files(server: Running) -> None:
    answer = await server.http.get("/ui", headers={})
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui/")
    page = await server.http.get("/ui/", headers={})
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe" not in policy
    for name in ("ui.js", "uplot.js", "ui.css", "viewer.html", "icon.svg"):
        file = await server.http.get(f"/ui/{name}", headers={})
        assert file.status_code == 200
        assert file.headers["x-content-type-options"] == "nosniff"
        known = {"if-none-match": file.headers["etag"]}
        assert (await server.http.get(f"/ui/{name}", headers=known)).status_code == 304
    for name in ("../models.py", "%2e%2e/models.py", "assets.py", "nothing"):
        assert (await server.http.get(f"/ui/{name}", headers={})).status_code == 404


async def test_a_view_token_opens_everything_but_the_tokens(server: Running) -> None:
    _, viewer = await new_token(server, "viewer", scope="view")
    for path in ("/v1/overview", "/v1/steps", "/v1/episodes", "/v1/tasks"):
        assert (await server.http.get(path, headers=viewer)).status_code == 200
    assert (await server.http.get("/v1/tokens", headers=viewer)).status_code == 403
    assert (await server.http.post("/v1/run/pause", headers=viewer)).status_code == 403


async def test_the_overview_names_clients_and_hides_secrets(server: Running) -> None:
    await server.roll()
    await server.claim()
    found = Overview.model_validate(await get(server, "/v1/overview"))
    assert "is filling the batch of step 1" in found.sentence
    (client,) = found.clients
    assert client.open_episodes == 1
    assert found.config is not None
    assert found.seconds_per_step is None


async def test_the_curves_follow_the_run(server: Running) -> None:
    await server.roll()
    assert StepCurves.model_validate(await get(server, "/v1/steps")).total == 0
    await server.batch()
    found = StepCurves.model_validate(await get(server, "/v1/steps", metrics="reward_mean"))
    assert (found.total, found.steps, list(found.curves)) == (1, [1], ["reward_mean"])
    assert "loss" in found.names


@pytest.mark.parametrize(
    ("query", "name"),
    [({"points": 0}, "points"), ({"points": "x"}, "points"), ({"nothing": 1}, "nothing")],
)
async def test_a_bad_query_is_refused_with_its_parameter(
    server: Running, query: dict[str, Any], name: str
) -> None:
    answer = await server.http.get("/v1/steps", params=query, headers=CONTROL)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"query.{name}"


async def test_episodes_are_listed_by_state_step_task_and_reward(server: Running) -> None:
    await server.roll()
    await server.batch()
    grant = await server.claim("another")
    everything = await rows(server)
    assert everything.episodes[0].episode_id == grant["episode_id"]
    assert [row.state for row in (await rows(server, state="open")).episodes] == ["open"]
    trained = (await rows(server, step=1, order="highest")).episodes
    assert {row.episode_id for row in trained} == {
        row.episode_id for row in everything.episodes if row.trained
    }
    rewards = [row.reward for row in trained if row.reward is not None]
    assert rewards == sorted(rewards, reverse=True)
    assert (await rows(server, step=2)).episodes == []
    assert [row.task_id for row in (await rows(server, task="another")).episodes] == ["another"]
    limited = await rows(server, limit=1, order="lowest")
    assert (len(limited.episodes), limited.more) == (1, True)
    assert limited.episodes[0].reward == min(rewards)


async def test_outputs_have_endings_and_their_rewards(server: Running) -> None:
    await server.roll()
    await server.batch()
    found = await rows(server, step=1, outputs="true")
    for row in found.episodes:
        assert row.output is not None
        assert (row.output.calls, row.output.tokens > 0) == (1, True)
        assert 0 <= row.output.repeats <= 1
    for ending in found.endings:
        same = [row for row in found.episodes if row.output and row.output.ending == ending.text]
        assert ending.episodes == len(same) > 1


async def test_messages_of_an_open_episode_are_texts(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    path = f"/v1/timelines/{grant['episode_id']}"
    assert Conversation.model_validate(await get(server, f"{path}/messages")).calls == []
    messages = [{"role": "system", "content": HOSTILE}, {"role": "user", "content": "hello"}]
    answer = (await server.chat(grant, messages=messages)).json()
    found = Conversation.model_validate(await get(server, f"{path}/messages"))
    assert found.episode.state == "open"
    (call,) = found.calls
    assert call.answer is not None
    assert call.answer.content == answer["choices"][0]["message"]["content"]
    assert call.messages[0].content == HOSTILE
    page = await get(server, f"{path}/page")
    assert json.dumps(page["episodes"][0]["summary"]).count(grant["episode_id"]) == 1


async def test_the_viewer_names_the_step_of_an_episode(server: Running) -> None:
    await server.roll()
    await server.batch()
    await server.batch()
    for step in (2, 1):
        (row, *_) = (await rows(server, step=step)).episodes
        page = await get(server, f"/v1/timelines/{row.episode_id}/page")
        assert page["episodes"][0]["summary"]["step"] == step
    grant = await server.claim("another")
    page = await get(server, f"/v1/timelines/{grant['episode_id']}/page")
    assert page["episodes"][0]["summary"]["step"] is None


async def test_an_unknown_episode_is_not_there(server: Running) -> None:
    for part in ("messages", "page"):
        answer = await server.http.get(f"/v1/timelines/nothing/{part}", headers=CONTROL)
        assert answer.status_code == 404


async def test_tasks_have_the_steps_and_rewards_between_which_they_changed(server: Running) -> None:
    await server.roll()
    assert (await get(server, "/v1/tasks"))["tasks"] == []
    await server.batch()
    await server.batch()
    await server.episode("untrained", 1.0)
    found = TaskRows.model_validate(await get(server, "/v1/tasks"))
    assert [row.task_id for row in found.tasks] == ["a", "b"]
    row = found.tasks[0]
    assert (row.episodes, row.steps, row.first_step, row.last_step) == (4, 2, 1, 2)
    assert (row.first_reward, row.last_reward) == (0.5, 0.5)
    some = TaskRows.model_validate(await get(server, "/v1/tasks", find="b", limit=1))
    assert ([row.task_id for row in some.tasks], some.more) == (["b"], False)
    first = TaskRows.model_validate(await get(server, "/v1/tasks", limit=1))
    assert (first.more, first.total) == (True, 2)
    second = TaskRows.model_validate(await get(server, "/v1/tasks", limit=1, skip=1))
    assert [row.task_id for row in second.tasks] == ["b"]
    assert (second.more, second.total) == (False, 2)


def reached(server: Running, step: int) -> bool:
    """Whether a server has trained a step."""
    return server.service.coordinator.step >= step


@pytest.mark.parametrize(
    ("order", "expected"),
    [("improved", ["up", "down"]), ("worsened", ["down", "up"]), ("lowest", ["down", "up"])],
)
async def test_tasks_are_ordered_by_how_they_changed(
    server: Running, order: str, expected: list[str]
) -> None:
    await server.roll()
    for step, rewards in enumerate(({"up": 0.0, "down": 1.0}, {"up": 0.75, "down": 0.25}), 1):
        for task, reward in rewards.items():
            for noise in (0.0, 0.125):
                await server.episode(task, reward + noise)
        await server.service.board.wait_until(partial(reached, server, step))
    found = TaskRows.model_validate(await get(server, "/v1/tasks", order=order))
    assert [row.task_id for row in found.tasks] == expected


async def test_a_list_has_a_total_and_further_pages(server: Running) -> None:
    await server.roll()
    await server.batch()
    for order in ("newest", "highest"):
        whole = await rows(server, order=order)
        assert (whole.total, whole.more) == (4, False)
        second = await rows(server, order=order, limit=2, skip=2)
        assert second.episodes == whole.episodes[2:]
        assert (second.total, second.more) == (4, False)
        assert (await rows(server, order=order, limit=2)).more


async def test_episodes_are_listed_by_client(server: Running) -> None:
    await server.roll()
    await server.batch()
    client = (await rows(server)).episodes[0].client
    assert (await rows(server, client=client)).total == 4
    assert (await rows(server, client=client, step=1)).total == 4
    assert (await rows(server, client="another")).total == 0
