"""Whoever dies, and whenever: a joint episode ends the same way on all servers."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import AjetError
from tests.support.joint import ARBITER, ROLES, ClientDiedError, Network, World, make_world
from tests.support.tiers import examples

# Whole joint episodes, with a crash at each place: 40 s of CPU time together.
pytestmark = pytest.mark.slow

OTHER = "planner"
# The requests of one joint episode, in order.
STEPS = ("claim arbiter", "claim other", "prepare", "end", "commit")
OVER = {"ended", "aborted"}


def is_step(request: httpx2.Request) -> bool:
    return request.method == "POST" and request.url.path.startswith("/v1/episodes")


async def die_after(world: World, last: str) -> None:
    """A client rolls out one joint episode and dies when a step of it is done."""
    steps = iter(STEPS)

    async def fault(request: httpx2.Request) -> str:
        return "client dies" if is_step(request) and next(steps) == last else ""

    world.network.fault = fault
    with pytest.raises(ClientDiedError):
        async with world.swarm() as swarm, swarm.episode("task") as episode:
            episode.rewards = {"planner": 0.25, "executor": 0.75}
    world.network.heal()


async def resolve(world: World, by: str) -> None:
    if by == "a client":
        async with world.swarm() as swarm:
            await swarm.resolve()
    else:
        for role in ROLES:
            await world[role].service.peers.look()


@pytest.mark.parametrize("by", ["a client", "the servers"])
@pytest.mark.parametrize("restarted", [(), (ARBITER,), (OTHER,), (ARBITER, OTHER)])
@pytest.mark.parametrize("last", STEPS)
async def test_a_client_that_dies_leaves_one_outcome(
    world: World, last: str, restarted: Sequence[str], by: str
) -> None:
    await die_after(world, last)
    for role in restarted:
        await world[role].restart()
    await resolve(world, by)
    await world.expire()
    await resolve(world, by)
    outcome = "ended" if last in ("end", "commit") else "aborted"
    states = await world.states()
    assert states[ARBITER] == [outcome]
    assert states[OTHER] == ([] if last == "claim arbiter" else [outcome])
    if outcome == "ended":
        rewards = {role: (await world[role].records())[0].reward for role in ROLES}
        assert rewards == {"planner": 0.25, "executor": 0.75}


@pytest.mark.parametrize("by", ["a client", "the servers"])
@pytest.mark.parametrize("died_after", range(1, 9))
async def test_three_servers_have_one_outcome_whenever_the_client_dies(
    tmp_path: Path, died_after: int, by: str
) -> None:
    roles = ("critic", "executor", "planner")
    world = make_world(Network(), tmp_path, roles)
    for server in world.servers.values():
        await server.start()
    steps = itertools.count(1)

    async def fault(request: httpx2.Request) -> str:
        # Three claims, two parts prepared, the arbiter's end, two commits.
        return "client dies" if is_step(request) and next(steps) == died_after else ""

    world.network.fault = fault
    with pytest.raises(ClientDiedError):
        async with world.swarm() as swarm, swarm.episode("task") as episode:
            episode.rewards = {"critic": 0.0, "executor": 0.5, "planner": 1.0}
    world.network.heal()
    await world["planner"].restart()
    await world.expire()
    if by == "a client":
        async with world.swarm() as swarm:
            await swarm.resolve()
    else:
        for server in world.servers.values():
            await server.service.peers.look()
    outcome = ["ended"] if died_after >= 6 else ["aborted"]
    claimed = roles[:died_after]
    assert await world.states() == {role: outcome if role in claimed else [] for role in roles}
    for server in world.servers.values():
        await server.stop()


async def test_what_the_arbiter_has_not_decided_is_left_alone(world: World) -> None:
    await die_after(world, "prepare")
    for by in ("a client", "the servers"):
        await resolve(world, by)
    assert await world.states() == {ARBITER: ["open"], OTHER: ["prepared"]}


async def test_a_server_that_is_away_hears_later_that_the_episode_has_ended(world: World) -> None:
    async def fault(request: httpx2.Request) -> str:
        return "lost" if request.url.path.endswith("/commit") else ""

    world.network.fault = fault
    async with world.swarm() as swarm:
        episode = await swarm.begin_episode("task")
        found = await swarm.end_episode(episode, 1.0)
        assert (found[ARBITER].state, found[OTHER].state) == ("ended", "prepared")
        assert await world.states() == {ARBITER: ["ended"], OTHER: ["prepared"]}
        await world[OTHER].restart()
        world.network.heal()
        assert await swarm.resolve() == 1
    assert await world.states() == {ARBITER: ["ended"], OTHER: ["ended"]}


async def test_an_arbiter_that_is_away_keeps_the_outcome_open(world: World) -> None:
    await die_after(world, "end")
    await world[ARBITER].stop()
    await world[OTHER].service.peers.look()
    assert [record.state for record in await world[OTHER].records()] == ["prepared"]
    (part,) = world[OTHER].service.episodes.prepared
    assert part.doubt == "http://executor.test is not reachable (ConnectError)"
    await world[ARBITER].start()
    await resolve(world, "the servers")
    assert await world.states() == {ARBITER: ["ended"], OTHER: ["ended"]}


FAULTS = st.sampled_from(
    [
        *[""] * 8,
        "lost",
        "answer lost",
        "client dies",
        *(f"{what} {role}" for what in ("restart", "restart after") for role in ROLES),
        "leases expire",
        "servers resolve",
    ]
)


@settings(max_examples=examples(15), deadline=None)
@given(
    # As many as the steps of three joint episodes, and some for repeats.
    faults=st.lists(FAULTS, min_size=20, max_size=20),
    wishes=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_no_joint_episode_ends_on_one_side_only(faults: list[str], wishes: list[bool]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_interleave(Path(directory), faults, wishes))


async def _interleave(directory: Path, faults: Sequence[str], wishes: Sequence[bool]) -> None:
    world = make_world(Network(), directory)
    for server in world.servers.values():
        await server.start()
    try:
        acknowledged = await _roll_out(world, faults, wishes)
        for server in world.servers.values():
            await server.restart()
        await world.expire()
        async with world.swarm() as swarm:
            await swarm.resolve()
        outcomes: dict[str, dict[str, str]] = {}
        for role in ROLES:
            for record in await world[role].records():
                assert record.state in OVER
                assert record.joint is not None
                outcomes.setdefault(record.joint.joint_id, {})[role] = record.state
        for joint_id, found in outcomes.items():
            if "ended" in found.values():
                assert found == dict.fromkeys(ROLES, "ended")
            assert joint_id not in acknowledged or "ended" in found.values()
    finally:
        for server in world.servers.values():
            await server.stop()


async def _roll_out(world: World, faults: Sequence[str], wishes: Sequence[bool]) -> set[str]:
    """Joint episodes one after the other; those whose end was acknowledged."""
    coming = itertools.chain(faults, itertools.repeat(""))
    acknowledged: set[str] = set()

    async def fault(request: httpx2.Request) -> str:
        what = next(coming) if is_step(request) else ""
        if what.startswith("restart "):
            # Servers of this test are ended and started between two requests.
            await world[what.rpartition(" ")[2]].restart()
            return "answer lost" if "after" in what else ""
        if what == "leases expire":
            await world.expire()
        elif what == "servers resolve":
            for role in ROLES:
                await world[role].service.peers.look()
        return what if what in ("lost", "answer lost", "client dies") else ""

    for number, ends in enumerate(wishes):
        world.network.heal()
        world.network.fault = fault
        swarm = world.swarm()
        try:
            episode = await swarm.begin_episode(f"task-{number}", timeout=0.0)
            if ends:
                await swarm.end_episode(episode, 1.0)
                acknowledged.add(episode.joint_id)
            else:
                await swarm.abort_episode(episode, "not wanted")
            await swarm.resolve()
        except (AjetError, ClientDiedError):
            continue
        finally:
            world.network.fault = None
            await swarm.close()
    world.network.heal()
    return acknowledged
