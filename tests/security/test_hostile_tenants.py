"""Whatever one tenant sends and the server accepts, the training of the others goes on."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentjet.client import AsyncSwarmClient
from ajet_cli.main import cli
from ajet_core.protocol import ServerState
from ajet_testing.servers import CONTROL, Headers, Running, ServerFactory, claim_as, key, new_token

pytestmark = pytest.mark.processes

# Characters that have broken parsers, terminals, labels of metrics, databases and file names.
NASTY = (
    "\x00\x01\x1b\x1f\x7f\x85\u200b\u202e\u2028\ufeff\ufffd\ufffe\U0001f9d1\u0301\U0010ffff"
    "\"'\\\n\r\t/%{}[]<>&$`=,;:|*?#~ aé字"
)
CHARACTERS = st.one_of(st.sampled_from(NASTY), st.characters(codec="utf-8"))
TEXTS = st.text(CHARACTERS, max_size=40)


def names(longest: int) -> st.SearchStrategy[str]:
    """Names of up to `longest` characters, also of exactly so many."""
    whole = CHARACTERS.map(lambda character: character * longest)
    return st.one_of(st.text(CHARACTERS, min_size=1, max_size=40), whole)


NUMBERS = st.one_of(
    st.floats(-1e6, 1e6),
    st.integers(-(10**6), 10**6),
    st.sampled_from([1e6, -1e6, -0.0, 5e-324, 2.2e-308, 1e-12, 999999.9999999999]),
)
DEEP: Any = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=6,
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {
                    "name": names(64),
                    "description": TEXTS,
                    "parameters": st.dictionaries(TEXTS, DEEP, max_size=4),
                }
            ),
        }
    ),
    max_size=2,
)
CALLS = st.fixed_dictionaries(
    {
        "model": TEXTS,
        "messages": MESSAGES,
        "max_tokens": st.integers(1, 8),
        "temperature": st.sampled_from([0, 1e-300, 0.7, 2]),
    },
    optional={
        "tools": TOOLS,
        "user": TEXTS,
        "metadata": st.dictionaries(TEXTS, DEEP, max_size=3),
        "stop": st.lists(TEXTS.filter(bool), max_size=3),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "n": st.integers(1, 3),
        "logprobs": st.booleans(),
    },
)
# What HTTP can carry in a header.
AGENTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=64)
EPISODES = st.fixed_dictionaries(
    {
        "calls": st.lists(st.tuples(AGENTS, CALLS), max_size=4),
        "reward": NUMBERS,
        "components": st.dictionaries(names(128), NUMBERS, max_size=64),
        "metadata": st.dictionaries(
            names(128), st.one_of(TEXTS, CHARACTERS.map(lambda c: c * 4096)), max_size=8
        ),
        "call_reward": NUMBERS,
        "agent_reward": NUMBERS,
        # Which part of a joint episode it is, if it is one; the id is made anew for each.
        "joint": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {"role": names(256), "arbiter": names(256), "arbiter_run": TEXTS}
            ),
        ),
    }
)
ATTACKS = st.fixed_dictionaries(
    {
        "task": names(256),
        "group": st.one_of(st.none(), names(256)),
        "tag": st.one_of(TEXTS, names(256)),
        "episodes": st.lists(EPISODES, min_size=2, max_size=2),
        "evaluation": EPISODES,
    }
)


async def attack(
    server: Running, headers: Headers, claim: dict[str, Any], plan: dict[str, Any]
) -> str:
    """A whole episode of the hostile tenant, with all of it that is accepted; its id."""
    joint = plan["joint"] and {**plan["joint"], "joint_id": secrets.token_urlsafe(32)}
    for asked in (
        {**claim, "joint": joint},
        {**claim, "joint": None},
        {"task": "plain", "kind": claim["kind"]},
    ):
        joint = asked.get("joint")
        answer = await claim_as(server, headers, **asked)
        if answer.status_code == 409:
            # Its episodes were too large too often.
            await server.http.post("/v1/run/resume", headers=CONTROL)
            answer = await claim_as(server, headers, **asked)
        # 409: what it says of a joint episode is not so.
        if answer.status_code not in {400, 409}:
            break
    assert answer.status_code == 200, answer.text
    grant = answer.json()
    made, agents = [], set()
    for agent, body in plan["calls"]:
        said = await server.http.post(
            "/v1/chat/completions", headers={**key(grant), "x-ajet-agent": agent}, json=body
        )
        assert said.status_code < 500, said.text
        if said.is_success:
            made.append(said.json()["id"])
            agents.add(agent)
    end = {
        "reward": plan["reward"],
        "components": plan["components"],
        "metadata": plan["metadata"],
        "call_rewards": {call: plan["call_reward"] * i for i, call in enumerate(made[:2])},
        "agent_rewards": {agent: plan["agent_reward"] for agent in agents if agent},
    }
    url = f"/v1/episodes/{grant['episode_id']}"
    in_parts = joint and joint["role"] != joint["arbiter"]
    ends = f"{url}/{'prepare' if in_parts else 'end'}"
    ended = await server.http.post(ends, headers=headers, json=end)
    assert ended.status_code in {200, 400}, ended.text
    if ended.status_code == 400:
        ended = await server.http.post(ends, headers=headers, json={"reward": plan["reward"]})
        assert ended.status_code == 200, ended.text
    if in_parts:
        committed = await server.http.post(f"{url}/commit", headers=headers)
        assert committed.status_code == 200, committed.text
    found: str = grant["episode_id"]
    return found


async def honest(server: Running, headers: Headers, reward: float) -> str:
    """An episode of the other tenant."""
    answer = await claim_as(server, headers, "honest")
    assert answer.status_code == 200, answer.text
    grant = answer.json()
    assert (await server.chat(grant)).status_code == 200
    url = f"/v1/episodes/{grant['episode_id']}/end"
    assert (await server.http.post(url, headers=headers, json={"reward": reward})).is_success
    found: str = grant["episode_id"]
    return found


async def look(server: Running, headers: Headers, episodes: list[str], since: int) -> None:
    """All that people and machines look at.

    :param since: the last event from before the batch.
    """
    paths = ["/v1/status", "/metrics", "/v1/evaluations", "/v1/run", "/v1/joint"]
    what = "timelines" if headers is CONTROL else "episodes"
    paths += [f"/v1/{what}/{episode}" for episode in episodes]
    for path in paths:
        found: httpx2.Response = await server.http.get(path, headers=headers)
        assert found.status_code == 200, (path, found.text)
    token = headers["authorization"].removeprefix("Bearer ")
    async with AsyncSwarmClient(server.url, token) as client:
        async for event in client.events(since):
            if event.type == "step":
                break


def inspect(server: Running, *arguments: str) -> None:
    """`ajet inspect`, or `ajet export` to a file."""
    run = str(server.run_dir)
    result = CliRunner().invoke(cli, [arguments[0], run, *arguments[1:]], prog_name="ajet")
    assert result.exit_code == 0, result.output


async def inspected(server: Running, episode: str) -> None:
    """What an operator looks at in the run's directory."""
    page, samples = (str(server.run_dir.parent / name) for name in ("page.html", "samples.jsonl"))
    step = str(server.service.coordinator.step)
    for arguments in (
        ("inspect",),
        ("inspect", "--refused", "--json"),
        ("inspect", episode),
        ("inspect", "--step", step, "--html", page),
        ("export", samples, "--step", step, "--text", "--force"),
    ):
        await asyncio.to_thread(inspect, server, *arguments)


async def one_batch(server: Running, alice: Headers, mallory: Headers, plan: Any) -> None:
    """A batch of which each tenant has a task."""
    service = server.service
    step, since = service.coordinator.step, service.events._last_id
    claim = {"task": plan["task"], "group": plan["group"], "tag": plan["tag"]}
    gathered: list[Any] = await asyncio.gather(
        asyncio.gather(*(honest(server, alice, reward) for reward in (0.0, 1.0))),
        *(attack(server, mallory, {**claim, "kind": "train"}, e) for e in plan["episodes"]),
        attack(server, mallory, {**claim, "kind": "eval"}, plan["evaluation"]),
    )
    good, *bad = gathered
    await service.board.wait_until(
        lambda: service.coordinator.step > step or not service.coordinator.running
    )
    assert service.coordinator.error is None
    await service.board.wait_until(lambda: service.board.state is not ServerState.WEIGHT_SYNCING)
    assert service.coordinator.paused is None
    for episode in good:
        (score,) = (await service.store.scores(episode)).values()
        assert math.isfinite(score.advantage) and score.advantage != 0
    await service.tell_evaluations()
    for headers in (CONTROL, mallory, alice):
        own = {id(CONTROL): [*good, *bad], id(mallory): bad, id(alice): list(good)}[id(headers)]
        await look(server, headers, own, since)
    await inspected(server, bad[0])


MANY = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


@pytest.mark.timeout(3600 if MANY else 300)
def test_accepted_episodes_of_one_tenant_never_stop_the_training_of_another(
    servers: ServerFactory,
) -> None:
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        server = runner.run(stack.enter_async_context(servers.running()))
        try:
            # What is unhealthy about such rewards may pause a run; here nothing else may.
            runner.run(
                server.roll(
                    algorithm={"advantage": "group_mean"},
                    failures={"pause_on": []},
                    # Some episodes are too large for it.
                    trainer={"memory": 512},
                    preflight={"enabled": False},
                )
            )
            _, alice = runner.run(new_token(server, "alice"))
            _, mallory = runner.run(new_token(server, "mallory"))

            @settings(
                max_examples=300 if MANY else 10,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(ATTACKS)
            def attacked(plan: Any) -> None:
                runner.run(one_batch(server, alice, mallory, plan))

            attacked()
        finally:
            runner.run(stack.aclose())
