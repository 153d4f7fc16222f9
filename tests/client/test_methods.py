"""Each method sends what the protocol says and reads what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from agentjet.client import AsyncSwarm, AsyncSwarmClient, Episode, Task
from ajet_core.errors import (
    AjetError,
    DeadlineError,
    NotRollingError,
    RequestError,
    ServerUnreachableError,
    StateError,
)
from ajet_core.protocol import (
    SUPPORTED_VERSIONS,
    CallRules,
    CallSampling,
    EpisodeGrant,
    MixtureConfig,
    RunConfig,
    ServerState,
)
from tests.support.clients import (
    GRANT,
    PROTOCOL,
    RUN_CONFIG,
    TOKEN,
    URL,
    Clock,
    MakeFace,
    Script,
    episode_status,
    error,
    run_status,
    server_status,
)

EPISODE = Episode.from_grant(EpisodeGrant.model_validate(GRANT))


async def test_begin_episode_sends_the_claim_and_returns_the_grant(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes", (200, GRANT))
    episode = await make(script).call(
        "begin_episode", "task-1", group="g", kind="eval", tag="maths", lease_seconds=60
    )
    assert episode == EPISODE
    (body,) = script.bodies()
    assert len(body.pop("claim_id")) == 32
    assert body == {
        "task_id": "task-1",
        "group": "g",
        "kind": "eval",
        "tag": "maths",
        "lease_seconds": 60.0,
        "heartbeat_seconds": None,
        "wait_seconds": 30.0,
        "joint": None,
    }


async def test_a_claim_has_the_rules_that_are_set_and_no_others(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes", (200, GRANT))
    rules = CallRules(sampling=CallSampling(temperature=1.0), max_calls=12)
    await make(script).call("begin_episode", "task-1", rules=rules)
    (body,) = script.bodies()
    assert (body["sampling"], body["max_calls"]) == ({"temperature": 1.0}, 12)
    assert not {"max_tokens", "allow_no_calls"} & body.keys()


async def test_every_request_carries_token_and_version(make: MakeFace) -> None:
    script = Script().on("GET /v1/status", (200, server_status()))
    await make(script).call("status")
    (request,) = script.requests
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["x-ajet-protocol"] == "1.0"


async def test_the_version_is_asked_for_once_and_without_the_token(make: MakeFace) -> None:
    script = Script().on("GET /v1/status", (200, server_status()))
    script.on("GET /v1/protocol", (200, {"versions": ["1.7", "0.9"], "server_version": "x"}))
    face = make(script)
    await face.call("status")
    await face.call("status")
    assert script.routes() == ["GET /v1/protocol", "GET /v1/status", "GET /v1/status"]
    assert "authorization" not in script.requests[0].headers
    assert script.requests[1].headers["x-ajet-protocol"] == SUPPORTED_VERSIONS[0]


async def test_claims_are_repeated_while_the_server_asks_to_wait(
    make: MakeFace, clock: Clock
) -> None:
    script = Script().on(
        "POST /v1/episodes",
        (503, error("not_rolling", retry_after=2.0)),
        (429, error("busy", retry_after=5.0)),
        (200, GRANT),
    )
    episode = await make(script).call("begin_episode", "task-1")
    assert episode.episode_id == "ep-1"
    assert 2.0 <= clock.sleeps[0] <= 2.2
    assert 5.0 <= clock.sleeps[1] <= 5.5


async def test_a_claim_that_can_never_succeed_is_not_repeated(make: MakeFace, clock: Clock) -> None:
    script = Script().on("POST /v1/episodes", (503, error("not_rolling", "OFFLINE")))
    with pytest.raises(NotRollingError, match="OFFLINE"):
        await make(script).call("begin_episode", "task-1")
    assert len(script.requests) == 1
    assert clock.sleeps == []


async def test_begin_episode_gives_up_after_its_timeout(make: MakeFace, clock: Clock) -> None:
    script = Script().on("POST /v1/episodes", (503, error("not_rolling", "full", 10.0)))
    with pytest.raises(DeadlineError, match="within 25 s: full"):
        await make(script).call("begin_episode", "task-1", timeout=25)
    assert clock.now <= 25
    waits = [body["wait_seconds"] for body in script.bodies()]
    assert waits[0] == 25.0
    assert waits == sorted(waits, reverse=True)


async def test_agreeing_on_a_version_takes_nothing_off_a_timeout(
    make: MakeFace, clock: Clock
) -> None:
    lost = httpx2.ConnectError("not yet")
    script = Script().on("GET /v1/protocol", lost, lost, lost, (200, PROTOCOL))
    script.on("POST /v1/episodes", (200, GRANT))
    await make(script).call("begin_episode", "task-1", timeout=25)
    assert clock.now > 0
    assert script.bodies()[-1]["wait_seconds"] == 25.0


async def test_a_runner_claims_as_its_task_and_its_arguments_say(make: MakeFace) -> None:
    ended = episode_status(state="ended", reward=1.0, lease_expires_in=None)
    script = Script().on("POST /v1/episodes", (200, GRANT))
    script.on("POST /v1/episodes/ep-1/end", (200, ended))
    script.on("POST /v1/heartbeats", (200, {"closed": {}}))
    script.on("GET /v1/pace", (200, {"in_order": False}))
    face = make(script)

    async def agent_async(*_: object) -> float:
        return 1.0

    await face.call(
        "run_episodes_until_all_complete",
        [Task("task-1", group="g", tag="maths")],
        agent_async if isinstance(face.client, AsyncSwarmClient) else lambda *_: 1.0,
        kind="eval",
        lease_seconds=1.2,
    )
    claim = script.bodies()[script.routes().index("POST /v1/episodes")]
    assert len(claim.pop("claim_id")) == 32
    assert claim == {
        "task_id": "task-1",
        "group": "g",
        "kind": "eval",
        "tag": "maths",
        "lease_seconds": 1.2,
        "heartbeat_seconds": pytest.approx(0.4),
        "wait_seconds": 30.0,
        "joint": None,
    }


async def test_end_episode_sends_the_outcome(make: MakeFace) -> None:
    ended = episode_status(state="ended", reward=1.0, lease_expires_in=None)
    script = Script().on("POST /v1/episodes/ep-1/end", (200, ended))
    status = await make(script).call(
        "end_episode",
        EPISODE,
        1.0,
        components={"format": 0.5},
        call_rewards={"chatcmpl-1": 0.1},
        agent_rewards={"planner": -1.0},
        metadata={"note": "x"},
    )
    assert status.state == "ended"
    assert script.bodies() == [
        {
            "reward": 1.0,
            "components": {"format": 0.5},
            "call_rewards": {"chatcmpl-1": 0.1},
            "agent_rewards": {"planner": -1.0},
            "metadata": {"note": "x"},
        }
    ]


async def test_a_reward_that_is_no_number_never_leaves_the_client(make: MakeFace) -> None:
    script = Script()
    with pytest.raises(RequestError, match="reward") as caught:
        await make(script).call("end_episode", EPISODE, float("nan"))
    assert caught.value.param == "reward"
    assert script.requests == []


async def test_abort_shortens_a_long_reason(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes/ep-1/abort", (200, episode_status(state="aborted")))
    await make(script).call("abort_episode", EPISODE, "x" * 10_000)
    assert script.bodies() == [
        {"reason": "x" * 4096, "cause": "error", "final": False, "arbiter_aborted": False}
    ]


async def test_heartbeat_and_status_of_an_episode(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes/ep-1/heartbeat", (200, episode_status()))
    script.on("GET /v1/episodes/ep-1", (200, episode_status(calls=4)))
    face = make(script)
    assert (await face.call("heartbeat", EPISODE)).state == "open"
    assert (await face.call("episode_status", EPISODE)).calls == 4
    assert script.bodies() == [None, None]


async def test_the_end_of_calls_returns_the_status(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes/ep-1/end_calls", (200, episode_status(calls=4)))
    assert (await make(script).call("end_calls", EPISODE)).calls == 4


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((200, episode_status()), True),
        ((200, episode_status(state="aborted", lease_expires_in=None)), False),
        ((410, error("episode_closed")), False),
        ((404, error("episode_not_found")), False),
    ],
)
async def test_can_continue_episode(make: MakeFace, answer: object, expected: bool) -> None:
    script = Script().on("GET /v1/episodes/ep-1", answer)
    assert await make(script).call("can_continue_episode", EPISODE) is expected


@pytest.mark.parametrize("given", [RunConfig.model_validate(RUN_CONFIG), RUN_CONFIG])
async def test_sync_train_config_puts_the_whole_configuration(
    make: MakeFace, given: object
) -> None:
    script = Script().on("PUT /v1/run", (200, run_status(state="OFFLINE")))
    status = await make(script).call("sync_train_config", given)
    assert status.state is ServerState.OFFLINE
    assert RunConfig.model_validate(script.bodies()[0]) == RunConfig.model_validate(RUN_CONFIG)


async def test_values_that_are_no_configuration_are_not_sent(make: MakeFace) -> None:
    script = Script()
    with pytest.raises(RequestError, match=r"batch\.tasks"):
        await make(script).call("sync_train_config", RUN_CONFIG | {"batch": {"tasks": 0}})
    # A key in the wrong place is not in the message.
    with pytest.raises(RequestError) as wrong:
        await make(script).call("sync_train_config", RUN_CONFIG | {"api_key": "sk-live"})
    assert "sk-live" not in wrong.value.message
    assert script.requests == []


async def test_every_problem_of_a_configuration_is_named_the_unknown_key_first(
    make: MakeFace,
) -> None:
    given = {"modle": {"path": "/m"}, "seed": "one"}
    with pytest.raises(RequestError) as caught:
        await make(Script()).call("sync_train_config", given)
    message = str(caught.value)
    assert message.startswith("sync_train_config: modle: unknown setting (did you mean 'model'?); ")
    assert "model: Field required" in message
    assert "seed: Input should be a valid integer" in message
    assert caught.value.param == "modle"


async def test_start_engine_waits_until_the_server_has_booted(make: MakeFace, clock: Clock) -> None:
    script = Script().on("POST /v1/run/start", (200, run_status(state="BOOTING")))
    script.on(
        "GET /v1/status",
        (200, server_status(state="BOOTING")),
        (200, server_status(state="ROLLING")),
    )
    script.on("GET /v1/run", (200, run_status()))
    status = await make(script).call("start_engine", wait_seconds=100)
    assert status.state is ServerState.ROLLING
    assert script.bodies()[0] == {"wait_seconds": 100.0}


async def test_start_engine_without_a_run_is_the_servers_error(make: MakeFace) -> None:
    script = Script().on("POST /v1/run/start", (409, error("wrong_state", "PUT /v1/run first")))
    with pytest.raises(StateError, match="PUT /v1/run first"):
        await make(script).call("start_engine")


async def test_start_engine_raises_what_made_the_boot_fail(make: MakeFace) -> None:
    failed = server_status(
        state="OFFLINE",
        error={"type": "worker_boot_failed", "message": "no memory", "param": None},
    )
    script = Script().on("POST /v1/run/start", (200, run_status(state="BOOTING")))
    script.on("GET /v1/status", (200, failed))
    with pytest.raises(AjetError, match="no memory") as caught:
        await make(script).call("start_engine")
    assert caught.value.type == "worker_boot_failed"


async def test_start_engine_gives_up_after_its_time(make: MakeFace, clock: Clock) -> None:
    script = Script().on("POST /v1/run/start", (200, run_status(state="BOOTING")))
    script.on("GET /v1/status", (200, server_status(state="BOOTING")))
    with pytest.raises(DeadlineError, match="still booting after 3 s"):
        await make(script).call("start_engine", wait_seconds=3)
    assert clock.now >= 3


async def test_stop_engine_returns_where_the_model_is(make: MakeFace) -> None:
    stopped = run_status(state="OFFLINE", export_dir="/runs/export")
    script = Script().on("POST /v1/run/stop", (200, stopped))
    assert (await make(script).call("stop_engine")).export_dir == "/runs/export"


async def test_stop_engine_again_gives_the_same_answer(make: MakeFace) -> None:
    script = Script().on("POST /v1/run/stop", (409, error("wrong_state", "no run is active")))
    script.on("GET /v1/run", (200, run_status(state="OFFLINE", export_dir="/runs/export")))
    assert (await make(script).call("stop_engine")).export_dir == "/runs/export"


async def test_stop_engine_without_a_run_is_the_servers_error(make: MakeFace) -> None:
    script = Script().on("POST /v1/run/stop", (409, error("wrong_state", "no run is active")))
    script.on("GET /v1/run", (200, run_status(state="OFFLINE")))
    with pytest.raises(StateError, match="no run is active"):
        await make(script).call("stop_engine")


async def test_run_status_and_status(make: MakeFace) -> None:
    script = Script().on("GET /v1/run", (200, run_status()))
    script.on("GET /v1/status", (200, server_status(counters={"calls": 7})))
    face = make(script)
    assert (await face.call("run_status")).run_id == "run-1"
    assert (await face.call("status")).counters == {"calls": 7}


MIXTURE: dict[str, Any] = {
    "config": {"ratios": {"a": 1.0}, "grace_seconds": 7.0},
    "step": 3,
    "tags": {},
}


async def test_the_mixture_is_read(make: MakeFace) -> None:
    script = Script().on("GET /v1/mixture", (200, MIXTURE))
    found = await make(script).call("mixture")
    assert (found.step, found.config.ratios) == (3, {"a": 1.0})


async def test_bare_ratios_keep_the_grace_time_and_end_the_schedule(make: MakeFace) -> None:
    before = {**MIXTURE["config"], "schedule": [{"from_step": 9, "ratios": {"b": 1.0}}]}
    script = Script().on("GET /v1/mixture", (200, {**MIXTURE, "config": before}))
    script.on("PUT /v1/mixture", (200, MIXTURE))
    await make(script).call("set_mixture", {"a": 0.25, "b": 0.75})
    assert script.bodies()[-1] == {
        "ratios": {"a": 0.25, "b": 0.75},
        "schedule": [],
        "grace_seconds": 7.0,
    }


async def test_a_whole_mixture_is_put_as_it_is(make: MakeFace) -> None:
    script = Script().on("PUT /v1/mixture", (200, MIXTURE))
    wanted = MixtureConfig.model_validate(
        {"ratios": {"a": 1.0}, "schedule": [{"from_step": 9, "ratios": {"b": 1.0}}]}
    )
    await make(script).call("set_mixture", wanted)
    assert script.routes() == ["PUT /v1/mixture"]
    assert script.bodies() == [wanted.model_dump(mode="json")]


async def test_ratios_that_make_no_whole_never_leave_the_client(make: MakeFace) -> None:
    script = Script().on("GET /v1/mixture", (200, MIXTURE))
    with pytest.raises(RequestError, match=r"^set_mixture: ratios must sum to 1"):
        await make(script).call("set_mixture", {"a": 0.5})
    assert script.routes() == ["GET /v1/mixture"]


async def test_fields_of_a_later_minor_version_are_ignored(make: MakeFace) -> None:
    script = Script().on("GET /v1/status", (200, server_status() | {"colour": "blue"}))
    assert (await make(script).call("status")).step == 3


async def test_ids_cannot_leave_their_place_in_the_path(make: MakeFace) -> None:
    script = Script().on("GET /v1/episodes/../status", (200, episode_status()))
    odd = Episode.from_grant(EpisodeGrant.model_validate(GRANT | {"episode_id": "../status"}))
    await make(script).call("episode_status", odd)
    assert script.requests[0].url.raw_path == b"/v1/episodes/..%2Fstatus"


async def test_a_closed_client_says_so(make: MakeFace) -> None:
    face = make(Script())
    await face.call("close")
    with pytest.raises(StateError, match="is closed"):
        await face.call("status")


async def test_a_swarm_that_is_closed_or_never_reached_its_arbiter_resolves_nothing() -> None:
    def refuse(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("no")

    swarm = AsyncSwarm({"a": URL}, retries=0, transport=httpx2.MockTransport(refuse))
    with pytest.raises(ServerUnreachableError, match="/v1/protocol"):
        await swarm.resolve()
    await swarm.close()
    with pytest.raises(StateError, match="is closed"):
        await swarm.resolve()


async def test_bodies_are_json(make: MakeFace) -> None:
    script = Script().on("POST /v1/episodes", (200, GRANT))
    await make(script).call("begin_episode", "täsk")
    assert script.requests[0].headers["content-type"] == "application/json"
    assert json.loads(script.requests[0].content)["task_id"] == "täsk"
