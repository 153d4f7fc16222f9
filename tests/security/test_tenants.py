"""A tenant sees nothing of another, stays within its quota, and ends with its token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ajet_testing.faults import HoldGate
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Headers,
    Running,
    ServerFactory,
    claim_as,
    error_of,
    key,
    new_token,
    revoke,
)

pytestmark = pytest.mark.processes


@pytest.fixture
async def rolling(server: Running) -> Running:
    await server.roll(batch={"tasks": 8, "episodes_per_task": 8, "max_aborts_per_task": 2})
    return server


_ROUTES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "", None),
    ("POST", "/heartbeat", None),
    ("POST", "/end_calls", None),
    ("POST", "/end", {"reward": 1.0}),
    ("POST", "/abort", {"reason": "mine now"}),
]


@pytest.mark.parametrize(("method", "path", "body"), _ROUTES)
async def test_an_episode_of_another_tenant_is_answered_as_one_that_is_not_there(
    rolling: Running, method: str, path: str, body: dict[str, Any] | None
) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    grant = (await claim_as(rolling, alice)).json()
    unknown = "0" * 24
    for headers in (bob, CLIENT):
        answers = [
            await rolling.http.request(
                method, f"/v1/episodes/{id_}{path}", headers=headers, json=body
            )
            for id_ in (grant["episode_id"], unknown)
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text.replace(grant["episode_id"], unknown) == answers[1].text
    assert (await rolling.chat(grant)).status_code == 200
    url = f"/v1/episodes/{grant['episode_id']}{path}"
    assert (await rolling.http.request(method, url, headers=alice, json=body)).status_code == 200


async def test_control_may_end_everybodys_episodes_and_a_viewer_only_sees_them(
    rolling: Running,
) -> None:
    _, alice = await new_token(rolling, "alice")
    _, viewer = await new_token(rolling, "dashboard", scope="view")
    grant = (await claim_as(rolling, alice)).json()
    url = f"/v1/episodes/{grant['episode_id']}"
    assert (await rolling.http.get(url, headers=viewer)).json()["state"] == "open"
    for path in ("/v1/status", f"/v1/timelines/{grant['episode_id']}"):
        assert (await rolling.http.get(path, headers=viewer)).status_code == 200
    for path, body in (("/heartbeat", None), ("/end", {"reward": 1}), ("/abort", {"reason": "x"})):
        answer = await rolling.http.post(url + path, headers=viewer, json=body)
        assert answer.status_code == 403
    assert (await claim_as(rolling, viewer)).status_code == 403
    answer = await rolling.http.post(f"{url}/abort", headers=CONTROL, json={"reason": "stop"})
    assert answer.json()["state"] == "aborted"


async def test_evaluations_of_another_tenant_are_seen_by_control_and_viewers_alone(
    rolling: Running,
) -> None:
    alice_id, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    _, viewer = await new_token(rolling, "dashboard", scope="view")
    grant = (await claim_as(rolling, alice, kind="eval", tag="secret set")).json()
    url = f"/v1/episodes/{grant['episode_id']}/end"
    assert (await rolling.http.post(url, headers=alice, json={"reward": 1})).status_code == 200
    await rolling.service.tell_evaluations()
    (told,) = [o for o in rolling.service.events._events if o.event.type == "evaluation"]
    assert told.owner == alice_id
    for path in ("/v1/evaluations", "/v1/status"):
        for headers, sees in ((alice, True), (viewer, True), (CONTROL, True), (bob, False)):
            answer = await rolling.http.get(path, headers=headers)
            assert ("secret set" in answer.text) is sees, path
            assert (alice_id in answer.text) is sees, path


@pytest.mark.parametrize("scope", ["client", "view"])
async def test_only_control_makes_lists_and_revokes_tokens(server: Running, scope: str) -> None:
    token_id, headers = await new_token(server, "nosy", scope=scope)
    for method, path in (
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("DELETE", f"/v1/tokens/{token_id}"),
        ("PUT", "/v1/run"),
        ("POST", "/v1/run/start"),
        ("POST", "/v1/run/stop"),
    ):
        body = {"POST": {"name": "x"}, "PUT": server.config()}.get(method)
        body = None if path.startswith("/v1/run/") else body
        answer = await server.http.request(method, path, headers=headers, json=body)
        assert answer.status_code == 403, (method, path)
    if scope == "client":
        answer = await server.http.get("/v1/timelines/x", headers=headers)
        assert answer.status_code == 403


async def test_the_secret_is_shown_once_and_lists_do_without(server: Running) -> None:
    _, headers = await new_token(server, "alice")
    listed = await server.http.get("/v1/tokens", headers=CONTROL)
    assert headers["authorization"].rpartition(".")[2] not in listed.text
    assert [info["name"] for info in listed.json()["tokens"]] == ["alice"]
    assert "hash" not in listed.text


async def test_a_beat_for_many_says_nothing_of_another_tenants_episodes(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    running = (await claim_as(rolling, alice)).json()["episode_id"]
    ended = (await claim_as(rolling, alice)).json()["episode_id"]
    url = f"/v1/episodes/{ended}/end"
    assert (await rolling.http.post(url, headers=alice, json={"reward": 1})).status_code == 200
    unknown = "0" * 24
    body = {"episode_ids": [running, ended, unknown]}
    answer = await rolling.http.post("/v1/heartbeats", headers=bob, json=body)
    closed = answer.json()["closed"]
    said = {why.replace(id_, "ID") for id_, why in closed.items()}
    assert (set(closed), len(said)) == ({running, ended, unknown}, 1)


async def test_groups_are_counted_for_each_tenant_alone(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    for _ in range(2):
        await claim_as(rolling, alice, "shared")
    counts = []
    for headers in (alice, bob, CLIENT):
        body = {"groups": ["shared"]}
        answer = await rolling.http.post("/v1/groups", headers=headers, json=body)
        counts.append(answer.json()["groups"].get("shared", {"open": 0})["open"])
    assert counts == [2, 0, 0]


async def test_events_of_another_tenant_are_not_seen(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    log = rolling.service.events
    first = log._events[0].event.id - 1
    mine = (await claim_as(rolling, alice, "task-of-alice")).json()
    theirs = (await claim_as(rolling, bob, "task-of-bob")).json()
    log.emit("worker", {"what": "died", "message": "secrets of bob in a log line"})
    log.emit("step", {"step": 1, "metrics": {}, "forks": ["bob rewrote his history"]})
    log.emit("something new", {"of": "bob"})
    marker = (await claim_as(rolling, alice, "last")).json()
    seen = await events_until(rolling, alice, marker["episode_id"], first)
    text = json.dumps(seen)
    assert mine["episode_id"] in text
    assert theirs["episode_id"] not in text
    assert "bob" not in text
    assert {event["type"] for event in seen} >= {"state", "episode", "worker", "step"}
    everything = json.dumps(await events_until(rolling, CONTROL, marker["episode_id"], first))
    assert theirs["episode_id"] in everything
    assert "bob rewrote his history" in everything


async def test_how_far_another_tenant_is_with_its_tag_is_not_seen(server: Running) -> None:
    await server.roll(mixture={"ratios": {"bobs": 1.0}, "grace_seconds": 3600.0})
    _, alice = await new_token(server, "alice")
    _, bob = await new_token(server, "bob")
    log = server.service.events
    first = log._events[0].event.id - 1
    for number in range(4):
        grant = (await claim_as(server, bob, f"t{number // 2}", tag="bobs")).json()
        await server.chat(grant)
        url = f"/v1/episodes/{grant['episode_id']}/end"
        await server.http.post(url, headers=bob, json={"reward": number / 4})
    await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    blocked = {"what": "blocked", "tags": ["bobs"], "slots": {"bobs": 2}}
    log.emit("mixture", blocked)
    marker = (await claim_as(server, alice, "last", kind="eval")).json()
    seen = await events_until(server, alice, marker["episode_id"], first)
    seen.append((await server.http.get("/v1/status", headers=alice)).json()["last_step"])
    assert "bobs" not in json.dumps(seen)
    assert {"what": "blocked"} in [event.get("data") for event in seen]
    everything = await events_until(server, CONTROL, marker["episode_id"], first)
    assert blocked in [event["data"] for event in everything]
    status = (await server.http.get("/v1/status", headers=CONTROL)).json()
    assert status["last_step"]["metrics"]["tasks/bobs"] == 2


async def test_the_status_names_no_task_of_another_tenant(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    await claim_as(rolling, alice, "task-of-alice")
    for path in ("/v1/status", "/v1/run"):
        answer = await rolling.http.get(path, headers=bob)
        assert answer.status_code == 200
        assert "alice" not in answer.text
    assert (await rolling.http.get("/v1/status", headers=bob)).json()["counters"]["episodes"] == 1


async def test_a_task_that_one_tenant_keeps_aborting_is_not_quarantined_for_another(
    rolling: Running,
) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    for _ in range(3):
        grant = (await claim_as(rolling, alice, "shared", group="g")).json()
        assert grant["group"] == "g"
        url = f"/v1/episodes/{grant['episode_id']}/abort"
        await rolling.http.post(url, headers=alice, json={"reason": "boom"})
    assert (await claim_as(rolling, alice, "shared", group="g")).status_code == 409
    answer = await claim_as(rolling, bob, "shared", group="g")
    assert answer.status_code == 200
    assert answer.json()["group"] == "g"


@pytest.mark.parametrize("tenant", ["named", "default"])
async def test_a_group_cannot_be_called_like_another_tenants(rolling: Running, tenant: str) -> None:
    alice, _ = await new_token(rolling, "alice")
    _, named = await new_token(rolling, "bob")
    headers = named if tenant == "named" else CLIENT
    answer = await claim_as(rolling, headers, "t", group=f"{alice}\x1fmath")
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "group"


async def test_a_claim_of_another_tenant_is_not_handed_out(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    claim_id = "c" * 40
    first = await claim_as(rolling, alice, claim_id=claim_id)
    again = await claim_as(rolling, alice, claim_id=claim_id)
    assert again.json()["api_key"] == first.json()["api_key"]
    stolen = await claim_as(rolling, bob, claim_id=claim_id)
    assert stolen.status_code == 403
    # At once: one of them has the episode, and the other does not get its key.
    claim_id = "d" * 40
    answers = await asyncio.gather(
        *(claim_as(rolling, who, claim_id=claim_id) for who in (alice, bob) * 4)
    )
    keys = {a.json()["api_key"] for a in answers if a.status_code == 200}
    assert len(keys) == 1
    assert sorted(a.status_code for a in answers) == [200] * 4 + [403] * 4


async def test_a_restart_keeps_who_owns_what(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        _, alice = await new_token(server, "alice")
        _, bob = await new_token(server, "bob")
        theirs = (await claim_as(server, alice)).json()
        default = await server.claim("b")
    async with servers.running() as server:
        for grant, owner, others in (
            (theirs, alice, (bob, CLIENT)),
            (default, CLIENT, (alice, bob)),
        ):
            url = f"/v1/episodes/{grant['episode_id']}"
            assert (await server.http.get(url, headers=owner)).json()["state"] == "open"
            for other in others:
                assert (await server.http.get(url, headers=other)).status_code == 404


# --- Revoked and expired --------------------------------------------------------------------------


async def test_a_revoked_token_opens_nothing_and_its_episodes_are_over(rolling: Running) -> None:
    token_id, alice = await new_token(rolling, "alice")
    _, bob = await new_token(rolling, "bob")
    mine = (await claim_as(rolling, alice)).json()
    theirs = (await claim_as(rolling, bob)).json()
    await revoke(rolling, token_id)
    assert (await claim_as(rolling, alice)).status_code == 401
    assert (await rolling.http.get("/v1/status", headers=alice)).status_code == 401
    assert (await rolling.chat(mine)).status_code in (401, 410)
    url = f"/v1/episodes/{mine['episode_id']}"
    episode = (await rolling.http.get(url, headers=CONTROL)).json()
    assert (episode["state"], "revoked" in episode["reason"]) == ("aborted", True)
    assert (await rolling.chat(theirs)).status_code == 200


async def test_a_call_in_flight_of_a_revoked_token_is_cut_off(server: Running) -> None:
    await server.roll(engine={"hangs_at": 1})
    token_id, alice = await new_token(server, "alice")
    grant = (await claim_as(server, alice)).json()
    with HoldGate(server.run_dir, "engine"):
        call = asyncio.create_task(server.chat(grant))
        while not server.service.episodes.open[grant["episode_id"]].calls_running:
            await asyncio.sleep(0)
        await revoke(server, token_id)
        answer = await call
    assert answer.status_code == 410
    assert "revoked" in (await server.chat(grant)).text


async def test_a_waiting_claim_of_a_revoked_token_is_refused_at_once(server: Running) -> None:
    await server.roll(batch={"tasks": 1, "episodes_per_task": 2, "full_by": "episodes"})
    for _ in range(2):
        await server.claim()
    token_id, alice = await new_token(server, "alice")
    waiting = asyncio.create_task(claim_as(server, alice, wait_seconds=300.0))
    while not server.service.admission.waiting_count:
        await asyncio.sleep(0)
    await revoke(server, token_id)
    answer = await waiting
    assert answer.status_code == 401
    assert "revoked" in error_of(answer)["message"]


async def test_the_event_stream_of_a_revoked_token_ends(server: Running) -> None:
    token_id, viewer = await new_token(server, "dashboard", scope="view")
    async with server.http.stream("GET", "/v1/events", headers=viewer) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == ": connected"
        await revoke(server, token_id)
        server.service.events.emit("run", {"what": "after"})
        assert [line for line in [line async for line in lines] if line] == []


async def test_the_event_stream_of_a_token_that_expires_ends_though_nothing_happens(
    server: Running,
) -> None:
    token_id, viewer = await new_token(server, "dashboard", scope="view", expires_in=3600.0)
    async with server.http.stream("GET", "/v1/events", headers=viewer) as answer:
        lines = answer.aiter_lines()
        assert await anext(lines) == ": connected"
        token = server.service.tokens.get(token_id)
        assert token is not None
        token.expires_at = 1.0
        assert [line for line in [line async for line in lines] if line] == []


async def test_readers_are_left_alone_while_no_token_is_dead(server: Running) -> None:
    waited_for = server.service.events._news
    await server.service._end_dead_tenants()
    assert server.service.events._news is waited_for


async def test_a_token_expires_in_the_middle_of_a_run(rolling: Running) -> None:
    token_id, alice = await new_token(rolling, "alice", expires_in=3600.0)
    grant = (await claim_as(rolling, alice)).json()
    assert (await rolling.chat(grant)).status_code == 200
    token = rolling.service.tokens.get(token_id)
    assert token is not None
    token.expires_at = 1.0
    refused = await rolling.chat(grant)
    assert refused.status_code in (401, 410)
    answer = await rolling.http.get("/v1/status", headers=alice)
    assert answer.status_code == 401
    assert "expired at 1970-01-01" in error_of(answer)["message"]
    # Nobody asks for it, and its episode is over all the same.
    await rolling.service.board.wait_until(lambda: not rolling.service.episodes.open)


async def test_a_token_revoked_while_no_server_ran_takes_its_episodes_with_it(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll()
        token_id, alice = await new_token(server, "alice")
        grant = (await claim_as(server, alice)).json()
        book = server.service.tokens
    book.open()
    book.revoke(token_id)
    book.close()
    async with servers.running() as server:
        assert (await server.chat(grant)).status_code in (401, 410)
        await server.service.board.wait_until(lambda: not server.service.episodes.open)
        assert (await server.http.get("/v1/status", headers=alice)).status_code == 401


# --- Quotas ---------------------------------------------------------------------------------------


async def test_the_quota_of_open_episodes_holds_for_claims_at_once(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice", quotas={"open_episodes": 2})
    answers = await asyncio.gather(*(claim_as(rolling, alice, "t") for _ in range(6)))
    assert sorted(a.status_code for a in answers) == [200, 200, 429, 429, 429, 429]
    refused = next(a for a in answers if a.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert "open_episodes" in error_of(refused)["message"]
    ended = next(a.json() for a in answers if a.status_code == 200)
    url = f"/v1/episodes/{ended['episode_id']}/end"
    assert (await rolling.http.post(url, headers=alice, json={"reward": 1.0})).status_code == 200
    assert (await claim_as(rolling, alice)).status_code == 200
    # Another tenant has its own.
    assert (await rolling.claim())["episode_id"]


async def test_the_limit_of_open_episodes_holds_for_claims_at_once(servers: ServerFactory) -> None:
    async with servers.running(max_open_episodes=2) as server:
        await server.roll(batch={"tasks": 8, "episodes_per_task": 8})
        _, alice = await new_token(server, "alice")
        claims = (claim_as(server, headers, "t") for headers in (alice, CLIENT) * 3)
        answers = await asyncio.gather(*claims)
        assert sorted(a.status_code for a in answers) == [200, 200, 429, 429, 429, 429]


async def test_the_quota_of_open_episodes_is_kept_over_a_restart(servers: ServerFactory) -> None:
    async with servers.running() as server:
        await server.roll()
        _, alice = await new_token(server, "alice", quotas={"open_episodes": 1})
        assert (await claim_as(server, alice)).status_code == 200
    async with servers.running() as server:
        await server.service.board.wait_until(lambda: server.service.board.rolling)
        assert (await claim_as(server, alice, "b")).status_code == 429


async def test_the_quota_of_waiting_claims_holds(server: Running) -> None:
    await server.roll(batch={"tasks": 1, "episodes_per_task": 2, "full_by": "episodes"})
    for _ in range(2):
        await server.claim()
    _, alice = await new_token(server, "alice", quotas={"waiting_claims": 1})
    waiting = asyncio.create_task(claim_as(server, alice, wait_seconds=300.0))
    while not server.service.admission.waiting_count:
        await asyncio.sleep(0)
    answer = await claim_as(server, alice)
    assert answer.status_code == 429
    assert "waiting_claims" in error_of(answer)["message"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_the_quota_of_event_streams_holds(server: Running) -> None:
    _, viewer = await new_token(server, "dash", scope="view", quotas={"event_streams": 1})
    async with server.http.stream("GET", "/v1/events", headers=viewer) as first:
        assert first.status_code == 200
        answer = await server.http.get("/v1/events", headers=viewer)
        assert answer.status_code == 429
        assert "event_streams" in error_of(answer)["message"]


async def test_the_rate_of_requests_is_limited_for_one_token_alone(server: Running) -> None:
    _, alice = await new_token(server, "alice", quotas={"requests_per_minute": 3})
    answers = [await server.http.get("/v1/status", headers=alice) for _ in range(4)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429]
    assert 0 < int(answers[3].headers["retry-after"]) <= 20
    assert (await server.http.get("/v1/status", headers=CLIENT)).status_code == 200


async def test_the_quota_of_calls_at_once_holds(server: Running) -> None:
    await server.roll()
    _, alice = await new_token(server, "alice", quotas={"calls_at_once": 1})
    grant = (await claim_as(server, alice)).json()

    async def never_ending() -> AsyncIterator[bytes]:
        yield b'{"messages": '
        await asyncio.Event().wait()

    first = asyncio.create_task(
        server.http.post("/v1/chat/completions", headers=key(grant), content=never_ending())
    )
    while not server.service.tenants._calls:
        await asyncio.sleep(0)
    answer = await server.chat(grant)
    assert answer.status_code == 429
    assert "calls_at_once" in error_of(answer)["message"]
    assert answer.headers["x-should-retry"] == "true"
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    while server.service.tenants._calls:
        await asyncio.sleep(0)
    assert (await server.chat(grant)).status_code == 200


async def test_calls_of_one_episode_are_limited(servers: ServerFactory) -> None:
    async with servers.running(max_calls_per_episode=2) as server:
        await server.roll()
        grant = await server.claim()
        answers = [await server.chat(grant, f"{n}") for n in range(3)]
        assert [a.status_code for a in answers] == [200, 200, 429]
        assert "max_calls_per_episode" in error_of(answers[2])["message"]
        assert answers[2].headers["x-should-retry"] == "false"
        assert (await server.end(grant, 1.0)).status_code == 200


async def test_heartbeats_hold_an_episode_open_for_a_limited_time(servers: ServerFactory) -> None:
    async with servers.running(max_episode_seconds=1) as server:
        await server.roll()
        grant = await server.claim()
        url = f"/v1/episodes/{grant['episode_id']}/heartbeat"
        while (answer := await server.http.post(url, headers=CLIENT)).status_code == 200:
            await asyncio.sleep(0)
        assert answer.status_code == 410
        assert "max_episode_seconds" in error_of(answer)["message"]
        status = (await server.http.get("/v1/status", headers=CONTROL)).json()
        assert status["counters"]["aborted_timeout"] == 1


async def test_nothing_is_kept_of_tenants_that_use_nothing(rolling: Running) -> None:
    _, alice = await new_token(rolling, "alice")
    grant = (await claim_as(rolling, alice)).json()
    await rolling.chat(grant)
    url = f"/v1/episodes/{grant['episode_id']}/end"
    await rolling.http.post(url, headers=alice, json={"reward": 1.0})
    tenants = rolling.service.tenants
    counters = (tenants._open, tenants._waiting, tenants._calls, tenants._episode_calls)
    assert [dict(counter) for counter in counters] == [{}, {}, {}, {}]


async def events_until(
    server: Running, headers: Headers, marker: str, after: int
) -> list[dict[str, Any]]:
    """Events as `headers` sees them, up to the one that names `marker`."""
    found: list[dict[str, Any]] = []
    since = {**headers, "last-event-id": str(after)}
    async with server.http.stream("GET", "/v1/events", headers=since) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if marker in line:
                    break
    return found
