"""Failures of agents, batches, trainers and workers, on real sockets and worker processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import ServerState
from ajet_server.observe import watchdog
from ajet_server.store.checkpoints import CheckpointFolder
from ajet_testing.faults import HoldGate
from ajet_testing.scripted_trainer import ScriptedTrainer
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Running,
    ServerFactory,
    claim_as,
    error_of,
    new_token,
)
from tests.support.runs import abort, events, finish_batch, loop_of, status, until_state

pytestmark = pytest.mark.processes


async def test_a_refused_batch_is_kept_and_the_next_one_takes_its_step(server: Running) -> None:
    await server.roll(trainer={"refuses_at": 2})
    await server.batch()
    await finish_batch(server)
    await server.service.board.wait_until(lambda: bool(events(server, "refused")))
    await until_state(server, ServerState.ROLLING)
    assert server.service.coordinator.step == 1
    # The old weights are served, and the next batch is step 2.
    await server.batch()
    assert server.service.coordinator.step == 2
    (kept,) = await server.service.store.batches(after_step=0, refused=True)
    assert len(kept.episode_ids) == 4
    assert "scripted refusal of step 2" in kept.refused
    steps = await server.service.store.steps()
    assert [s.step for s in steps] == [1, 2]
    assert kept.batch_id not in {s.batch_id for s in steps}
    assert error_of_event(events(server, "refused")[0])["type"] == "step_refused"


def error_of_event(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["error"]
    return found


async def test_a_trainer_that_refuses_batch_after_batch_pauses_the_run(server: Running) -> None:
    await server.roll(trainer={"refuses_at": 1, "once": False}, failures={"max_refused": 2})
    await finish_batch(server)
    await server.service.board.wait_until(lambda: bool(events(server, "refused")))
    await finish_batch(server)
    await until_state(server, ServerState.PAUSED)
    assert "2 batches in a row could not be trained" in (await status(server))["paused"]


async def test_a_refused_batch_is_not_trained_after_a_restart(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll(trainer={"refuses_at": 1})
        await finish_batch(server)
        await server.service.board.wait_until(lambda: bool(events(server, "refused")))
        await server.batch()
    async with servers.running() as server:
        await until_state(server, ServerState.ROLLING)
        assert server.service.coordinator.step == 1
        assert len(await server.service.store.batches(after_step=0, refused=True)) == 1


async def test_failing_agents_pause_the_run_with_a_diagnosis(server: Running) -> None:
    await server.roll(
        batch={"full_by": "episodes", "tasks": 8, "episodes_per_task": 2},
        failures={"window": 8, "max_rate": 0.5},
    )
    for number in range(8):
        grant = await server.claim(f"t{number}")
        if number < 3:
            await server.end(grant, 1.0)
        else:
            said = await abort(
                server, grant, reason="TimeoutError: tool is down\ndetails", cause="timeout"
            )
            assert said["cause"] == "timeout"
    await until_state(server, ServerState.PAUSED)
    found = await status(server)
    assert "5 of the last 8 episodes failed (5 by timeout)" in found["paused"]
    assert "5 times 'TimeoutError: tool is down'" in found["paused"]
    # A busy machine may have blocked the event loop.
    assert [f["code"] for f in found["findings"] if f["code"] != "loop_blocked"] == ["paused"]
    assert found["counters"]["aborted_timeout"] == 5
    body = {"task_id": "x", "wait_seconds": 0}
    refused = await server.http.post("/v1/episodes", headers=CLIENT, json=body)
    assert refused.status_code == 503
    # Whose agents failed and how is not for every client.
    told = "the server is PAUSED; ask its operator, who can see the reason with `ajet status`"
    assert told in error_of(refused)["message"]
    waiting = asyncio.create_task(server.claim("y"))
    answer = await server.http.post("/v1/run/resume", headers=CONTROL)
    assert answer.status_code == 200
    assert (await waiting)["task_id"] == "y"
    assert (await status(server))["paused"] is None


async def test_queued_batches_wait_while_the_run_is_paused(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=100)
        await server.batch()
        await server.batch()
        await server.http.post("/v1/run/pause", headers=CONTROL, json={"reason": "a look"})
        await until_state(server, ServerState.PAUSED)
    async with servers.running() as server:
        await until_state(server, ServerState.PAUSED)
        assert server.service.coordinator.step == 0
        await server.http.post("/v1/run/resume", headers=CONTROL)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 2)


async def test_a_trainer_that_refuses_what_it_had_trained_loses_no_batch(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=100)
        await server.batch()
        await server.batch()
        await server.http.post("/v1/run/stop", headers=CONTROL)
    shutil.rmtree(servers.run_dir / "checkpoints")
    async with servers.running() as server:
        await server.roll_as_it_is(trainer={"refuses_at": 1, "once": False})
        await until_state(server, ServerState.PAUSED)
        assert "was trained before the last restart" in (await status(server))["paused"]
        assert len(await server.service.store.batches(after_step=0)) == 2
        assert await server.service.store.batches(after_step=0, refused=True) == []
        # Once more, and then it goes on without it.
        await server.http.post("/v1/run/resume", headers=CONTROL)
        await server.service.board.wait_until(lambda: bool(events(server, "refused")))
        (kept,) = await server.service.store.batches(after_step=0, refused=True)
        assert "scripted refusal" in kept.refused


async def test_a_trainer_that_lost_its_weights_is_replaced(server: Running) -> None:
    await server.roll(trainer={"tears_at": 2})
    await server.batch()
    await server.batch()
    assert server.service.coordinator.step == 2
    (died,) = [e["message"] for e in events(server, "worker") if e["what"] == "died"]
    assert "scripted loss of the weights in step 2" in died
    # As if it had never happened.
    assert len(await server.service.store.batches(after_step=0)) == 2
    assert events(server, "refused") == []


@pytest.mark.usefixtures("worker_processes")
@pytest.mark.parametrize("fault", ["dies_at", "tears_at"])
async def test_a_batch_that_workers_die_of_is_kept_and_the_next_one_takes_its_step(
    server: Running, fault: str
) -> None:
    await server.roll(trainer={fault: 2}, failures={"max_deaths": 1})
    await server.batch()
    await finish_batch(server)
    await server.service.board.wait_until(lambda: bool(events(server, "refused")))
    await until_state(server, ServerState.ROLLING)
    await server.batch()
    assert server.service.coordinator.step == 2
    (kept,) = await server.service.store.batches(after_step=0, refused=True)
    assert "1 worker died while training the batch; the last failure" in kept.refused
    assert kept.batch_id not in {s.batch_id for s in await server.service.store.steps()}


@pytest.mark.usefixtures("worker_processes")
async def test_a_client_whose_episodes_kill_workers_costs_the_others_nothing(
    server: Running,
) -> None:
    await server.roll(trainer={"dies_over": 200, "once": False}, failures={"max_deaths": 1})
    _, other = await new_token(server, "other")
    episodes: dict[str, list[str]] = {"a": [], "b": []}
    for task, headers, text in (("a", CLIENT, "Hi"), ("b", other, "Hi " * 200)) * 2:
        grant = (await claim_as(server, headers, task)).json()
        assert (await server.chat(grant, text)).status_code == 200
        end = {"reward": float(len(episodes[task]))}
        url = f"/v1/episodes/{grant['episode_id']}/end"
        assert (await server.http.post(url, headers=headers, json=end)).status_code == 200
        episodes[task].append(grant["episode_id"])
    store, coordinator = server.service.store, server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step == 1 and bool(events(server, "refused"))
    )
    await until_state(server, ServerState.ROLLING)
    (refused,) = await store.batches(after_step=0, refused=True)
    assert sorted(refused.episode_ids) == sorted(episodes["b"])
    (trained,) = await store.batches(after_step=0)
    assert sorted(trained.episode_ids) == sorted(episodes["a"])
    for episode in episodes["a"]:
        assert len(await store.scores(episode)) == 1


@pytest.mark.usefixtures("worker_processes")
async def test_a_batch_is_to_blame_although_the_ones_before_it_are_trained_again(
    servers: ServerFactory,
) -> None:
    """Without a checkpoint each new worker first trains what the one before it had trained."""
    async with servers.running(worker_restarts=2) as server:
        await server.roll(
            trainer={"dies_at": 2, "once": False},
            checkpoint_every=100,
            failures={"max_deaths": 2, "max_refused": 2},
        )
        await server.batch()
        await finish_batch(server)
        await server.service.board.wait_until(lambda: bool(events(server, "refused")))
        # The first batch is trained again before episodes begin.
        await finish_batch(server)
        await until_state(server, ServerState.PAUSED)
        assert "2 batches in a row could not be trained" in (await status(server))["paused"]
        died = [e for e in events(server, "worker") if e["what"] == "died"]
        assert len(died) == 4


@pytest.mark.usefixtures("worker_processes")
async def test_workers_that_only_train_again_what_was_trained_make_no_progress(
    servers: ServerFactory,
) -> None:
    async with servers.running(worker_restarts=1) as server:
        await server.roll(
            trainer={"dies_at": 2, "once": False},
            checkpoint_every=100,
            failures={"max_deaths": 5},
        )
        await server.batch()
        await finish_batch(server)
        await until_state(server, ServerState.OFFLINE)
        error = server.service.coordinator.error
        assert error is not None
        assert "workers died 2 times without finishing a step" in error.message
        # Its batches are there when somebody has looked after it.
        assert len(await server.service.store.batches(after_step=0)) == 2


@pytest.mark.usefixtures("worker_processes")
async def test_a_batch_that_was_trained_before_is_not_refused_at_once_if_workers_die_of_it(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=100)
        await server.batch()
        await server.http.post("/v1/run/stop", headers=CONTROL)
    shutil.rmtree(servers.run_dir / "checkpoints")
    async with servers.running() as server:
        await server.roll_as_it_is(trainer={"dies_at": 1}, failures={"max_deaths": 1})
        await until_state(server, ServerState.PAUSED)
        assert "was trained before the last restart" in (await status(server))["paused"]
        await server.http.post("/v1/run/resume", headers=CONTROL)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        assert await server.service.store.batches(after_step=0, refused=True) == []


async def test_a_checkpoint_that_cannot_be_written_is_left_out(server: Running) -> None:
    await server.roll(checkpoint_every=1)
    checkpoints = server.run_dir / "checkpoints"
    await server.batch()

    def in_the_way(_: CheckpointFolder, aside: Path) -> None:
        aside.write_text("a file where the trainer wants to make its directory")

    # The trainer meets it in its worker, and says it in its own way.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointFolder, "_clear", in_the_way)
        await server.batch()
    (checkpoints / ".writing-step-000002").unlink()
    assert [e["what"] for e in events(server, "run")] == ["no_checkpoint"]
    await server.batch()
    assert server.service.coordinator.step == 3
    assert sorted(p.name for p in checkpoints.iterdir()) == ["step-000001", "step-000003"]


@pytest.mark.usefixtures("worker_processes")
async def test_a_status_does_not_wait_for_a_worker_that_hangs(server: Running) -> None:
    await server.roll()
    workers = loop_of(server).supervisor.running
    assert workers is not None
    os.kill(workers.engine_process.pid, signal.SIGSTOP)
    try:
        found = await status(server)
    finally:
        os.kill(workers.engine_process.pid, signal.SIGCONT)
    assert found["state"] == "ROLLING"
    assert "engine_sampled_tokens" not in found["counters"]


async def test_a_pause_keeps_open_episodes_and_full_batches(server: Running) -> None:
    await server.roll()
    grants = [await server.claim(task) for task in "aabb"]
    paused = await server.http.post("/v1/run/pause", headers=CONTROL, json={"reason": "a look"})
    assert paused.status_code == 200
    await until_state(server, ServerState.PAUSED)
    for number, grant in enumerate(grants):
        assert (await server.chat(grant)).status_code == 200
        await server.end(grant, number % 2)
    assert server.service.coordinator.step == 0
    await server.http.post("/v1/run/resume", headers=CONTROL)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)


async def test_a_paused_run_is_paused_after_a_restart(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        await server.http.post("/v1/run/pause", headers=CONTROL, json={"reason": "a look"})
    async with servers.running() as server:
        await until_state(server, ServerState.PAUSED)
        assert (await status(server))["paused"] == "a look"
        await server.http.post("/v1/run/resume", headers=CONTROL)
        await until_state(server, ServerState.ROLLING)
    async with servers.running() as server:
        await until_state(server, ServerState.ROLLING)


async def test_only_a_run_can_be_paused(server: Running) -> None:
    for verb in ("pause", "resume"):
        answer = await server.http.post(f"/v1/run/{verb}", headers=CONTROL)
        assert answer.status_code == 409
        answer = await server.http.post(f"/v1/run/{verb}", headers=CLIENT)
        assert answer.status_code == 403


async def test_a_task_that_always_fails_is_quarantined_and_shown(server: Running) -> None:
    await server.roll(failures={"max_rate": 1.0})
    waiting = asyncio.create_task(
        server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "a", "wait_seconds": 30})
    )
    grants = [(await waiting).json(), await server.claim("a")]
    waiting = asyncio.create_task(
        server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "a", "wait_seconds": 30})
    )
    for grant in grants:
        await abort(server, grant, reason="ValueError: always")
    third = (await waiting).json()
    others = [
        asyncio.create_task(
            server.http.post(
                "/v1/episodes", headers=CLIENT, json={"task_id": "a", "wait_seconds": 30}
            )
        )
        for _ in range(2)
    ]
    while server.service.admission.waiting_count < 1:
        await asyncio.sleep(0)
    await abort(server, third, reason="ValueError: always")
    answers = [await other for other in others]
    # One had a slot by then, the other is sent away.
    assert sorted(a.status_code for a in answers) == [200, 409]
    refused = await server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "a"})
    assert refused.status_code == 409
    assert "its last 3 episodes failed and none ended" in error_of(refused)["message"]
    found = await status(server)
    assert [(s["task_id"], s["aborts"]) for s in found["quarantined"]] == [("a", 3)]
    assert "tasks_quarantined" in {f["code"] for f in found["findings"]}
    assert len(events(server, "task_quarantined")) == 1
    await server.http.post("/v1/run/resume", headers=CONTROL)
    assert (await status(server))["quarantined"] == []


@pytest.mark.usefixtures("worker_processes")
async def test_a_training_step_that_never_ends_is_ended_and_tried_again(
    servers: ServerFactory,
) -> None:
    async with servers.running(step_timeout_seconds=2.0) as server:
        with HoldGate(server.run_dir, "trainer"):
            await server.roll(trainer={"hangs_at": 1})
            loop_of(server).supervisor.health_seconds = 0.1
            await server.batch()
        assert server.service.coordinator.step == 1
        died = [e["message"] for e in events(server, "worker") if e["what"] == "died"]
        assert "training step 1 took longer than 2 s" in died[0]


@pytest.mark.usefixtures("worker_processes")
async def test_a_frozen_worker_is_replaced_in_the_middle_of_a_step(servers: ServerFactory) -> None:
    async with servers.running() as server:
        with HoldGate(server.run_dir, "trainer"):
            await server.roll(trainer={"hangs_at": 1})
            watch = loop_of(server).supervisor
            watch.health_seconds, watch.hang_seconds = 0.1, 0.5
            training = asyncio.create_task(server.batch())
            while not (server.run_dir / "scripted-trainer.hung").exists():
                await asyncio.sleep(0)
            os.kill(watch.workers.trainer_process.pid, signal.SIGSTOP)
            await training
        assert server.service.coordinator.step == 1
        died = [e["message"] for e in events(server, "worker") if e["what"] == "died"]
        assert "did not respond for 0.5 s during training step 1" in died[0]


@pytest.mark.usefixtures("worker_processes")
async def test_an_engine_that_does_nothing_is_replaced_and_its_calls_go_on(
    servers: ServerFactory,
) -> None:
    async with servers.running(engine_stall_seconds=0.2) as server:
        with HoldGate(server.run_dir, "engine"):
            await server.roll(engine={"hangs_at": 1})
            loop_of(server).supervisor.health_seconds = 0.05
            grant = await server.claim()
            assert (await server.chat(grant)).status_code == 200
        died = [e["message"] for e in events(server, "worker") if e["what"] == "died"]
        assert "the engine has sampled nothing" in died[0]


async def test_the_place_of_a_client_that_fell_silent_goes_to_whoever_asks(
    server: Running,
) -> None:
    await server.roll(batch={"tasks": 1, "episodes_per_task": 2})
    lost = await server.claim(heartbeat_seconds=0.1, lease_seconds=600)
    kept = await server.claim()
    again = await server.claim()
    # Its lease holds: what it ends after all is trained.
    for grant, reward in ((lost, 0.0), (kept, 0.5), (again, 1.0)):
        assert (await server.end(grant, reward)).status_code in {200, 410}
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    ended = await server.service.store.episodes(state="ended")
    assert {e.episode_id for e in ended} == {g["episode_id"] for g in (lost, kept, again)}


async def test_what_was_given_up_outlives_a_restart(servers: ServerFactory) -> None:
    """Of the batch being filled alone: what was given up before it is not held against it."""
    sizes = {"tasks": 1, "episodes_per_task": 3}
    async with servers.running() as server:
        await server.roll(batch=sizes, failures={"max_rate": 1.0})
        for step in (1, 2):
            for reward in (0.0, 1.0):
                await server.episode("a", reward)
            if step == 1:
                await abort(server, await server.claim("a"), reason="no", final=True)
                await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        assert server.service.coordinator.step == 1
    async with servers.running() as server:
        await until_state(server, ServerState.ROLLING)
        # Two of three, and one that was given up in the batch before.
        assert server.service.coordinator.step == 1
        await abort(server, await server.claim("a"), reason="no", final=True)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 2)
        await server.episode("a", 0.0)
        await abort(server, await server.claim("a"), reason="no", final=True)
    async with servers.running() as server:
        await until_state(server, ServerState.ROLLING)
        await server.episode("a", 1.0)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 3)
        ended = await server.service.store.episodes(state="ended")
        assert len(ended) == 6


async def test_a_client_may_give_up_for_good_what_its_lease_ended(server: Running) -> None:
    await server.roll(batch={"tasks": 1, "episodes_per_task": 3})
    for reward in (0.0, 1.0):
        await server.episode("a", reward)
    lost = await server.claim("a", lease_seconds=1.0)
    server.service.episodes.open[lost["episode_id"]].seen_at -= 2.0
    server.service.episodes.open._leases.add(0.0, lost["episode_id"])
    await server.service.episodes.expire_leases()
    assert server.service.coordinator.step == 0
    said = await abort(server, lost, reason="no more", final=True)
    assert said["cause"] == "lease_expired"
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    (record,) = await server.service.store.episodes(state="aborted")
    assert record.final


async def test_one_beat_renews_many_leases_and_tells_what_is_over(server: Running) -> None:
    await server.roll()
    first, second = await server.claim("a"), await server.claim("b")
    for grant in (first, second):
        server.service.episodes.open[grant["episode_id"]].seen_at -= 300.0
    await abort(server, second, reason="enough", cause="cancelled")
    ids = [first["episode_id"], second["episode_id"], "unknown"]
    answer = await server.http.post(
        "/v1/heartbeats", headers=CLIENT, json={"episode_ids": [*ids, *ids]}
    )
    closed = answer.json()["closed"]
    assert set(closed) == set(ids[1:])
    assert "enough" in closed[second["episode_id"]]
    left = (await server.http.get(f"/v1/episodes/{ids[0]}", headers=CLIENT)).json()
    assert left["lease_expires_in"] > 500


async def test_episodes_are_counted_by_group(server: Running) -> None:
    await server.roll()
    await server.episode("a", 1.0)
    await server.claim("a")
    await abort(server, await server.claim("b", group="b@2"), reason="no")
    answer = await server.http.post(
        "/v1/groups", headers=CLIENT, json={"groups": ["a", "b@2", "never"]}
    )
    none = {"reward_mean": None, "reward_std": None}
    assert answer.json()["groups"] == {
        "a": {"open": 1, "ended": 1, "aborted": 0, "reward_mean": 1.0, "reward_std": 0.0},
        "b@2": {"open": 0, "ended": 0, "aborted": 1, **none},
        "never": {"open": 0, "ended": 0, "aborted": 0, **none},
    }


async def test_a_late_end_is_told_that_its_lease_ran_out(server: Running) -> None:
    await server.roll()
    grant = await server.claim(lease_seconds=1.0)
    server.service.episodes.open[grant["episode_id"]].seen_at -= 2.0
    server.service.episodes.open._leases.add(0.0, grant["episode_id"])
    await server.service.episodes.expire_leases()
    answer = await server.end(grant, 1.0)
    assert answer.status_code == 410
    assert "lease expired" in error_of(answer)["message"]
    counters = (await status(server))["counters"]
    assert counters["aborted_lease_expired"] == 1


async def test_a_batch_without_signal_is_trained_and_diagnosed(server: Running) -> None:
    await server.roll()
    await asyncio.gather(*(server.episode(task, 0.0) for task in "aabb"))
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    (finding,) = (await status(server))["last_step"]["findings"]
    assert "all answers are identical and all 4 rewards are 0" in finding


async def test_a_batch_without_calls_is_diagnosed(server: Running) -> None:
    await server.roll()
    for task in "aabb":
        await server.end(await server.claim(task), 1.0)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    (finding,) = (await status(server))["last_step"]["findings"]
    assert "none of the batch's 4 episodes made a model call" in finding


@pytest.mark.parametrize("stuck_seconds", [0.2])
async def test_a_server_without_clients_says_so(
    servers: ServerFactory, stuck_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_QUIET_SECONDS", 0.1)
    async with servers.running(stuck_seconds=stuck_seconds) as server:
        await server.roll()
        async for owned in server.service.events.read():
            if owned is not None and owned.event.data.get("code") == "no_client":
                assert (owned.event.type, owned.event.data["what"]) == ("finding", "begun")
                last = owned.event.id
                break
        found = (await status(server))["findings"]
        assert [(f["code"], f["stuck"]) for f in found] == [("no_client", True)]
        waiting = server.service.events.read(last)
        await server.claim()
        async for ended in waiting:
            if ended is not None and ended.event.data.get("code") == "no_client":
                assert (ended.event.type, ended.event.data["what"]) == ("finding", "ended")
                break


async def test_a_model_that_cannot_be_saved_is_not_exported_as_it_was_before(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.roll(checkpoint_every=100)
    await server.batch()

    def save(self: ScriptedTrainer, directory: Path) -> None:
        raise RuntimeError("the disk is on holiday")

    monkeypatch.setattr(ScriptedTrainer, "save", save)
    answer = await server.http.post("/v1/run/stop", headers=CONTROL)
    assert answer.status_code == 503
    assert "the disk is on holiday" in error_of(answer)["message"]
    await until_state(server, ServerState.OFFLINE)
    assert not list((server.run_dir / "export").glob("*"))


async def test_an_export_that_fails_ends_the_run_and_is_made_by_the_next(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.roll(checkpoint_every=100)
    await server.batch()
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    attempts: list[Path] = []

    def export(self: ScriptedTrainer, directory: Path) -> None:
        attempts.append(directory)
        raise RuntimeError("the disk is on holiday")

    with monkeypatch.context() as patch:
        patch.setattr(ScriptedTrainer, "export", export)
        answer = await server.http.post("/v1/run/stop", headers=CONTROL)
    assert answer.status_code == 503
    message = error_of(answer)["message"]
    assert "trainer 'scripted' of plugin 'scripted'" in message
    assert "the disk is on holiday" in message
    assert len(attempts) == 1
    await until_state(server, ServerState.OFFLINE)
    assert (await server.http.post("/v1/run/start", headers=CONTROL)).status_code == 200
    await until_state(server, ServerState.ROLLING)
    assert server.service.coordinator.step == 1
    answer = await server.http.post("/v1/run/stop", headers=CONTROL)
    assert answer.json()["export_dir"] == str(attempts[0])


async def test_answers_of_aborted_episodes_that_were_cut_off_are_counted(server: Running) -> None:
    await server.roll()
    for task, most in (("a", 1), ("b", 1), ("b", 100)):
        grant = await server.claim(task)
        assert (await server.chat(grant, max_tokens=most)).status_code == 200
        await abort(server, grant, reason="no whole answer")
    await server.batch()
    (step,) = await server.service.store.steps()
    counted = {name: step.metrics[name] for name in ("calls", "calls_cut_off")}
    assert counted == {"calls": 4, "calls_cut_off": 0}
    assert (step.metrics["calls_lost"], step.metrics["calls_lost_cut_off"]) == (3, 2)
