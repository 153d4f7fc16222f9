"""Rules of claims and runs for model calls: limits, sampling, agents that are not trained."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from ajet_testing.servers import CLIENT, Running, error_of
from tests.support.sdks import ENDED, SPOKEN, Agent

pytestmark = pytest.mark.processes

ASKED: Any = [{"role": "user", "content": "Where are you?"}]


@pytest.fixture
async def speaking(model_says) -> Agent:
    """An agent whose model says one sentence."""
    agent: Agent = await model_says(f"{SPOKEN}{ENDED}")
    return agent


async def claimed(agent: Agent, **rules: Any) -> Agent:
    """Another episode of the server, with rules."""
    return Agent(agent.server, await agent.server.claim("ruled", **rules))


async def status(agent: Agent) -> dict[str, Any]:
    path = f"/v1/episodes/{agent.grant['episode_id']}"
    found: dict[str, Any] = (await agent.server.http.get(path, headers=CLIENT)).json()
    return found


def with_retries(client: Any) -> Any:
    """A client that repeats what its SDK considers worth repeating, and counts its requests."""
    sent: list[str] = []
    inner = client._client

    async def note(request: Any) -> None:
        sent.append(str(request.url))

    inner.event_hooks = {"request": [note], "response": []}
    client.sent = sent
    return client


async def test_calls_beyond_the_limit_end_the_loop_of_a_program(speaking: Agent) -> None:
    agent = await claimed(speaking, max_calls=2)
    async with agent.openai as plain, agent.anthropic as claude:
        client, other = with_retries(plain), with_retries(claude)
        for _ in range(2):
            assert (await status(agent))["limit"] is None
            await client.chat.completions.create(model="any", messages=ASKED)
        with pytest.raises(openai.PermissionDeniedError, match="may make 2 model calls") as chat:
            await client.chat.completions.create(model="any", messages=ASKED)
        with pytest.raises(openai.PermissionDeniedError) as streamed:
            await client.chat.completions.create(model="any", messages=ASKED, stream=True)
        with pytest.raises(openai.PermissionDeniedError) as responses:
            await client.responses.create(model="any", input="Where are you?")
        with pytest.raises(anthropic.PermissionDeniedError, match="call_limit: this episode"):
            await other.messages.create(model="any", max_tokens=9, messages=ASKED)
    codes = [error.value.code for error in (chat, streamed, responses)]
    assert codes == ["call_limit"] * 3
    # None was sent again.
    assert (len(client.sent), len(other.sent)) == (5, 1)
    assert len(await agent.calls()) == 2
    ended = await agent.server.end(agent.grant, 1.0)
    assert (ended.json()["limit"], ended.json()["calls"]) == ("call_limit", 2)
    assert (await status(agent))["limit"] == "call_limit"


async def test_streams_leave_room_for_the_next_call(speaking: Agent) -> None:
    agent = await claimed(speaking, max_calls=3)
    async with agent.openai as client:
        for _ in range(3):
            stream = await client.chat.completions.create(model="any", messages=ASKED, stream=True)
            async for _ in stream:
                pass
    assert len(await agent.calls()) == 3


async def test_choices_count_as_calls(speaking: Agent) -> None:
    agent = await claimed(speaking, max_calls=3)
    async with agent.openai as client:
        await client.chat.completions.create(model="any", messages=ASKED, n=2)
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(model="any", messages=ASKED, n=2)
        await client.chat.completions.create(model="any", messages=ASKED)


async def test_the_last_answer_ends_at_the_limit_of_tokens(speaking: Agent) -> None:
    async with speaking.openai as client:
        whole = await client.chat.completions.create(model="any", messages=ASKED)
    tokens = whole.usage.completion_tokens
    most = tokens + 2
    agent = await claimed(speaking, max_tokens=most)
    async with agent.openai as client:
        await client.chat.completions.create(model="any", messages=ASKED)
        raw = await client.chat.completions.with_raw_response.create(
            model="any", messages=ASKED, max_tokens=100
        )
        assert int(raw.headers["x-ajet-max-tokens"]) == 2
        assert raw.parse().choices[0].finish_reason == "length"
        with pytest.raises(openai.PermissionDeniedError, match=f"has sampled {most}") as refused:
            await client.chat.completions.create(model="any", messages=ASKED)
    assert refused.value.code == "token_limit"
    found = await status(agent)
    assert (found["limit"], found["tokens"]) == ("token_limit", most)


async def test_the_sampling_of_a_claim_replaces_that_of_requests(speaking: Agent) -> None:
    agent = await claimed(speaking, sampling={"temperature": 1.0, "max_tokens": 3})
    async with agent.openai as client, agent.anthropic as claude:
        raw = await client.chat.completions.with_raw_response.create(
            model="any", messages=ASKED, temperature=0, top_p=0.5
        )
        assert raw.headers["x-ajet-ignored"] == "temperature"
        cold = {"temperature": 0}
        await claude.messages.create(model="any", max_tokens=9, messages=ASKED, extra_body=cold)
        await client.responses.create(model="any", input="Where?", temperature=1.0)
    calls = await agent.calls()
    assert [(call.temperature, call.top_p) for call in calls] == [(1.0, 0.5), (1.0, 1.0), (1.0, 1)]
    assert [len(call.sampled_ids) for call in calls] == [3, 3, 3]
    # What was dropped is known to those who read the records.
    assert [call.metadata.get("ignored") for call in calls] == ["temperature"] * 2 + [None]


RULES: dict[str, Any] = {
    "sampling": {"temperature": 0.7},
    "max_calls": 2,
    "agents": {
        "titles": {"system": "(?i)write a .*title$", "max_tokens": 100},
        "summaries": {"tools": False, "model": "small"},
    },
    "untrained_agents": ["titles", "summaries"],
}


async def test_a_run_has_rules_for_claims_that_have_none(server: Running) -> None:
    await server.roll(rollout=RULES)
    own, ruled = await server.claim("a"), await server.claim("b", max_calls=1)
    for grant, most in ((own, 2), (ruled, 1)):
        for _ in range(most):
            await server.chat(grant, temperature=0)
        refused = await server.chat(grant)
        assert (refused.status_code, error_of(refused)["code"]) == (403, "call_limit")
        for call in await Agent(server, grant).calls():
            assert call.temperature == 0.7


async def test_calls_of_untrained_agents_are_recorded_by_name(server: Running) -> None:
    await server.roll(rollout={**RULES, "max_calls": None})
    grant = await server.claim("a")
    system = {"role": "system", "content": "Please write a short title"}
    asked = [system, ASKED[0]]
    await server.chat(grant, messages=asked, max_tokens=50)
    await server.chat(grant, messages=asked, max_tokens=500)
    await server.chat(grant, messages=ASKED, model="small")
    agent = Agent(server, grant)
    assert [call.agent for call in await agent.calls()] == ["titles", "", "summaries"]
    # The second is the agent's own.
    assert (await server.end(grant, 1.0)).status_code == 200


async def test_a_claim_adds_untrained_agents_to_those_of_the_run(server: Running) -> None:
    await server.roll(rollout={**RULES, "max_calls": None, "allow_no_calls": False})
    own = {"agents": {"names": "Invent a name"}, "untrained_agents": ["names"]}
    grant, other = await server.claim("a", **own), await server.claim("b")
    asked = [{"role": "system", "content": "Invent a name for it."}, ASKED[0]]
    for each in (grant, other):
        await server.chat(each, messages=asked)
    await server.chat(grant, messages=ASKED, model="small")
    agents = [call.agent for call in await Agent(server, grant).calls()]
    assert agents == ["names", "summaries"]
    # Neither are the claim's nor the run's side calls worth a reward.
    assert (await server.end(grant, 1.0)).status_code == 410
    assert [call.agent for call in await Agent(server, other).calls()] == [""]
    assert (await server.end(other, 1.0)).status_code == 200


@pytest.mark.parametrize(
    "rules",
    [
        {"agents": {"titles": {"system": "(a+)+$"}}},
        {"agents": {f"agent{number}": "text" for number in range(17)}},
        {"untrained_agents": [f"agent{number}" for number in range(17)]},
    ],
)
async def test_agents_of_a_claim_are_few_texts(server: Running, rules: Any) -> None:
    await server.roll()
    refused = await server.http.post("/v1/episodes", json={"task_id": "a", **rules}, headers=CLIENT)
    assert refused.status_code in (400, 422)
    assert "a claim" in error_of(refused)["message"]


async def test_an_episode_of_side_calls_alone_has_no_reward(server: Running) -> None:
    await server.roll(rollout={**RULES, "allow_no_calls": False})
    grant = await server.claim("a")
    await server.chat(grant, messages=ASKED, model="small")
    refused = await server.end(grant, 1.0)
    assert refused.status_code == 410
    assert "not trained made model calls ('summaries')" in error_of(refused)["message"]


async def test_a_rule_needs_a_valid_expression(server: Running) -> None:
    answer = await server.put_run(rollout={"agents": {"titles": {"system": "(title"}}})
    assert answer.status_code in (400, 422)
    assert "rollout.agents" in error_of(answer)["message"]
