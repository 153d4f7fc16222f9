"""A mixture that is changed, stopped and resumed: a real server with scripted components."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Set
from typing import Any

import pytest

from ajet_core.interfaces import RunRecord
from ajet_server.admission.admission import Admission
from ajet_testing.faults import HoldGate
from ajet_testing.servers import CLIENT, CONTROL, Running, ServerFactory, error_of

from .test_modes import batches, tags, task, until_step

pytestmark = pytest.mark.processes

PATIENT = 3600.0
HALVES: dict[str, Any] = {"ratios": {"x": 0.5, "y": 0.5}, "grace_seconds": PATIENT}


def all_of(tag: str) -> dict[str, Any]:
    return {"ratios": {tag: 1.0}, "grace_seconds": PATIENT}


async def put(server: Running, mixture: dict[str, Any]) -> dict[str, Any]:
    answer = await server.http.put("/v1/mixture", headers=CONTROL, json=mixture)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def shown(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = (await server.http.get("/v1/mixture", headers=CONTROL)).json()
    return found


async def batch_of(server: Running, step: int, *of: str) -> None:
    """Make the batch of a step, with a task of each tag."""
    for number, tag in enumerate(of):
        await task(server, f"task-{step}-{number}", tag)
    await until_step(server, step)


async def trained(server: Running) -> list[dict[str, int]]:
    return [dict(await tags(server, batch)) for batch in await batches(server)]


async def test_a_schedule_goes_on_after_a_restart(servers: ServerFactory) -> None:
    schedule = [
        {"from_step": 2, "ratios": HALVES["ratios"]},
        {"from_step": 3, "ratios": {"y": 1.0}},
    ]
    async with servers.running() as server:
        await server.roll(mixture={**all_of("x"), "schedule": schedule}, checkpoint_every=1)
        await batch_of(server, 1, "x", "x")
    async with servers.running() as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        assert (await shown(server))["step"] == 2
        await batch_of(server, 2, "x", "y")
        await batch_of(server, 3, "y", "y")
        assert await trained(server) == [{"x": 4}, {"x": 2, "y": 2}, {"y": 4}]


async def test_a_run_without_a_mixture_gets_one(server: Running) -> None:
    await server.roll()
    assert (await shown(server))["config"] is None
    await task(server, "first", "z")
    answer = await put(server, HALVES)
    assert (answer["step"], answer["tags"]) == (1, {})
    # The batch that is being filled takes any tag, as before.
    await task(server, "second", "z")
    await until_step(server, 1)
    refused = await server.http.post(
        "/v1/episodes", headers=CLIENT, json={"task_id": "t", "tag": "z"}
    )
    assert "no tag 'z'" in error_of(refused)["message"]
    await batch_of(server, 2, "x", "y")
    assert await trained(server) == [{"z": 4}, {"x": 2, "y": 2}]


async def test_a_run_goes_on_without_its_mixture(server: Running) -> None:
    await server.roll(mixture=HALVES)
    await batch_of(server, 1, "x", "y")
    stopped = await server.http.post("/v1/run/stop", headers=CONTROL)
    assert stopped.status_code == 200
    await server.roll()
    await batch_of(server, 2, "z", "x")
    assert await trained(server) == [{"x": 2, "y": 2}, {"z": 2, "x": 2}]


async def test_the_first_to_come_after_all_were_gone_waits_for_nobody(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.roll(mixture={**HALVES, "grace_seconds": 0.05})
    # Longer than the grace time: nobody is there when the first client comes.
    looks = 0

    def counted(admission: Admission) -> Set[str]:
        nonlocal looks
        looks += 1
        if looks > 3:
            server.service.board.touch()
        return waiting_tags(admission)

    waiting_tags = Admission.waiting_tags.__get__
    monkeypatch.setattr(Admission, "waiting_tags", property(counted))
    await server.service.board.wait_until(lambda: looks > 3)
    await asyncio.gather(task(server, "a", "x"), task(server, "b", "x"))
    await until_step(server, 1)
    assert await trained(server) == [{"x": 4}]


async def test_open_episodes_of_a_tag_that_is_removed_end_as_ever_and_are_not_trained(
    server: Running,
) -> None:
    await server.roll(mixture=HALVES, rollout={"mode": "sync", "spare_tasks": 2})
    late = [await server.claim("late", tag="y") for _ in range(2)]
    half = await server.claim("half", tag="y")
    await put(server, all_of("x"))
    # This batch still has its slot for y.
    await task(server, "a", "x")
    for reward, grant in enumerate(late):
        await server.chat(grant)
        assert (await server.end(grant, float(reward))).status_code == 200
    await until_step(server, 1)
    await server.chat(half)
    assert (await server.end(half, 1.0)).status_code == 200
    for step in (2, 3, 4):
        await batch_of(server, step, "x", "x")
    assert await trained(server) == [{"x": 2, "y": 2}, *[{"x": 4}] * 3]
    # It has a part in the mixture again.
    await put(server, all_of("y"))
    await batch_of(server, 5, "x", "x")
    await task(server, "whole", "y")
    other_half = await server.claim("half", tag="y")
    await server.chat(other_half)
    await server.end(other_half, 0.0)
    await until_step(server, 6)
    assert half["episode_id"] in (await batches(server))[-1].episode_ids


async def test_who_waits_for_a_tag_that_is_removed_is_sent_away(server: Running) -> None:
    await server.roll(mixture=all_of("x"))
    first = [await server.claim("first", tag="x") for _ in range(2)]
    await task(server, "second", "x")
    waiting = asyncio.create_task(
        server.http.post(
            "/v1/episodes",
            headers=CLIENT,
            json={"task_id": "third", "tag": "x", "wait_seconds": 60.0},
        )
    )
    while not server.service.admission.waiting_count:
        await asyncio.sleep(0)
    await put(server, all_of("y"))
    # The batch that is being filled may still have a slot for it.
    assert not waiting.done()
    for reward, grant in enumerate(first):
        await server.chat(grant)
        assert (await server.end(grant, float(reward))).status_code == 200
    assert "no tag 'x'" in error_of(await waiting)["message"]


async def test_a_change_while_a_step_is_trained_holds_from_the_batch_after_the_next(
    server: Running,
) -> None:
    with HoldGate(server.run_dir, "trainer"):
        await server.roll(
            mixture=all_of("x"),
            rollout={"mode": "async", "max_staleness": 2},
            trainer={"hangs_at": 1},
        )
        for name in "ab":
            await task(server, name, "x")
        while (loop := server.service.coordinator.loop) is None or loop.training_step is None:
            await shown(server)
        answer = await put(server, all_of("y"))
        assert (answer["step"], answer["config"]["ratios"]) == (2, {"y": 1.0})
        assert list(answer["tags"]) == ["x"]
        for name in "cd":
            await task(server, name, "x")
    await until_step(server, 2)
    for name in "ef":
        await task(server, name, "y")
    await until_step(server, 3)
    assert await trained(server) == [{"x": 4}, {"x": 4}, {"y": 4}]


async def test_of_two_changes_at_once_one_holds_everywhere(server: Running) -> None:
    await server.roll(mixture=HALVES)
    await asyncio.gather(*(put(server, all_of(tag)) for tag in "xyxyxy"))
    (ratios,) = {json.dumps((await shown(server))["config"]["ratios"]) for _ in range(2)}
    record = await server.service.store.get_run()
    assert record is not None
    assert json.dumps(json.loads(record.config_json)["mixture"]["ratios"]) == ratios
    (tag,) = json.loads(ratios)
    await batch_of(server, 1, "x", "y")
    assert set((await shown(server))["tags"]) == {tag}


async def test_a_pause_at_the_same_time_does_not_undo_a_change(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.roll(mixture=HALVES)
    store = server.service.store
    write, writing, goes_on = store.put_run, asyncio.Event(), asyncio.Event()

    async def slow(record: RunRecord) -> None:
        writing.set()
        await goes_on.wait()
        await write(record)

    monkeypatch.setattr(store, "put_run", slow)
    change = asyncio.create_task(put(server, all_of("x")))
    await writing.wait()
    pause = asyncio.create_task(server.service.coordinator.pause("a look"))
    # It has begun, and waits for the other or writes what the other does not know of.
    await asyncio.sleep(0)
    goes_on.set()
    await asyncio.gather(change, pause)
    record = await store.get_run()
    assert record is not None
    assert (record.paused, json.loads(record.config_json)["mixture"]["ratios"]) == (
        "a look",
        {"x": 1.0},
    )


async def test_as_many_tags_as_there_may_be(server: Running) -> None:
    many = {f"tag-{n:03}": 1 / 256 for n in range(256)}
    await server.roll(mixture={"ratios": many, "grace_seconds": PATIENT})
    for step in (1, 2):
        slots = {tag: now["slots"] for tag, now in (await shown(server))["tags"].items()}
        assert len(slots) == 256
        chosen = [tag for tag, count in slots.items() if count]
        # What was rounded off in the first batch comes in the second.
        assert chosen == [f"tag-{n:03}" for n in (2 * step - 2, 2 * step - 1)]
        await batch_of(server, step, *chosen)
    too_many = {"ratios": {str(n): 1 / 257 for n in range(257)}}
    answer = await server.http.put("/v1/mixture", headers=CONTROL, json=too_many)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "ratios"


async def test_a_change_while_nothing_is_filled_holds_from_the_next_batch(server: Running) -> None:
    with HoldGate(server.run_dir, "trainer") as gate:
        await server.roll(trainer={"hangs_at": 1}, rollout={"mode": "sync", "spare_tasks": 1})
        # It was begun before there was a mixture, and is of a tag that this has.
        half = await server.claim("half", tag="y")
        for name in "ab":
            await task(server, name, "z")
        while (loop := server.service.coordinator.loop) is None or loop.training_step is None:
            await shown(server)
        answer = await put(server, all_of("y"))
        assert (answer["step"], list(answer["tags"])) == (2, ["y"])
        gate.release()
        await until_step(server, 1)
    for reward, grant in enumerate([half, await server.claim("half", tag="y")]):
        await server.chat(grant)
        assert (await server.end(grant, float(reward))).status_code == 200
    await task(server, "c", "y")
    await until_step(server, 2)
    assert await trained(server) == [{"z": 4}, {"y": 4}]


@pytest.mark.parametrize("by", ["a change", "the schedule"])
async def test_who_waits_for_a_later_mixture_does_not_wait_for_those_who_are_gone(
    server: Running, by: str
) -> None:
    later = {"ratios": {"y": 1.0}, "grace_seconds": PATIENT}
    now: dict[str, Any] = {"ratios": HALVES["ratios"] | {"y": 0.0, "w": 0.5}, "grace_seconds": 0.05}
    if by == "the schedule":
        now["schedule"] = [{"from_step": 7, "ratios": later["ratios"]}]
    await server.roll(mixture=now)
    # Its clients go away, and with them those of w, in the middle of the batch.
    await task(server, "a", "x")
    if by == "a change":
        await put(server, later)
    await task(server, "b", "y")
    await until_step(server, 1)
    # What was ready is trained, and counts for its slots.
    assert await trained(server) == [{"x": 2, "y": 2}]
