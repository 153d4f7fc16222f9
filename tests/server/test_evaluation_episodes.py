"""Evaluation episodes on a real server: sampled as configured, counted, never trained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentjet.client import AsyncSwarmClient, Episode, Task
from ajet_core.timeline import Call
from ajet_testing.faults import HoldGate
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    TOKENS,
    Running,
    ServerFactory,
    error_of,
)

pytestmark = pytest.mark.processes

GREEDY = {"sampling": {"temperature": 0.0, "top_p": 0.5, "top_k": 7, "max_tokens": 2}}


async def evaluations(server: Running) -> list[dict[str, Any]]:
    answer = await server.http.get("/v1/evaluations", headers=CLIENT)
    found: list[dict[str, Any]] = answer.json()["evaluations"]
    return found


async def evaluate(server: Running, task: str, reward: float, **changes: Any) -> dict[str, Any]:
    grant = await server.claim(task, kind="eval", **changes)
    assert (await server.chat(grant)).status_code == 200
    assert (await server.end(grant, reward)).status_code == 200
    return grant


async def only_call(server: Running, grant: dict[str, Any]) -> Call:
    (call,) = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    return call


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_are_sampled_and_recorded_as_the_run_says(
    server: Running, stream: bool
) -> None:
    await server.roll(evaluation=GREEDY)
    asked: dict[str, Any] = {"temperature": 1.5, "top_p": 0.9, "top_k": 3, "stream": stream}
    grant = await server.claim(kind="eval")
    assert (await server.chat(grant, **asked)).status_code == 200
    call = await only_call(server, grant)
    assert (call.temperature, call.top_p, call.top_k) == (0.0, 0.5, 7)
    assert len(call.sampled_ids) == 2
    assert call.finish_reason == "length"
    trained = await server.claim()
    assert (await server.chat(trained, **asked)).status_code == 200
    call = await only_call(server, trained)
    assert (call.temperature, call.top_p, call.top_k) == (1.5, 0.9, 3)
    assert len(call.sampled_ids) > 2


async def test_what_the_run_leaves_open_is_the_agents(server: Running) -> None:
    await server.roll(evaluation={"sampling": {"max_tokens": 100}})
    grant = await server.claim(kind="eval")
    assert (await server.chat(grant, temperature=0.5, max_tokens=1)).status_code == 200
    call = await only_call(server, grant)
    assert (call.temperature, len(call.sampled_ids)) == (0.5, 1)


async def test_a_limit_on_answers_leaves_prompts_the_whole_context(server: Running) -> None:
    await server.roll(
        evaluation={"sampling": {"max_tokens": 2**31 - 1}},
    )
    grant = await server.claim(kind="eval")
    assert (await server.chat(grant)).status_code == 200


@pytest.mark.parametrize(
    ("evaluation", "param"),
    [
        ({"pass_at": []}, "evaluation.pass_at"),
        ({"pass_at": [0]}, "evaluation.pass_at.0"),
        ({"pass_at": [4, 1]}, "evaluation"),
        ({"pass_at": [1, 1]}, "evaluation"),
        ({"sampling": {"temperature": -1}}, "evaluation.sampling.temperature"),
        ({"sampling": {"beams": 4}}, "evaluation.sampling.beams"),
    ],
)
async def test_an_evaluation_that_cannot_be_is_refused_before_anything_starts(
    server: Running, evaluation: dict[str, Any], param: str
) -> None:
    answer = await server.put_run(evaluation=evaluation)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


async def test_a_batch_is_trained_without_the_evaluation_beside_it(server: Running) -> None:
    await server.roll()
    for _ in range(5):
        await evaluate(server, "a", 1.0)
    assert server.service.coordinator.step == 0
    await server.batch()
    (batch,) = await server.service.store.batches(after_step=0)
    kinds = {(await server.service.episodes.get(e))[0].kind for e in batch.episode_ids}
    assert kinds == {"train"}


async def test_each_step_of_a_task_set_has_its_scores(server: Running) -> None:
    await server.roll(evaluation={"pass_at": [1, 2], "pass_reward": 0.5})
    for task, reward in (("a", 0.5), ("a", 0.0), ("b", 0.25), ("b", 0.25)):
        await evaluate(server, task, reward, tag="held-out")
    await server.batch()
    await evaluate(server, "a", 1.0, tag="held-out")
    (before, after) = await evaluations(server)
    assert before == {
        "client_id": "client",
        "tag": "held-out",
        "step": 0,
        "tasks": 2,
        "episodes": 4,
        "open": 0,
        "aborted": 0,
        "mixed": 0,
        "reward_mean": 0.25,
        "pass_at": {"1": 0.25, "2": 0.5},
    }
    assert (after["step"], after["pass_at"]) == (1, {"1": 1.0})
    status = (await server.http.get("/v1/status", headers=CLIENT)).json()
    assert status["evaluations"] == [after]


async def test_an_episode_that_outlives_a_step_is_said_to_be_mixed(server: Running) -> None:
    await server.roll()
    silent = await server.claim("a", kind="eval")
    grant = await server.claim("b", kind="eval")
    await server.chat(grant)
    await server.batch()
    await server.chat(grant, "and now")
    for each in (silent, grant):
        assert (await server.end(each, 1.0)).status_code == 200
    (found,) = await evaluations(server)
    assert (found["step"], found["episodes"], found["mixed"]) == (0, 2, 1)


async def test_evaluation_episodes_wait_while_weights_move(server: Running) -> None:
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(trainer={"hangs_at": 1})
        for task, reward in (("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0)):
            await server.episode(task, reward)
        await server.service.board.wait_until(lambda: server.service.board.state == "ROLLING_POST")
        answer = await server.http.post(
            "/v1/episodes",
            headers=CLIENT,
            json={"task_id": "e", "kind": "eval", "wait_seconds": 0.05},
        )
        assert error_of(answer)["type"] == "not_rolling"
        gate.release()
        assert (await server.claim("e", kind="eval"))["policy_version"] == 1


async def test_scores_are_there_after_a_restart_and_go_on(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll(evaluation={"pass_at": [1, 2]})
        await evaluate(server, "a", 1.0, tag="t")
        grant = await server.claim("a", kind="eval", tag="t")
        before = await evaluations(server)
        assert before[0]["open"] == 1
    async with servers.running() as server:
        assert await evaluations(server) == before
        assert (await server.end(grant, 0.0)).status_code == 200
        (found,) = await evaluations(server)
        assert (found["open"], found["episodes"]) == (0, 2)
        assert found["pass_at"] == {"1": 0.5, "2": 1.0}


async def test_another_pass_reward_counts_the_episodes_of_before_anew(server: Running) -> None:
    await server.roll(evaluation={"pass_reward": 1.0})
    await evaluate(server, "a", 0.5)
    await server.http.post("/v1/run/stop", headers=CONTROL)
    await server.roll(evaluation={"pass_reward": 0.5})
    (found,) = await evaluations(server)
    assert found["pass_at"] == {"1": 1.0}


async def test_the_end_of_an_evaluation_is_one_event_and_one_line(server: Running) -> None:
    await server.roll()
    grants = [await server.claim(task, kind="eval", tag="t") for task in "abc"]
    for grant in grants:
        await server.end(grant, 1.0)
    await server.service.tell_evaluations()
    await server.service.tell_evaluations()
    await server.service.loggers.settled()
    told = [o for o in server.service.events._events if o.event.type == "evaluation"]
    assert [(o.owner, o.event.data["tag"], o.event.data["episodes"]) for o in told] == [
        ("client", "t", 3)
    ]
    (line,) = (server.run_dir / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line) == (await evaluations(server))[0]
    assert not (server.run_dir / "metrics.jsonl").exists()


async def test_what_ended_just_before_the_server_does_is_logged(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        await evaluate(server, "a", 1.0)
    lines = (servers.run_dir / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["episodes"] == 1


async def test_a_client_and_its_server_come_to_the_same_scores(server: Running) -> None:
    rewards = iter([1.0, 0.0, 0.0, 0.0])

    async def agent(task: Task, episode: Episode) -> float:
        return next(rewards)

    await server.roll(evaluation={"pass_at": [1, 2, 4]})
    async with AsyncSwarmClient(server.url, token=TOKENS.client) as client:
        report = await client.evaluate(["a", "b"], agent, episodes_per_task=2, tag="t")
        (found,) = await client.evaluations()
    assert report.pass_at == found.pass_at == {1: 0.25, 2: 0.5}
    assert (report.reward_mean, list(report.steps)) == (found.reward_mean, [0])
    assert (found.tag, found.client_id) == ("t", "client")
