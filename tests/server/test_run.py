"""A run from start to stop, over real sockets."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from ajet_core.errors import EngineError
from ajet_testing.faults import HoldGate
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory, error_of, key

pytestmark = pytest.mark.processes


async def test_batches_train_and_the_model_is_exported(server: Running) -> None:
    await server.roll()
    await server.batch()
    await server.batch()
    status = (await server.http.get("/v1/status", headers=CLIENT)).json()
    assert status["step"] == 2
    assert status["policy_version"] == 2
    assert status["state"] == "ROLLING"
    assert status["counters"]["calls"] == 8
    assert status["last_step"]["metrics"]["reward_mean"] == 0.5
    assert status["last_step"]["metrics"]["episodes"] == 4
    stopped = (await server.http.post("/v1/run/stop", headers=CONTROL)).json()
    assert stopped["state"] == "OFFLINE"
    assert Path(stopped["export_dir"]).is_dir()
    lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


async def test_a_run_ends_by_itself_after_its_steps(server: Running) -> None:
    await server.roll(steps=1)
    await server.batch()
    await server.service.board.wait_until(lambda: not server.service.coordinator.running)
    assert server.service.board.state == "OFFLINE"
    assert server.service.coordinator.error is None


async def test_every_call_is_recorded_with_tokens_and_logprobs(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    answer = (await server.chat(grant, return_token_ids=True)).json()
    calls = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    assert len(calls) == 1
    assert calls[0].call_id == answer["id"]
    assert calls[0].prompt_ids == answer["prompt_token_ids"]
    assert calls[0].sampled_ids == answer["choices"][0]["token_ids"]
    assert len(calls[0].logprobs) == answer["usage"]["completion_tokens"]
    assert calls[0].policy_versions == [0] * len(calls[0].sampled_ids)


async def test_a_claim_waits_for_its_place_in_the_next_batch(server: Running) -> None:
    await server.roll()
    grants = [await server.claim(task) for task in "aabb"]
    waiting = asyncio.create_task(server.claim("c"))
    for grant in grants:
        await server.end(grant, 1.0)
    assert (await waiting)["policy_version"] == 1


async def test_a_claim_that_cannot_be_served_in_time_says_when_to_ask_again(
    server: Running,
) -> None:
    await server.roll()
    for task in "aabb":
        await server.claim(task)
    answer = await server.http.post(
        "/v1/episodes", headers=CLIENT, json={"task_id": "c", "wait_seconds": 0.05}
    )
    assert answer.status_code == 503
    assert error_of(answer)["type"] == "not_rolling"
    assert error_of(answer)["retry_after"] > 0
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_client_that_hangs_up_while_it_waits_leaves_no_episode(server: Running) -> None:
    await server.roll()
    grants = [await server.claim(task) for task in "aabb"]
    waiting = asyncio.create_task(server.claim("c"))
    registry = server.service.episodes
    while server.service.admission.waiting_count == 0:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    while server.service.admission.waiting_count:
        await asyncio.sleep(0)
    for grant in grants:
        await server.end(grant, 1.0)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    assert len(registry.open) == 0


async def test_a_claim_that_was_granted_is_granted_again(server: Running) -> None:
    await server.roll()
    first = await server.claim("a", claim_id="c" * 32)
    again = await server.claim("a", claim_id="c" * 32)
    assert again == first
    assert (await server.chat(again)).status_code == 200
    assert len(server.service.episodes.open) == 1
    # It holds one of the two slots of its task.
    await server.claim("a", claim_id="d" * 32)
    await server.end(first, 1.0)
    body = {"task_id": "a", "claim_id": "c" * 32}
    over = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
    assert over.status_code == 410
    assert "has ended" in error_of(over)["message"]


async def test_two_of_the_same_claim_at_once_are_one_episode(server: Running) -> None:
    await server.roll()
    body = {"task_id": "a", "claim_id": "c" * 32}
    answers = await asyncio.gather(
        *(server.http.post("/v1/episodes", headers=CLIENT, json=body) for _ in range(4))
    )
    assert {answer.status_code for answer in answers} == {200}
    grants = [answer.json() for answer in answers]
    assert all(grant == grants[0] for grant in grants)
    assert len(server.service.episodes.open) == 1
    # The others hold no slot.
    assert (await server.claim("a"))["episode_id"] != grants[0]["episode_id"]


async def test_a_guessable_claim_id_is_refused(server: Running) -> None:
    await server.roll()
    body = {"task_id": "a", "claim_id": "short"}
    answer = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
    assert answer.status_code == 400


async def test_the_first_outcome_of_an_episode_stands(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    first = await server.end(grant, 0.25)
    again = await server.end(grant, 1.0)
    assert first.json() == again.json()
    assert again.json()["reward"] == 0.25


async def test_an_episode_that_is_silent_loses_its_lease(server: Running) -> None:
    await server.roll()
    grant = await server.claim(lease_seconds=1.0)
    episodes = server.service.episodes
    episodes.open._clock = lambda: time.monotonic() + 2.0
    await episodes.expire_leases()
    status = (await server.http.get(f"/v1/episodes/{grant['episode_id']}", headers=CLIENT)).json()
    assert status["state"] == "aborted"
    assert "lease expired" in status["reason"]
    answer = await server.end(grant, 1.0)
    assert answer.status_code == 410
    assert "lease expired" in error_of(answer)["message"]


async def test_a_heartbeat_renews_the_lease(server: Running) -> None:
    await server.roll()
    grant = await server.claim(lease_seconds=100.0)
    live = server.service.episodes.open[grant["episode_id"]]
    live.seen_at -= 50.0
    status = await server.http.post(f"/v1/episodes/{grant['episode_id']}/heartbeat", headers=CLIENT)
    assert status.json()["lease_expires_in"] > 90


async def test_ending_an_episode_stops_its_running_calls(servers: ServerFactory) -> None:
    async with servers.running() as server:
        with HoldGate(server.run_dir, "engine"):
            await server.roll(engine={"hangs_at": 1})
            grant = await server.claim()
            call = asyncio.create_task(server.chat(grant))
            live = server.service.episodes.open[grant["episode_id"]]
            while not live.calls_running:
                await asyncio.sleep(0)
            assert (await server.end(grant, 1.0)).status_code == 200
            answer = await call
            assert answer.status_code == 410
            assert error_of(answer)["code"] == "episode_closed"


async def test_a_call_that_takes_too_long_gets_an_answer_all_the_same(
    servers: ServerFactory,
) -> None:
    async with servers.running(call_deadline_seconds=2.0) as server:
        with HoldGate(server.run_dir, "engine"):
            await server.roll(engine={"hangs_at": 1})
            grant = await server.claim()
            answer = await server.chat(grant)
            assert answer.status_code == 504
            assert error_of(answer)["code"] == "deadline_exceeded"
            assert (await server.chat(grant)).status_code == 200


async def test_a_server_that_ends_tells_waiting_claims_to_come_back(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll()
        for task in "aabb":
            await server.claim(task)
        body = {"task_id": "c", "wait_seconds": 60.0}
        waiting = asyncio.create_task(server.http.post("/v1/episodes", headers=CLIENT, json=body))
        while not server.service.admission.waiting_count:
            await asyncio.sleep(0)
        await server.service.interrupt()
        answer = await waiting
        assert answer.status_code == 503
        assert error_of(answer)["retry_after"] == 2.0


async def test_streams_carry_the_same_message_as_a_whole_answer(server: Running) -> None:
    await server.roll()
    grant = await server.claim()
    whole = (await server.chat(grant, seed=1)).json()["choices"][0]["message"]
    text = ""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "seed": 1,
    }
    lines = []
    async with server.http.stream(
        "POST", "/v1/chat/completions", headers=key(grant), json=body
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                lines.append(line[6:])
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            text += choice["delta"].get("content") or ""
    assert text == (whole["content"] or "")


async def test_events_tell_what_happens(server: Running) -> None:
    await server.roll()
    await server.batch()
    seen = []
    async with server.http.stream(
        "GET", "/v1/events", headers={**CLIENT, "last-event-id": "0"}
    ) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["type"] == "step":
                    break
    states = [event["data"]["state"] for event in seen if event["type"] == "state"]
    assert states[:2] == ["BOOTING", "ROLLING"]
    assert {"ROLLING_POST", "WEIGHT_SYNCING"} <= set(states)
    ended = [e for e in seen if e["type"] == "episode" and e["data"]["what"] == "ended"]
    assert len(ended) == 4


async def test_calls_whose_client_went_away_are_not_trained(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll(
            engine={"reply_length": 100_000, "max_context": 200_000, "chunk_tokens": 1}
        )
        grant = await server.claim("a")
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with server.http.stream(
            "POST", "/v1/chat/completions", headers=key(grant), json=body
        ) as answer:
            async for _ in answer.aiter_lines():
                break
        store = server.service.store
        while not (calls := (await store.calls([grant["episode_id"]]))[grant["episode_id"]]):
            await asyncio.sleep(0)
        assert [call.finish_reason for call in calls] == ["abort"]
        await server.end(grant, 1.0)
        for task, reward in (("a", 0.0), ("b", 1.0), ("b", 0.0)):
            other = await server.claim(task)
            assert (await server.chat(other, max_tokens=8)).status_code == 200
            await server.end(other, reward)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        summary = server.service.coordinator.last_step
        assert summary is not None
        assert summary.metrics["calls"] == 4
        assert summary.metrics["calls_aborted"] == 1
        sampled = (await store.counters())["tokens_sampled"]
        assert summary.metrics["tokens_trained"] == sampled - len(calls[0].sampled_ids)


async def test_an_engine_that_fails_for_good_is_replaced(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        loop = server.service.coordinator.loop
        assert loop is not None
        loop.supervisor.health_seconds = 0.05
        before = server.service.coordinator.workers
        assert before is not None
        rolling = server.service.board.wait_until(lambda: not server.service.board.rolling)
        raising = asyncio.create_task(rolling)
        await asyncio.sleep(0)

        async def sick() -> None:
            raise EngineError("out of device memory")

        before.engine.stats = sick  # type: ignore[method-assign,assignment]
        await server.end(await server.claim(), 1.0)
        await raising
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        assert server.service.coordinator.workers is not before
        for task, reward in (("a", 0.0), ("b", 1.0), ("b", 0.0)):
            await server.episode(task, reward)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)


async def test_a_full_disk_at_a_checkpoint_does_not_end_the_run(server: Running) -> None:
    await server.roll()
    (server.run_dir / "checkpoints").write_text("in the way of every checkpoint")
    await server.batch()
    await server.batch()
    await server.batch()
    assert server.service.board.rolling
    assert server.service.coordinator.step == 3


@pytest.mark.usefixtures("worker_processes")
@pytest.mark.parametrize("victim", ["engine", "trainer"])
async def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(
    servers: ServerFactory, victim: str
) -> None:
    faults = {victim: {"dies_at": 2}}
    async with servers.running() as server:
        await server.roll(**faults)
        await server.batch()
        await server.batch()
        status = (await server.http.get("/v1/status", headers=CLIENT)).json()
        assert status["step"] == 2
        assert status["error"] is None
        assert status["counters"]["episodes_ended"] == 8
        batches = await server.service.store.batches(after_step=0)
        assert [b.step for b in batches] == [1, 2]
        trained = [e for b in batches for e in b.episode_ids]
        assert len(trained) == len(set(trained)) == 8


async def test_a_server_that_is_started_again_goes_on_where_it_was(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        await server.batch()
        await server.batch()
        await server.batch()
        grant = await server.claim("a", claim_id="c" * 32)
        first = (await server.chat(grant, return_token_ids=True)).json()
    async with servers.running() as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        # The last checkpoint is of step 2; the batch of step 3 was trained again from it.
        assert server.service.coordinator.step == 3
        messages = [
            {"role": "user", "content": "hello"},
            first["choices"][0]["message"],
            {"role": "user", "content": "and?"},
        ]
        # An answer to the claim that was lost when the first server ended.
        again = await server.claim("a", claim_id="c" * 32)
        assert {**again, "base_url": ""} == {**grant, "base_url": ""}
        answer = await server.chat(grant, messages=messages, return_token_ids=True)
        assert answer.status_code == 200, answer.text
        sampled = first["choices"][0]["token_ids"]
        before = first["prompt_token_ids"] + sampled
        assert answer.json()["prompt_token_ids"][: len(before)] == before
        assert (await server.end(grant, 1.0)).status_code == 200


async def test_the_order_of_calls_outlives_a_gap_in_it(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        grant = await server.claim("a")
        await server.chat(grant, "one")
        # What a call leaves behind whose write failed.
        server.service.episodes.open[grant["episode_id"]].session.take_index()
        await server.chat(grant, "two")
    async with servers.running() as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        await server.chat(grant, "three")
        calls = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
        assert [call.index for call in calls] == [0, 2, 3]
