"""Prepare, end at the arbiter, commit: what each step promises, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from agentjet.client import EpisodeOutcome
from ajet_cli.main import cli
from ajet_core.errors import EpisodeClosedError, StateError
from ajet_core.interfaces import BatchRecord
from ajet_core.protocol import RunConfig
from ajet_server.admission.batching import BatchBuilder
from ajet_testing.servers import error_of
from tests.support.joint import ARBITER, OTHER, World, claim, part, prepared


async def test_a_joint_episode_ends_everywhere_with_a_reward_for_each(world: World) -> None:
    async with world.swarm() as swarm, swarm.episode("task") as episode:
        assert episode["planner"].base_url != episode["executor"].base_url
        await episode.end(
            {"planner": EpisodeOutcome(reward=0.5, components={"x": 1.0}), "executor": 1}
        )
    (planner,), (executor,) = [await world[role].records() for role in ("planner", "executor")]
    assert (planner.state, planner.reward, planner.components) == ("ended", 0.5, {"x": 1.0})
    assert (executor.state, executor.reward) == ("ended", 1.0)
    for server in world.servers.values():
        counters = (await server.service.status()).counters
        assert (counters["joint_ended"], counters["prepared_episodes"]) == (1, 0)
        assert counters["open_episodes"] == 0


async def test_a_joint_episode_that_fails_is_aborted_everywhere(world: World) -> None:
    async with world.swarm() as swarm:
        with pytest.raises(ValueError, match="broken"):
            async with swarm.episode("task"):
                raise ValueError("the agent is broken")
        async with swarm.episode("task"):
            pass
    for server in world.servers.values():
        first, second = await server.records()
        assert (first.state, first.cause) == ("aborted", "error")
        assert "the agent is broken" in first.reason
        assert (second.state, second.reason) == (
            "aborted",
            "the client left the episode without reporting a reward",
        )


async def test_the_arbiter_is_claimed_first_and_ended_between_prepare_and_commit(
    world: World,
) -> None:
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        await swarm.end_episode(episode, 1.0)
    steps = [line for line in world.network.seen if "/v1/episodes" in line]
    ids = {role: episode[role].episode_id for role in ("planner", "executor")}
    assert steps == [
        "executor.test POST /v1/episodes",
        "planner.test POST /v1/episodes",
        f"planner.test POST /v1/episodes/{ids['planner']}/prepare",
        f"executor.test POST /v1/episodes/{ids['executor']}/end",
        f"planner.test POST /v1/episodes/{ids['planner']}/commit",
    ]


async def test_a_part_that_is_over_takes_the_others_with_it(world: World) -> None:
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        await world[OTHER].service.episodes.drop(
            episode[OTHER].episode_id, "lease expired", "lease_expired"
        )
        with pytest.raises(EpisodeClosedError, match="lease expired"):
            await swarm.end_episode(episode, 1.0)
    assert await world.states() == {"executor": ["aborted"], "planner": ["aborted"]}


async def test_an_arbiter_that_gave_up_takes_the_prepared_parts_with_it(world: World) -> None:
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        await world[ARBITER].service.episodes.drop(
            episode[ARBITER].episode_id, "lease expired", "lease_expired"
        )
        with pytest.raises(EpisodeClosedError, match="lease expired"):
            await swarm.end_episode(episode, 1.0)
    assert await world.states() == {"executor": ["aborted"], "planner": ["aborted"]}


async def test_a_late_abort_does_not_undo_what_has_ended(world: World) -> None:
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        await swarm.end_episode(episode, 1.0)
        found = await swarm.abort_episode(episode, "too late")
    assert {role: status.state for role, status in found.items()} == {
        "executor": "ended",
        "planner": "ended",
    }


async def test_repeats_change_nothing(world: World) -> None:
    episode = await prepared(world)
    again = await world[OTHER].post(f"/v1/episodes/{episode}/prepare", {"reward": 9.0})
    assert (again.json()["state"], again.json()["reward"]) == ("prepared", 0.5)
    for _ in range(2):
        answer = await world[OTHER].post(f"/v1/episodes/{episode}/commit")
        assert (answer.json()["state"], answer.json()["reward"]) == ("ended", 0.5)
    late = await world[OTHER].post(f"/v1/episodes/{episode}/prepare", {"reward": 9.0})
    assert (late.json()["state"], late.json()["reward"]) == ("ended", 0.5)
    assert (await world[OTHER].service.store.counters())["joint_ended"] == 1


async def test_an_aborted_part_cannot_be_prepared_or_committed(world: World) -> None:
    await claim(world, ARBITER)
    episode = await claim(world, OTHER)
    await world[OTHER].post(f"/v1/episodes/{episode}/abort", {"reason": "x"})
    for step, body in (("prepare", {"reward": 1.0}), ("commit", None)):
        answer = await world[OTHER].post(f"/v1/episodes/{episode}/{step}", body)
        assert (answer.status_code, error_of(answer)["type"]) == (410, "episode_closed")


async def test_steps_out_of_order_are_refused(world: World) -> None:
    arbiters = await claim(world, ARBITER)
    episode = await claim(world, OTHER)
    refused = [
        await world[OTHER].post(f"/v1/episodes/{episode}/end", {"reward": 1.0}),
        await world[OTHER].post(f"/v1/episodes/{episode}/commit"),
        await world[ARBITER].post(f"/v1/episodes/{arbiters}/prepare", {"reward": 1.0}),
    ]
    assert [answer.status_code for answer in refused] == [409, 409, 409]
    assert await world.states() == {"executor": ["open"], "planner": ["open"]}


async def test_what_is_prepared_is_aborted_only_after_its_arbiter(world: World) -> None:
    episode = await prepared(world)
    abort = f"/v1/episodes/{episode}/abort"
    refused = await world[OTHER].post(abort, {"reason": "x"})
    assert refused.status_code == 409
    assert "the arbiter decides its outcome" in error_of(refused)["message"]
    answer = await world[OTHER].post(
        abort, {"reason": "x", "cause": "timeout", "arbiter_aborted": True}
    )
    assert (answer.json()["state"], answer.json()["cause"]) == ("aborted", "timeout")
    assert answer.json()["reward"] is None


async def test_what_is_prepared_makes_no_calls_and_has_no_lease(world: World) -> None:
    await claim(world, ARBITER)
    grant = (await world[OTHER].post("/v1/episodes", part(OTHER))).json()
    await world[OTHER].post(f"/v1/episodes/{grant['episode_id']}/prepare", {"reward": 1.0})
    key = {"authorization": f"Bearer {grant['api_key']}"}
    body = {"messages": [{"role": "user", "content": "x"}]}
    answer = await world[OTHER].post("/v1/chat/completions", body, key)
    assert answer.status_code == 410
    await world[OTHER].service.episodes.abort_all("the run was stopped", "run_stopped")
    assert await world.states() == {"executor": ["open"], "planner": ["prepared"]}


async def test_a_part_whose_last_call_failed_is_aborted(world: World) -> None:
    await claim(world, ARBITER)
    claiming = {**part(OTHER), "allow_no_calls": False}
    grant = (await world[OTHER].post("/v1/episodes", claiming)).json()
    live = world[OTHER].service.episodes.open[grant["episode_id"]]
    live.session.failed("engine_error: the engine failed")
    refused = await world[OTHER].post(
        f"/v1/episodes/{grant['episode_id']}/prepare", {"reward": 1.0}
    )
    assert refused.status_code == 410
    assert "the engine failed" in error_of(refused)["message"]
    (record,) = await world[OTHER].records()
    assert (record.state, record.cause, record.reward) == ("aborted", "call_failed", None)
    assert not list(world[OTHER].service.episodes.prepared)


async def test_what_is_prepared_holds_its_place_and_is_not_trained(world: World) -> None:
    episode = await prepared(world)
    service = world[OTHER].service
    assert service.admission.builder is not None
    assert service.admission.builder.progress().open_episodes == 1
    with pytest.raises(Exception, match="prepared, not ended"):
        await service.store.add_batch(BatchRecord("batch", 1, [episode], 1.0))
    # A run that boots again fills its batches anew.
    service.episodes.begin(BatchBuilder(RunConfig.model_validate({"model": {"path": "x"}}).batch))
    assert service.admission.builder.progress().open_episodes == 1


async def test_the_place_of_what_waits_for_long_is_given_away(world: World) -> None:
    episode = await prepared(world)
    service = world[OTHER].service
    builder = service.admission.builder
    assert builder is not None
    (found,) = service.episodes.prepared
    found.record = replace(found.record, heartbeat_seconds=0.1)
    found.since -= 1.0
    await service.episodes.expire_leases()
    assert builder.progress().open_episodes == 0
    await world[OTHER].post(f"/v1/episodes/{episode}/commit")
    assert builder.take().ended == [episode]


async def test_a_joint_episode_has_one_part_on_a_server(world: World) -> None:
    await claim(world, ARBITER)
    await claim(world, OTHER)
    again = await world[OTHER].post("/v1/episodes", part(OTHER))
    assert (again.status_code, error_of(again)["param"]) == (400, "joint")
    twin = await world[ARBITER].post("/v1/episodes", part(OTHER, joint_id="k" * 32))
    assert twin.status_code == 400
    assert "the same server" in error_of(twin)["message"]


async def test_a_server_with_another_run_is_not_taken_for_the_arbiter(world: World) -> None:
    answer = await world[ARBITER].post("/v1/episodes", part(ARBITER, arbiter_run="an older one"))
    assert (answer.status_code, error_of(answer)["type"]) == (409, "wrong_state")
    assert await world.states() == {"executor": [], "planner": []}


async def test_unequal_groups_are_refused_before_anything_is_claimed(world: World) -> None:
    await world[OTHER].stop()
    world[OTHER].run_dir = world[OTHER].run_dir.with_name("larger-groups")
    world[OTHER].size = 3
    await world[OTHER].start()
    async with world.swarm() as swarm:
        with pytest.raises(
            ValueError, match=r"episodes_per_task differs \(2 at 'executor', 3 at 'planner'\)"
        ):
            await swarm.begin_episode("task")
    assert await world.states() == {"executor": [], "planner": []}


async def test_one_server_under_two_names_is_refused(world: World) -> None:
    world.servers["planner"], kept = world.servers["executor"], world.servers["planner"]
    async with world.swarm() as swarm:
        with pytest.raises(ValueError, match="'executor' and 'planner' point to the same server"):
            await swarm.begin_episode("task")
    world.servers["planner"] = kept
    assert await world.states() == {"executor": [], "planner": []}


async def test_configurations_with_unequal_groups_are_refused_before_one_is_set(
    world: World,
) -> None:
    def config(size: int) -> RunConfig:
        batch = {"tasks": 1, "episodes_per_task": size}
        return RunConfig.model_validate({"model": {"path": "x"}, "batch": batch})

    async with world.swarm() as swarm:
        with pytest.raises(ValueError, match="episodes_per_task differs"):
            await swarm.sync_train_config({"executor": config(2), "planner": config(4)})
        with pytest.raises(ValueError, match="the roles of this swarm are executor, planner"):
            await swarm.sync_train_config({"executor": config(2)})
    assert world.network.seen == []


async def test_the_parts_of_an_episode_find_each_other_in_the_records(world: World) -> None:
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        await swarm.end_episode(episode, 1.0)
    rows = {}
    for role, server in world.servers.items():
        inspect = ["inspect", str(server.run_dir), "--json"]
        shown = await asyncio.to_thread(CliRunner().invoke, cli, inspect)
        (rows[role],) = json.loads(shown.stdout)["episodes"]
    assert {role: row["role"] for role, row in rows.items()} == {r: r for r in world.servers}
    assert {row["joint_id"] for row in rows.values()} == {episode.joint_id}


async def test_rewards_are_by_role(world: World) -> None:
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        with pytest.raises(ValueError, match="the roles of this swarm are 'executor', 'planner'"):
            await swarm.end_episode(episode, {"planner": 1.0})
        await swarm.abort_episode(episode, "x")


async def test_a_swarm_says_which_runs_are_missing(world: World) -> None:
    world[OTHER].service.coordinator._record = None
    async with world.swarm() as swarm:
        with pytest.raises(StateError, match="no run is configured"):
            await swarm.begin_episode("task")
