"""Tenants: nobody sees, ends or asks for parts that another token claimed."""

from __future__ import annotations

from ajet_core.protocol import TokenRequest
from ajet_testing.servers import error_of
from tests.support.joint import ARBITER, JOINT_ID, World, prepared

OTHER = "planner"


async def bob(world: World, role: str) -> dict[str, str]:
    grant = await world[role].service.issue_token(TokenRequest(name="bob"))
    return {"authorization": f"Bearer {grant.token}"}


async def test_prepared_parts_are_listed_for_who_claimed_them(world: World) -> None:
    episode = await prepared(world)
    (part,) = (await world[OTHER].get("/v1/joint")).json()["prepared"]
    assert (part["episode_id"], part["joint_id"], part["arbiter"]) == (episode, JOINT_ID, ARBITER)
    others = await world[OTHER].get("/v1/joint", await bob(world, OTHER))
    assert others.json() == {"prepared": []}


async def test_a_part_of_another_token_is_not_there(world: World) -> None:
    episode = await prepared(world)
    stranger = await bob(world, OTHER)
    for step, body in (
        ("prepare", {"reward": 1.0}),
        ("commit", None),
        ("abort", {"reason": "x", "arbiter_aborted": True}),
    ):
        answer = await world[OTHER].post(f"/v1/episodes/{episode}/{step}", body, stranger)
        assert (answer.status_code, error_of(answer)["type"]) == (404, "episode_not_found")
    assert (await world[OTHER].records())[0].state == "prepared"


async def test_an_outcome_is_one_word_for_who_knows_the_id(world: World) -> None:
    await prepared(world)
    body = {"joint_ids": [JOINT_ID, "n" * 32]}
    answer = await world[ARBITER].post("/v1/joint/outcomes", body, await bob(world, ARBITER))
    assert answer.json() == {
        "run_id": f"run-of-{ARBITER}",
        "outcomes": {JOINT_ID: "open", "n" * 32: "unknown"},
    }


async def test_a_server_that_is_no_arbiter_of_it_knows_nothing(world: World) -> None:
    await prepared(world)
    answer = await world[OTHER].post("/v1/joint/outcomes", {"joint_ids": [JOINT_ID]})
    assert answer.json()["outcomes"] == {JOINT_ID: "unknown"}


async def test_what_is_prepared_counts_against_the_quota_and_outlives_its_token(
    world: World,
) -> None:
    episode = await prepared(world)
    service = world[OTHER].service
    assert service.tenants._open["client"] == 1
    await world[OTHER].restart()
    service = world[OTHER].service
    assert service.tenants._open["client"] == 1
    await service.episodes.abort_all("its token is dead", "token_revoked", "client")
    await world[OTHER].post(f"/v1/episodes/{episode}/commit")
    assert (await world[OTHER].records())[0].state == "ended"
    assert service.tenants._open["client"] == 0


async def test_a_joint_id_is_in_no_event_and_in_no_status(world: World) -> None:
    await prepared(world)
    for server in world.servers.values():
        service = server.service
        told = (
            "".join(owned.event.model_dump_json() for owned in service.events._events)
            + (await service.status()).model_dump_json()
        )
        assert JOINT_ID not in told
