"""One client's failures do not stop the others, on real sockets and worker processes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet_core.protocol import ServerState
from ajet_testing.servers import CLIENT, CONTROL, Headers, Running, claim_as, error_of, new_token
from tests.support.runs import abort, events, finish_batch, loop_of, status, until_state

pytestmark = pytest.mark.processes

# Tokens of a sequence that the trainer has memory for; a huge episode has more, others have less.
MEMORY = 96
HUGE = "hello there, how are you today? " * 40
UNTRIED = {"enabled": False}


async def episode(
    server: Running, headers: Headers, task: str, reward: float, text: str = "hello"
) -> str:
    """A whole episode of a client, with one call."""
    answer = await claim_as(server, headers, task)
    assert answer.status_code == 200, answer.text
    grant = answer.json()
    assert (await server.chat(grant, text)).status_code == 200
    ended = await server.http.post(
        f"/v1/episodes/{grant['episode_id']}/end", headers=headers, json={"reward": reward}
    )
    assert ended.status_code == 200, ended.text
    found: str = grant["episode_id"]
    return found


async def pair(
    server: Running, headers: Headers, task: str = "a", rewards: Any = (0.0, 1.0), text: str = "hi"
) -> list[str]:
    """Two episodes of a task."""
    return list(await asyncio.gather(*(episode(server, headers, task, r, text) for r in rewards)))


async def trained(server: Running, step: int) -> None:
    coordinator = server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step >= step or bool(coordinator.paused) or not coordinator.running
    )
    assert (coordinator.error, coordinator.paused, coordinator.step) == (None, None, step)


async def refused(server: Running, count: int) -> None:
    await server.service.board.wait_until(lambda: len(events(server, "refused")) == count)


async def test_an_episode_that_the_trainer_cannot_compute_is_quarantined_alone(
    server: Running,
) -> None:
    await server.roll(trainer={"memory": MEMORY}, preflight=UNTRIED)
    mallory, headers = await new_token(server, "mallory")
    good = asyncio.create_task(pair(server, CLIENT))
    bad = await asyncio.gather(
        episode(server, headers, "b", 0.0, HUGE), episode(server, headers, "b", 1.0)
    )
    await trained(server, 1)
    store = server.service.store
    (quarantined,) = await store.batches(after_step=0, refused=True)
    assert quarantined.episode_ids == [bad[0]]
    assert "do not fit into the memory" in quarantined.refused
    assert f"(episodes: 1 of client {mallory})" in quarantined.refused
    for trained_on in (*await good, bad[1]):
        assert await store.scores(trained_on)
    # Nobody is paused, and the engine answers.
    await server.batch()


async def test_the_preflight_is_of_what_is_left_when_one_clients_episodes_are_quarantined(
    server: Running,
) -> None:
    await server.roll(trainer={"memory": MEMORY})
    mallory, headers = await new_token(server, "mallory")
    await asyncio.gather(pair(server, CLIENT), pair(server, headers, "b", text=HUGE))
    await trained(server, 1)
    (quarantined,) = await server.service.store.batches(after_step=0, refused=True)
    assert f"(episodes: 2 of client {mallory})" in quarantined.refused
    (told,) = events(server, "preflight")
    verdicts = {check["name"]: check["verdict"] for check in told["checks"]}
    assert verdicts["memory"] == "pass"


async def test_batches_that_the_trainer_cannot_compute_pause_a_run_that_nobody_shares(
    server: Running,
) -> None:
    await server.roll(trainer={"memory": 8}, preflight=UNTRIED, failures={"max_refused": 2})
    for number in (1, 2):
        await finish_batch(server)
        await refused(server, number)
    await until_state(server, ServerState.PAUSED)
    told = await status(server)
    assert told["error"] is None
    assert "2 batches in a row could not be trained" in told["paused"]
    assert "do not fit into the memory" in told["paused"]


async def test_a_trainer_that_fails_for_once_costs_its_batch(server: Running) -> None:
    await server.roll(trainer={"raises_at": 1})
    await finish_batch(server)
    await refused(server, 1)
    await server.batch()
    (kept,) = await server.service.store.batches(after_step=0, refused=True)
    assert len(kept.episode_ids) == 4
    assert "scripted failure of the trainer at 1" in kept.refused


async def test_a_client_whose_episodes_cannot_be_trained_is_quarantined_and_the_others_go_on(
    server: Running,
) -> None:
    # With a slot to spare, an episode may be open while a batch is trained.
    await server.roll(trainer={"memory": MEMORY}, preflight=UNTRIED, rollout={"spare_tasks": 1})
    mallory, headers = await new_token(server, "mallory")
    late = (await claim_as(server, headers, "late")).json()
    for step in (1, 2, 3):
        good = asyncio.create_task(pair(server, CLIENT, f"a{step}"))
        await pair(server, headers, f"b{step}", text=HUGE)
        await good
        await trained(server, step)
    refusal = await claim_as(server, headers, "next")
    assert refusal.status_code == 409
    assert "this client's training episodes are quarantined" in error_of(refusal)["message"]
    assert "do not fit into the memory" in error_of(refusal)["message"]
    assert (await claim_as(server, headers, "e", kind="eval")).status_code == 200

    (entry,) = (await status(server))["quarantined"]
    assert (entry["client_id"], entry["task_id"]) == (mallory, "")
    (finding,) = [f for f in (await status(server))["findings"] if f["code"] == "tasks_quarantined"]
    assert f"all tasks of client {mallory}" in finding["message"]
    own = (await server.http.get("/v1/status", headers=headers)).json()
    others = (await server.http.get("/v1/status", headers=CLIENT)).json()
    assert (own["quarantined"], others["quarantined"]) == ([entry], [])

    # What was open then is not trained, and costs no search.
    assert (await server.chat(late)).is_success
    await server.http.post(
        f"/v1/episodes/{late['episode_id']}/end", headers=headers, json={"reward": 1}
    )
    await asyncio.gather(pair(server, CLIENT, "c"), pair(server, CLIENT, "d"))
    await trained(server, 4)
    (left_out,) = [
        batch
        for batch in await server.service.store.batches(after_step=0, refused=True)
        if late["episode_id"] in batch.episode_ids
    ]
    assert (
        left_out.refused
        == f"the client of these episodes is quarantined (episodes: 1 of client {mallory})"
    )

    # Somebody has looked.
    await server.http.post("/v1/run/resume", headers=CONTROL)
    assert (await status(server))["quarantined"] == []
    await asyncio.gather(pair(server, CLIENT, "e"), pair(server, headers, "f"))
    await trained(server, 5)


async def test_whole_batches_of_one_client_that_are_refused_do_not_pause_the_run_of_another(
    server: Running,
) -> None:
    await server.roll(trainer={"memory": MEMORY}, preflight=UNTRIED)
    mallory, headers = await new_token(server, "mallory")
    await server.batch()
    for number in (1, 2, 3):
        await asyncio.gather(*(pair(server, headers, f"{t}{number}", text=HUGE) for t in "xy"))
        await refused(server, number)
    await server.service.board.wait_until(lambda: bool(loop_of(server).rollouts.quarantined))
    await server.batch()
    await trained(server, 2)
    assert [one["client_id"] for one in (await status(server))["quarantined"]] == [mallory]


async def test_failures_of_one_clients_agents_do_not_pause_the_run_of_another(
    server: Running,
) -> None:
    await server.roll(failures={"window": 4}, batch={"tasks": 2, "episodes_per_task": 2})
    _, headers = await new_token(server, "mallory")
    (await server.end(await server.claim("a"), 1.0)).raise_for_status()
    for number in range(8):
        bad = (await claim_as(server, headers, f"b{number}")).json()
        await server.http.post(
            f"/v1/episodes/{bad['episode_id']}/abort",
            headers=headers,
            json={"reason": "broken", "cause": "error"},
        )
    assert (await status(server))["paused"] is None
    # Those of both do.
    for number in range(4):
        await abort(server, await server.claim(f"a{number}"), reason="broken", cause="error")
    await until_state(server, ServerState.PAUSED)


async def both(server: Running, headers: Headers, own: Any, others: Any) -> None:
    """A batch of which each client has a task, with these rewards."""
    step = server.service.coordinator.step
    await asyncio.gather(
        pair(server, CLIENT, f"a{step}", own), pair(server, headers, f"b{step}", others)
    )


async def test_rewards_of_one_client_do_not_pause_the_run_of_another(server: Running) -> None:
    await server.roll()
    _, headers = await new_token(server, "mallory")
    # They seem to rise and to fall, beyond all that the others' do.
    rises = [(0.0, 1.0), (0.0, 1.0), (0.0, 1e4), *[(9e5, 1e6)] * 3]
    # So many that chance cannot have made the mean of the whole batches fall.
    falls = [(0.0, 1.0)] * 10
    for step, rewards in enumerate((*rises, *falls), 1):
        await both(server, headers, (0.0, 1.0), rewards)
        await trained(server, step)
    told = [f["code"] for f in (await status(server))["findings"]]
    assert "reward_drop" in told
    # What happens to everybody's is no single client's doing.
    await both(server, headers, (-9.0, -8.0), (-9e5, -8e5))
    await until_state(server, ServerState.PAUSED)
    assert "the mean reward fell" in (await status(server))["paused"]
