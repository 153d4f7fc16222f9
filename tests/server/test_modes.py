"""Schedules of rolling out and training, on a real server with scripted components."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec
from typing import Any

import pytest

from ajet_core.interfaces import BatchRecord
from ajet_core.protocol import ServerState
from ajet_server.run.run_workers import RunWorkers
from ajet_testing.faults import HoldGate
from ajet_testing.scripted_engine import ASLEEP
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory, error_of, key

pytestmark = pytest.mark.processes

ASYNC = {"mode": "async", "max_staleness": 2, "max_mean_staleness": 2}
ONE = {"tasks": 1, "episodes_per_task": 2}
HALVES = {"ratios": {"x": 0.5, "y": 0.5}, "grace_seconds": 3600.0}


async def task(server: Running, name: str, tag: str = "") -> list[dict[str, Any]]:
    """Both episodes of a task, with a call each."""
    grants = [await server.claim(name, tag=tag) for _ in range(2)]
    for reward, grant in enumerate(grants):
        assert (await server.chat(grant, f"hello {name}")).status_code == 200
        assert (await server.end(grant, float(reward))).status_code == 200
    return grants


async def until_step(server: Running, step: int) -> None:
    coordinator = server.service.coordinator
    await server.service.board.wait_until(
        lambda: coordinator.step >= step or not coordinator.running
    )
    assert coordinator.error is None


async def batches(server: Running) -> list[BatchRecord]:
    return await server.service.store.batches(after_step=0)


def count_looks(server: Running) -> Callable[[int], Awaitable[None]]:
    """Have a run check its engine often; the function waits for so many more whole checks."""
    loop = server.service.coordinator.loop
    assert loop is not None
    loop.supervisor.health_seconds = 0.01
    done, look = 0, loop.supervisor._check_engine

    async def counted(workers: RunWorkers) -> None:
        nonlocal done
        await look(workers)
        done += 1
        server.service.board.touch()

    loop.supervisor._check_engine = counted  # type: ignore[method-assign]

    async def wait(more: int) -> None:
        after = done + more
        await server.service.board.wait_until(lambda: done >= after)

    return wait


async def tags(server: Running, batch: BatchRecord) -> Counter[str]:
    found: Counter[str] = Counter()
    for episode_id in batch.episode_ids:
        record = await server.service.store.get_episode(episode_id)
        assert record is not None
        found[record.tag] += 1
    return found


@contextlib.asynccontextmanager
async def held_step(server: Running, **config: Any) -> AsyncIterator[HoldGate]:
    """A run whose first step goes on for as long as the gate is shut."""
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(rollout=ASYNC, trainer={"hangs_at": 1}, **config)
        for name in "ab":
            await task(server, name)
        yield gate


async def test_rollouts_go_on_while_a_step_is_trained_as_far_as_their_tokens_may_be_old(
    server: Running,
) -> None:
    async with held_step(server) as gate:
        # Two batches more: their tokens are one and two steps old when they are trained.
        for name in "cdef":
            await task(server, name)
        status = (await server.http.get("/v1/status", headers=CONTROL)).json()
        assert (status["state"], status["step"]) == ("ROLLING", 0)
        assert status["rollout"]["training_step"] == 1
        late = await server.http.post(
            "/v1/episodes", headers=CLIENT, json={"task_id": "g", "wait_seconds": 0.0}
        )
        assert late.status_code == 503
        claim = asyncio.create_task(server.claim("g"))
        gate.release()
        await until_step(server, 3)
        assert (await claim)["task_id"] == "g"
    steps = await server.service.store.steps()
    assert [step.metrics["staleness_max"] for step in steps] == [0.0, 1.0, 2.0]
    assert [step.metrics["tokens_stale"] for step in steps] == [0.0, 0.0, 0.0]
    assert [len(batch.episode_ids) for batch in await batches(server)] == [4, 4, 4]


@pytest.mark.parametrize(("mode", "importance"), [("sync", "ratio"), ("async", "truncated")])
async def test_the_trainer_is_given_the_importance_that_the_mode_needs(
    server: Running, mode: str, importance: str
) -> None:
    await server.roll(rollout={"mode": mode})
    loop = server.service.coordinator.loop
    assert loop is not None
    plan = loop.run.boot_plan(server.run_dir, engine=False, trainer=True, checkpoint=None)
    assert plan.algorithm.importance == importance


async def test_a_call_goes_on_through_new_weights_and_knows_which_sampled_what(
    server: Running,
) -> None:
    async with held_step(server, engine={"reply_length": 400, "chunk_tokens": 1}) as gate:
        grant = await server.claim("c")
        gate.release()
        stream = server.http.stream(
            "POST",
            "/v1/chat/completions",
            headers=key(grant),
            json={"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True},
        )
        async with stream as answer:
            assert answer.status_code == 200
            async for _ in answer.aiter_lines():
                pass
        await until_step(server, 1)
        (call,) = (await server.service.store.calls([grant["episode_id"]]))[grant["episode_id"]]
    assert set(call.policy_versions) <= {0, 1}
    assert call.policy_versions == sorted(call.policy_versions)
    assert len(call.sampled_ids) == 401


async def test_whoever_waits_for_a_complete_task_begins_it_anew_once_a_batch_has_it(
    server: Running,
) -> None:
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(rollout=ASYNC, trainer={"hangs_at": 2})
        for name in "ab":
            await task(server, name)
        await until_step(server, 1)
        await task(server, "c")
        again = asyncio.create_task(server.claim("c"))
        while server.service.admission.waiting_count == 0:
            await asyncio.sleep(0)
        last = await server.claim("d"), await server.claim("d")
        for grant in last:
            await server.end(grant, 1.0)
        # Nothing else happens, and the second step is not over.
        assert (await again)["task_id"] == "c"
        assert server.service.coordinator.step == 1
        gate.release()


@pytest.mark.usefixtures("worker_processes")
async def test_after_a_crash_lost_steps_come_before_new_episodes(server: Running) -> None:
    trainer = {"dies_at": 2, "hangs_at": 2}
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(rollout=ASYNC, trainer=trainer, checkpoint_every=100)
        open_ = await server.claim("open")
        for name in "abcd":
            await task(server, name)
        board = server.service.board
        await board.wait_until(lambda: board.state is ServerState.BOOTING)
        # The first step is trained again, and the second hangs this time.
        await board.wait_until(lambda: board.state is ServerState.ROLLING_POST)
        await until_step(server, 1)
        refused = await server.http.post(
            "/v1/episodes", headers=CLIENT, json={"task_id": "e", "wait_seconds": 0.0}
        )
        assert refused.status_code == 503
        # What is open goes on.
        assert (await server.chat(open_)).status_code == 200
        gate.release()
        assert (await server.claim("e"))["policy_version"] == 2
        assert board.state is ServerState.ROLLING
    assert [len(batch.episode_ids) for batch in await batches(server)] == [4, 4]


@pytest.mark.usefixtures("worker_processes")
async def test_an_engine_that_dies_during_a_step_is_replaced_and_not_counted_against_the_batch(
    server: Running,
) -> None:
    async with held_step(server, failures={"max_deaths": 1}) as gate:
        loop = server.service.coordinator.loop
        assert loop is not None
        # Nobody looks after the workers: their deaths tell themselves.
        loop.supervisor.health_seconds = 3600.0
        grant = await server.claim("c")
        while not (server.run_dir / "scripted-trainer.hung").exists():
            await asyncio.sleep(0)
        os.kill(loop.supervisor.workers.engine_process.pid, signal.SIGKILL)
        # The step hangs no more: its trainer was replaced with the engine.
        await until_step(server, 1)
        assert (await server.chat(grant)).status_code == 200
        gate.release()
    assert not await server.service.store.batches(after_step=0, refused=True)
    assert [len(batch.episode_ids) for batch in await batches(server)] == [4]


async def test_a_pause_in_async_mode_is_seen_at_once_and_keeps_what_is_full(
    server: Running,
) -> None:
    async with held_step(server) as gate:
        await server.http.post("/v1/run/pause", headers=CONTROL)
        assert server.service.board.state is ServerState.PAUSED
        gate.release()
        await until_step(server, 1)
        assert server.service.board.state is ServerState.PAUSED
        await server.http.post("/v1/run/resume", headers=CONTROL)
        assert server.service.board.state is ServerState.ROLLING
        await task(server, "c"), await task(server, "d")
        await until_step(server, 2)


async def test_what_would_be_too_old_is_dropped_if_that_is_the_policy(server: Running) -> None:
    rollout = {"mode": "async", "max_staleness": 1, "late": "drop"}
    await server.roll(rollout=rollout)
    old = await server.claim("old")
    for step in range(2):
        for name in "ab":
            await task(server, f"{name}{step}")
        await until_step(server, step + 1)
    dropped = await server.chat(old)
    assert dropped.status_code == 410
    assert "more than 1 steps older than those that step 3" in error_of(dropped)["message"]
    counters = (await server.http.get("/v1/status", headers=CONTROL)).json()["counters"]
    assert counters["aborted_late"] == 1


async def test_a_batch_waits_for_a_slow_task_that_would_be_too_old_for_the_next_one(
    server: Running,
) -> None:
    rollout = {"mode": "async", "max_staleness": 1}
    await server.roll(rollout=rollout, batch=ONE)
    slow = [await server.claim("slow"), await server.claim("slow")]
    await server.chat(slow[0])
    await server.end(slow[0], 0.0)
    # A quick task may overtake it, but a second one may not.
    await task(server, "quick1")
    await until_step(server, 1)
    await task(server, "quick2")
    status = (await server.http.get("/v1/status", headers=CONTROL)).json()
    assert (status["step"], status["batch"]["ready"]) == (1, 1)
    await server.chat(slow[1])
    await server.end(slow[1], 1.0)
    await until_step(server, 3)
    made = await batches(server)
    assert made[1].episode_ids == [grant["episode_id"] for grant in slow]
    steps = [step.metrics for step in await server.service.store.steps()]
    assert [step["staleness_max"] for step in steps] == [0.0, 1.0, 1.0]
    assert [step["episodes_stale"] for step in steps] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("full_by", ["tasks", "episodes"])
async def test_an_episode_that_never_ends_holds_nobody_up_for_longer_than_late_seconds(
    server: Running, full_by: str
) -> None:
    rollout = {"mode": "async", "max_staleness": 1, "late_seconds": 0.05}
    size = {**ONE, "full_by": full_by}
    await server.roll(rollout=rollout, batch=size)
    # A look at the engine does not begin the time anew.
    count_looks(server)
    slow = [await server.claim("slow"), await server.claim("slow")]
    await server.chat(slow[0])
    await server.end(slow[0], 0.0)
    for step in range(3):
        await task(server, f"quick{step}")
        await until_step(server, step + 1)
    dropped = await server.chat(slow[1])
    assert dropped.status_code == 410
    assert "setting rollout.late_seconds" in error_of(dropped)["message"]
    counters = (await server.http.get("/v1/status", headers=CONTROL)).json()["counters"]
    assert counters["aborted_late"] == 1
    # What had ended of the task is trained.
    trained = [episode_id for batch in await batches(server) for episode_id in batch.episode_ids]
    assert slow[0]["episode_id"] in trained


async def test_a_batch_that_waits_for_a_late_task_says_whose_it_is_and_outlasts_looks_at_the_engine(
    server: Running,
) -> None:
    await server.roll(rollout={"mode": "async", "max_staleness": 1}, batch=ONE)
    looks = count_looks(server)
    slow = [await server.claim("slow"), await server.claim("slow")]
    for name in ("quick0", "quick1"):
        await task(server, name)
    await until_step(server, 1)
    # Calls do not hide it.
    await server.chat(slow[0])
    await looks(3)
    status = (await server.http.get("/v1/status", headers=CONTROL)).json()
    # A busy machine may have findings of its own.
    (found,) = [one for one in status["findings"] if one["code"] == "waiting_for_late"]
    assert status["step"] == 1
    assert "waits for task 'slow' of client client (episode" in found["message"]
    assert "begun 1 steps ago" in found["message"]
    for reward, grant in enumerate(slow):
        await server.chat(grant)
        await server.end(grant, float(reward))
    await until_step(server, 3)
    status = (await server.http.get("/v1/status", headers=CONTROL)).json()
    assert "waiting_for_late" not in {one["code"] for one in status["findings"]}
    assert status["counters"]["aborted_late"] == 0


async def test_a_spare_task_is_carried_over_whole_and_trained_with_all_its_episodes(
    server: Running,
) -> None:
    await server.roll(rollout={"spare_tasks": 1, "max_staleness": 1})
    slow = [await server.claim("slow"), await server.claim("slow")]
    await server.chat(slow[0])
    await server.end(slow[0], 0.0)
    await task(server, "a"), await task(server, "b")
    await until_step(server, 1)
    for name in "cd":
        await task(server, name)
    assert server.service.coordinator.step == 1
    await server.chat(slow[1])
    await server.end(slow[1], 1.0)
    await until_step(server, 2)
    first, second = await batches(server)
    theirs = {grant["episode_id"] for grant in slow}
    assert not theirs & set(first.episode_ids)
    assert theirs <= set(second.episode_ids)
    metrics = (await server.service.store.steps())[-1].metrics
    assert (metrics["staleness_max"], metrics["episodes_stale"]) == (1.0, 0.0)


async def test_a_batch_is_made_without_late_tasks_that_are_spare(server: Running) -> None:
    await server.roll(rollout={"spare_tasks": 1, "late": "drop"})
    late = await server.claim("late")
    await task(server, "a"), await task(server, "b")
    await until_step(server, 1)
    answer = await server.chat(late)
    assert answer.status_code == 410
    assert "the batch of step 1 was trained without it" in error_of(answer)["message"]
    (batch,) = await batches(server)
    assert len(batch.episode_ids) == 4


async def test_a_full_batch_gives_the_late_ones_time_to_end(server: Running) -> None:
    await server.roll(rollout={"spare_tasks": 1, "drain_seconds": 3600.0})
    looks = count_looks(server)
    late = await server.claim("late")
    await task(server, "a"), await task(server, "b")
    refused = await server.http.post(
        "/v1/episodes", headers=CLIENT, json={"task_id": "late", "wait_seconds": 0.0}
    )
    assert refused.status_code == 503
    await looks(3)
    assert server.service.coordinator.step == 0
    await server.chat(late)
    await server.end(late, 1.0)
    await until_step(server, 1)
    (batch,) = await batches(server)
    assert late["episode_id"] in batch.episode_ids


async def test_what_has_not_ended_when_its_time_is_over_is_carried_over(server: Running) -> None:
    await server.roll(rollout={"spare_tasks": 1, "drain_seconds": 0.05})
    late = await server.claim("late")
    await task(server, "a"), await task(server, "b")
    await until_step(server, 1)
    assert (await server.chat(late)).status_code == 200
    await server.end(late, 1.0)
    (batch,) = await batches(server)
    assert late["episode_id"] not in batch.episode_ids


async def test_batches_have_the_mixture_and_a_change_holds_from_the_next_one_on(
    server: Running,
) -> None:
    await server.roll(mixture=HALVES)
    await task(server, "a", "x")
    claim = asyncio.create_task(server.claim("b", tag="x"))
    changed = await server.http.put(
        "/v1/mixture", headers=CONTROL, json={"ratios": {"x": 1.0}, "grace_seconds": 3600.0}
    )
    assert changed.status_code == 200
    assert changed.json()["tags"]["y"]["slots"] == 1
    assert not claim.done()
    await task(server, "c", "y")
    await until_step(server, 1)
    first = await claim
    assert first["policy_version"] == 1
    second = await server.claim("b", tag="x")
    for reward, grant in enumerate((first, second)):
        await server.chat(grant)
        await server.end(grant, float(reward))
    await task(server, "d", "x")
    await until_step(server, 2)
    found = await batches(server)
    assert [await tags(server, batch) for batch in found] == [{"x": 2, "y": 2}, {"x": 4}]
    metrics = (await server.service.store.steps())[0].metrics
    assert (metrics["tasks/x"], metrics["episodes/y"], metrics["reward_mean/y"]) == (1, 2, 0.5)


async def test_an_episode_of_a_tag_that_is_not_in_the_mixture_is_refused(server: Running) -> None:
    await server.roll(mixture=HALVES)
    answer = await server.http.post("/v1/episodes", headers=CLIENT, json={"task_id": "a"})
    assert answer.status_code == 409
    assert "no tag '', only 'x', 'y'" in error_of(answer)["message"]
    evaluation = await server.claim("a", kind="eval", tag="held-out")
    assert evaluation["kind"] == "eval"


async def test_a_tag_without_clients_holds_nobody_up_after_its_grace_time(server: Running) -> None:
    await server.roll(mixture={**HALVES, "grace_seconds": 0.2})
    first = asyncio.create_task(task(server, "a", "x"))
    second = asyncio.create_task(task(server, "b", "x"))
    await asyncio.gather(first, second)
    await until_step(server, 1)
    (batch,) = await batches(server)
    assert await tags(server, batch) == {"x": 4}


async def test_the_mixture_and_what_it_owes_survive_a_restart(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll(mixture={"ratios": {"x": 1.0}, "grace_seconds": 3600.0}, batch=ONE)
        answer = await server.http.put("/v1/mixture", headers=CONTROL, json=HALVES)
        assert answer.status_code == 200
        for step, tag in enumerate("xx"):
            await task(server, f"a{step}", tag)
            await until_step(server, step + 1)
    async with servers.running() as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        found = (await server.http.get("/v1/mixture", headers=CONTROL)).json()
        assert found["config"]["ratios"] == HALVES["ratios"]
        # x had the one place of the batch before.
        assert {tag: now["slots"] for tag, now in found["tags"].items()} == {"x": 0, "y": 1}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"mixture": {"ratios": {"x": 0.5}}}, "mixture: ratios must sum to 1"),
        ({"rollout": {"mode": "async", "max_staleness": 0}}, "at least 1"),
        ({"rollout": {"mode": "sometimes"}}, "'sync' or 'async'"),
    ],
)
async def test_what_is_impossible_is_refused_before_anything_starts(
    server: Running, config: dict[str, Any], told: str
) -> None:
    answer = await server.put_run(**config)
    assert answer.status_code == 400
    assert told in error_of(answer)["message"]


async def test_only_control_changes_the_mixture_and_a_client_sees_no_progress(
    server: Running,
) -> None:
    assert (await server.http.get("/v1/mixture", headers=CLIENT)).status_code == 409
    await server.roll(mixture=HALVES)
    assert (await server.http.put("/v1/mixture", headers=CLIENT, json=HALVES)).status_code == 403
    seen = (await server.http.get("/v1/mixture", headers=CLIENT)).json()
    assert (seen["config"]["ratios"], seen["tags"]) == (HALVES["ratios"], {})


@pytest.mark.parametrize("fault", ["hangs_at", "refuses_at"])
async def test_an_engine_sleeps_while_a_step_is_trained_and_answers_afterwards(
    server: Running, fault: str
) -> None:
    asleep = server.run_dir / ASLEEP
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(rollout={"engine_sleeps": True}, trainer={fault: 1})
        assert not asleep.exists()
        for name in "ab":
            await task(server, name)
        if fault == "hangs_at":
            status = {"step": 0}
            while not asleep.exists():
                status = (await server.http.get("/v1/status", headers=CONTROL)).json()
            assert status["step"] == 0
        gate.release()
        # After a step, and after one that was refused, the next batch is rolled out.
        for name in "cd":
            await task(server, name)
        await until_step(server, 1)
        assert not asleep.exists()


@pytest.mark.parametrize(
    "body",
    [
        {"rollout": {"engine_sleeps": True, "mode": "async"}},
        pytest.param(
            {"rollout": {"engine_sleeps": True}, "engine": {"name": "vllm"}},
            marks=pytest.mark.skipif(find_spec("ajet_engine_vllm") is None, reason="no vllm"),
        ),
        pytest.param(
            {"rollout": {"engine_sleeps": True}, "engine": {"name": "torch"}},
            marks=pytest.mark.torch,
        ),
    ],
)
async def test_only_an_engine_that_can_sleep_is_asked_to(
    server: Running, body: dict[str, Any]
) -> None:
    answer = await server.http.put("/v1/run", headers=CONTROL, json={**server.config(), **body})
    assert answer.status_code in {400, 422}
    assert "engine_sleeps" in answer.text
