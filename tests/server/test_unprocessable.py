"""Batches that the server cannot process, on real sockets and worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ajet_core.interfaces import ComponentSettings, Merger, WorkerContext
from ajet_core.protocol import ServerState
from ajet_core.timeline import Call, TokenTree
from ajet_server.run.step_book import StepBook
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Headers,
    Running,
    ServerFactory,
    error_of,
    key,
    new_token,
)
from tests.support.runs import events, finish_batch, loop_of, status, until_state

pytestmark = pytest.mark.processes

POISON = "poison"


class Picky(Merger):
    """The merger of the run, which cannot merge what a poisonous agent said."""

    def __init__(self, merger: Merger, server: Running) -> None:
        super().__init__(ComponentSettings(), WorkerContext(run_dir=server.run_dir, seed=0))
        self._merger = merger

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge, unless an agent is poisonous."""
        if any(call.agent == POISON for call in calls):
            raise RecursionError("too deep to merge")
        return self._merger.merge(episode_id, calls)


def make_picky(server: Running) -> None:
    loop = loop_of(server)
    loop.run = replace(loop.run, merger=Picky(loop.run.merger, server))


async def episode(
    server: Running, headers: Headers, task: str, reward: float, agent: str = ""
) -> dict[str, Any]:
    """A whole episode of a tenant, with one call of an agent."""
    body = {"task_id": task, "wait_seconds": 30.0}
    grant = (await server.http.post("/v1/episodes", headers=headers, json=body)).json()
    await server.http.post(
        "/v1/chat/completions",
        headers={**key(grant), "x-ajet-agent": agent},
        json={"model": "any", "messages": [{"role": "user", "content": f"hello {task}"}]},
    )
    ended = await server.http.post(
        f"/v1/episodes/{grant['episode_id']}/end", headers=headers, json={"reward": reward}
    )
    assert ended.status_code == 200, ended.text
    found: dict[str, Any] = grant
    return found


async def poisoned_batch(server: Running, agents: Sequence[str] = (POISON, "")) -> None:
    """A whole batch: a task without and one with poison."""
    await asyncio.gather(
        *(episode(server, CLIENT, "a", reward) for reward in (0.0, 1.0)),
        *(episode(server, CLIENT, "b", float(i), agent) for i, agent in enumerate(agents)),
    )


async def test_an_episode_that_cannot_be_processed_costs_nobody_else_anything(
    server: Running,
) -> None:
    await server.roll()
    make_picky(server)
    mallory, headers = await new_token(server, "mallory")
    good = [episode(server, CLIENT, "a", reward) for reward in (0.0, 1.0)]
    bad = [episode(server, headers, "a", float(i), agent) for i, agent in enumerate((POISON, ""))]
    grants = await asyncio.gather(*good, *bad)
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    store = server.service.store
    (quarantined,) = await store.batches(after_step=0, refused=True)
    assert quarantined.episode_ids == [grants[2]["episode_id"]]
    assert "RecursionError: too deep to merge" in quarantined.refused
    assert f"1 of client {mallory}" in quarantined.refused
    assert [bool(await store.scores(grant["episode_id"])) for grant in grants] == [
        True,
        True,
        False,
        True,
    ]
    (told,) = events(server, "refused")
    assert (told["reason"], told["episodes"]) == (quarantined.refused, 1)
    assert loop_of(server).rollouts.paused == ""
    await server.batch()


async def test_an_episode_whose_record_is_damaged_is_quarantined_alone(server: Running) -> None:
    await server.roll()
    damaged = await server.episode("b", 0.0)
    with contextlib.closing(sqlite3.connect(server.run_dir / "samples.sqlite3")) as database:
        database.execute(
            "UPDATE episodes SET metadata = '{' WHERE episode_id = ?", (damaged["episode_id"],)
        )
        database.commit()
    await asyncio.gather(*(server.episode("a", r) for r in (0.0, 1.0)), server.episode("b", 1.0))
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    (quarantined,) = await server.service.store.batches(after_step=0, refused=True)
    assert quarantined.episode_ids == [damaged["episode_id"]]
    assert "contains a record that cannot be read" in quarantined.refused


async def test_batches_of_nothing_that_can_be_processed_pause_the_run_and_outlive_a_restart(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(batch={"tasks": 1, "episodes_per_task": 2}, checkpoint_every=1)
        make_picky(server)
        for number in range(3):
            await asyncio.gather(
                *(episode(server, CLIENT, f"t{number}", r, POISON) for r in (0.0, 1.0))
            )
            await server.service.board.wait_until(
                lambda n=number: len(events(server, "refused")) > n  # type: ignore[misc]
            )
        await until_state(server, ServerState.PAUSED)
        paused = (await status(server))["paused"]
        assert "3 batches in a row could not be trained" in paused
        assert "RecursionError: too deep to merge (episodes: 2 of client client)" in paused
        await server.http.post("/v1/run/resume", headers=CONTROL)
    async with servers.running() as server:
        await until_state(server, ServerState.ROLLING)
        store = server.service.store
        assert await store.batches(after_step=0) == []
        assert len(await store.batches(after_step=0, refused=True)) == 3
        assert server.service.coordinator.error is None


async def test_what_was_left_out_of_a_batch_is_not_trained_after_a_restart(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=100)
        make_picky(server)
        await poisoned_batch(server)
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    # The step is trained again, from the start, by a server whose merger would take anything.
    async with servers.running() as server:
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        (batch,) = await server.service.store.batches(after_step=0)
        assert len(batch.episode_ids) == 3


async def test_a_step_that_fails_after_training_is_trained_again_and_then_quarantined(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 3
    enter = StepBook.enter

    async def fails_at_first(self: StepBook, *arguments: Any) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise KeyError("a defect")
        await enter(self, *arguments)

    monkeypatch.setattr(StepBook, "enter", fails_at_first)
    await server.roll()
    await finish_batch(server)
    await server.service.board.wait_until(lambda: bool(events(server, "refused")))
    await until_state(server, ServerState.ROLLING)
    (kept,) = await server.service.store.batches(after_step=0, refused=True)
    assert "step 1 failed: KeyError: 'a defect'" in kept.refused
    await server.batch()
    assert server.service.coordinator.step == 1


TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("reward", {"reward": 1e308}),
    ("reward", {"reward": -1000001}),
    ("components", {"reward": 0, "components": {"length": -1e7}}),
    ("call_rewards", {"reward": 0, "call_rewards": {"any": 1e300}}),
    ("agent_rewards", {"reward": 0, "agent_rewards": {"any": 1e300}}),
]


async def test_rewards_too_large_to_add_up_are_refused(server: Running) -> None:
    await server.roll()
    for kind in ("train", "eval"):
        grant = await server.claim(kind, kind=kind)
        url = f"/v1/episodes/{grant['episode_id']}/end"
        for param, body in TOO_LARGE:
            refused = await server.http.post(url, headers=CLIENT, json=body)
            assert refused.status_code == 400
            error = error_of(refused)
            assert error["param"] == param
            assert "but must be from -1e+06 to 1e+06" in error["message"]
            assert "(setting server.max_reward)" in error["message"]
        assert (await server.end(grant, 1e6)).status_code == 200


async def test_a_prepared_part_has_no_larger_rewards_either(servers: ServerFactory) -> None:
    async with servers.running(max_reward=10) as server:
        await server.roll()
        joint = {"joint_id": "j" * 32, "role": "b", "arbiter": "a", "arbiter_run": "another"}
        grant = await server.claim(joint=joint)
        url = f"/v1/episodes/{grant['episode_id']}/prepare"
        refused = await server.http.post(url, headers=CLIENT, json={"reward": 11})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "reward")
        assert (await server.http.post(url, headers=CLIENT, json={"reward": 10})).is_success


async def test_huge_rewards_of_an_older_store_stop_neither_a_run_nor_its_status(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll()
        server.service.settings.server.__dict__["max_reward"] = 1.7e308
        await asyncio.gather(*(server.episode("a", 1.7e308) for _ in range(2)))
        for _ in range(2):
            await server.end(await server.claim("e", kind="eval", tag="set"), -1.7e308)
    # The evaluations are counted by a query, the batch is trained with its summary.
    async with servers.running() as server:
        await until_state(server, ServerState.ROLLING)
        (evaluation,) = (await status(server))["evaluations"]
        assert evaluation["reward_mean"] < -1e289
        await asyncio.gather(*(server.episode("b", reward) for reward in (0.0, 1.0)))
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        assert (await status(server))["error"] is None
