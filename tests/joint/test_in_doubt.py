"""Whom a server asks what is in doubt, what it believes, and what it shows meanwhile."""

from __future__ import annotations

import json

import httpx2
import pytest
from pydantic import SecretStr

from ajet_core.errors import ConfigError
from ajet_core.protocol import ServerState
from ajet_installation.settings import PeerSettings, Settings
from ajet_server.episodes.joint_peers import JointPeers
from ajet_server.observe.watchdog import DoubtView, ServerView, diagnose
from tests.support.joint import ARBITER, JOINT_ID, World, part, prepared

OTHER = "planner"
SECRET = "token-of-the-arbiter"
PEER = PeerSettings(url="https://arbiter.test", token=SecretStr(SECRET))


class Arbiter:
    """Stands in for an arbiter that may say anything."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self.requests: list[httpx2.Request] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self.answer


async def ask(world: World, answer: httpx2.Response, peer: PeerSettings = PEER) -> Arbiter:
    """Let the server ask an arbiter that gives this answer."""
    arbiter = Arbiter(answer)
    service = world[OTHER].service
    peers = JointPeers(
        service.joint,
        service.episodes.prepared,
        {ARBITER: peer},
        patience=0.0,
        transport=httpx2.MockTransport(arbiter),
    )
    await peers.look()
    return arbiter


def says(outcome: str, run_id: str | None = f"run-of-{ARBITER}") -> httpx2.Response:
    return httpx2.Response(200, json={"run_id": run_id, "outcomes": {JOINT_ID: outcome}})


async def states(world: World) -> list[str]:
    return [record.state for record in await world[OTHER].records()]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("ended", "ended"),
        ("aborted", "aborted"),
        ("unknown", "aborted"),
        ("open", "prepared"),
    ],
)
async def test_what_the_arbiter_says_is_done(world: World, outcome: str, state: str) -> None:
    await prepared(world)
    arbiter = await ask(world, says(outcome))
    assert await states(world) == [state]
    (request,) = arbiter.requests
    assert request.url == "https://arbiter.test/v1/joint/outcomes"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert json.loads(request.content) == {"joint_ids": [JOINT_ID]}


@pytest.mark.parametrize(
    ("answer", "doubt"),
    [
        (says("unknown", "another run"), "belongs to run run-of-executor"),
        (says("ended", None), "has run None"),
        (httpx2.Response(401, json={}), "responded with HTTP 401"),
        (
            httpx2.Response(302, headers={"location": "https://evil.test/"}),
            "responded with HTTP 302",
        ),
        (httpx2.Response(200, text="<html>"), "did not send the response of a swarm server"),
        (
            httpx2.Response(200, json={"run_id": f"run-of-{ARBITER}", "outcomes": {}}),
            "it is still open on its arbiter",
        ),
    ],
)
async def test_what_says_nothing_leaves_it_in_doubt(
    world: World, answer: httpx2.Response, doubt: str
) -> None:
    await prepared(world)
    arbiter = await ask(world, answer)
    assert await states(world) == ["prepared"]
    (part,) = world[OTHER].service.episodes.prepared
    assert doubt in part.doubt
    assert SECRET not in part.doubt
    assert len(arbiter.requests) == 1


@pytest.mark.parametrize(("outcome", "ended"), [("ended", 1), ("aborted", 0)])
async def test_an_evaluation_in_doubt_is_counted_once_after_a_restart(
    world: World, outcome: str, ended: int
) -> None:
    for role in (ARBITER, OTHER):
        answer = await world[role].post("/v1/episodes", {**part(role), "kind": "eval"})
        episode = answer.json()["episode_id"]
    await world[OTHER].post(f"/v1/episodes/{episode}/prepare", {"reward": 0.5})
    await world[OTHER].restart()
    evaluations = world[OTHER].service.evaluations
    (evaluation,) = evaluations.all()
    assert (evaluation.open, evaluation.episodes) == (1, 0)
    await ask(world, says(outcome))
    (evaluation,) = evaluations.completed()
    assert (evaluation.open, evaluation.episodes) == (0, ended)


async def test_a_server_asks_nobody_who_is_not_in_its_settings(world: World) -> None:
    await prepared(world)
    arbiter = Arbiter(says("ended"))
    service = world[OTHER].service
    peers = JointPeers(
        service.joint,
        service.episodes.prepared,
        {"another": PEER},
        patience=0.0,
        transport=httpx2.MockTransport(arbiter),
    )
    await peers.look()
    assert arbiter.requests == []
    (part,) = service.episodes.prepared
    assert f"server.peers.{ARBITER}" in part.doubt


async def test_a_client_that_lives_is_given_time(world: World) -> None:
    await prepared(world)
    arbiter = Arbiter(says("ended"))
    peers = JointPeers(
        world[OTHER].service.joint,
        world[OTHER].service.episodes.prepared,
        {ARBITER: PEER},
        patience=3600.0,
        transport=httpx2.MockTransport(arbiter),
    )
    await peers.look()
    assert arbiter.requests == []


async def test_what_is_in_doubt_is_shown_to_operators_and_counted(world: World) -> None:
    episode = await prepared(world)
    (part,) = world[OTHER].service.episodes.prepared
    part.since -= 100.0
    status = await world[OTHER].service.status()
    (finding,) = [found for found in status.findings if found.code == "joint_in_doubt"]
    assert finding.stuck
    assert episode in finding.message
    assert f"arbiter '{ARBITER}'" in finding.message
    assert status.counters["prepared_episodes"] == 1
    async with world.swarm() as swarm:
        seen = (await swarm.status())[OTHER]
    assert [found.code for found in seen.findings if found.code == "joint_in_doubt"] == []


def test_many_parts_in_doubt_are_one_finding() -> None:
    doubts = [DoubtView(f"e{n}", "planner", 20.0 + n, "away") for n in range(5)]
    view = ServerView(ServerState.OFFLINE, 1.0, 1.0, in_doubt=doubts)
    (finding,) = diagnose(view, 60.0)
    assert (finding.seconds, finding.stuck) == (24.0, False)
    assert finding.message.startswith("5 prepared parts of joint episodes wait for their arbiter: ")
    assert "episode e4 for 24 s, arbiter 'planner': away" in finding.message
    assert finding.message.endswith("; and 2 more")


def test_a_part_that_was_just_prepared_is_in_no_doubt() -> None:
    view = ServerView(ServerState.OFFLINE, 1.0, 1.0, in_doubt=[DoubtView("e", "planner", 0.5, "")])
    assert diagnose(view, 60.0) == []


@pytest.mark.parametrize(
    ("peer", "why"),
    [
        ({"url": "http://planner.example:8642"}, "in the clear"),
        ({"url": "ftp://planner"}, "not a valid server URL"),
        ({"url": "https://user:word@planner"}, "not a valid server URL"),
    ],
)
def test_a_peer_that_would_give_its_token_away_is_refused(peer: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings(server={"peers": {"planner": peer}})


def test_the_token_of_a_peer_is_not_shown() -> None:
    peers = {"planner": {"url": "https://planner.example", "token": SECRET}}
    shown = Settings(server={"peers": peers}).explain()
    assert SECRET not in repr(shown)
    assert next(origin.key for origin in shown if "peers" in origin.key) == (
        "server.peers.planner.url"
    )
