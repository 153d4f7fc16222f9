"""The agent over the real OpenAI SDK, against a scripted endpoint."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request

from agentjet.client import Episode, EpisodeOutcome, Task
from ajet_demo.agent import GridWalkAgent
from ajet_worlds.gridwalk import TOOLS, GridWalk

openai = pytest.importorskip("openai")
HTTP = importlib.import_module("httpx" if openai.__version__.startswith("2.") else "httpx2")

Policy = Callable[[str, str], list[tuple[str, str]]]
"""From a task id and the last message to the tool calls of the answer."""


class Endpoint:
    """An OpenAI-compatible endpoint; the key says which task a request belongs to."""

    def __init__(self, policy: Policy) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.app = FastAPI()

        @self.app.post("/v1/chat/completions")
        async def complete(request: Request) -> dict[str, Any]:
            body = await request.json()
            key = request.headers["authorization"].removeprefix("Bearer ")
            self.requests.append(body)
            self.keys.append(key)
            calls = policy(key.removeprefix("key-of-"), body["messages"][-1]["content"])
            message: dict[str, Any] = {
                "role": "assistant",
                "content": None if calls else "I give up",
            }
            if calls:
                message["tool_calls"] = [
                    {
                        "id": f"call-{i}",
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }
                    for i, (name, arguments) in enumerate(calls)
                ]
            return {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls" if calls else "stop",
                        "message": message,
                    }
                ],
            }

    def agent(self) -> GridWalkAgent:
        client = HTTP.AsyncClient(transport=HTTP.ASGITransport(app=self.app))
        return GridWalkAgent(0.5, http_client=client)


def episode(task_id: str) -> Episode:
    return Episode(
        episode_id=f"ep-{task_id}",
        task_id=task_id,
        group=task_id,
        kind="train",
        base_url="http://swarm.test/v1",
        api_key=f"key-of-{task_id}",
        model="gridwalk-tiny",
        policy_version=0,
        lease_seconds=600,
    )


def move(direction: str) -> tuple[str, str]:
    return "move", json.dumps({"direction": direction})


def towards(observation: str) -> str:
    """The direction that the observation names first."""
    return observation.removeprefix("goal is ").split()[1]


async def roll(endpoint: Endpoint, task_id: str = "t") -> EpisodeOutcome:
    agent = endpoint.agent()
    outcome = await agent(Task(task_id), episode(task_id))
    await agent.close()
    return outcome


async def test_it_walks_to_the_goal_by_what_it_is_told() -> None:
    endpoint = Endpoint(lambda _, last: [move(towards(last))])
    outcome = await roll(endpoint)
    assert outcome.reward == 1.0
    assert outcome.components == {
        "success": 1.0,
        "invalid": 0.0,
        "moves": float(len(endpoint.requests)),
    }


async def test_what_it_sends() -> None:
    endpoint = Endpoint(lambda _, last: [move(towards(last))])
    await roll(endpoint)
    first, second = endpoint.requests[:2]
    assert first["model"] == "gridwalk-tiny"
    assert first["temperature"] == 0.5
    assert first["tools"] == TOOLS
    assert first["messages"] == GridWalk("t").messages()
    assert second["messages"][:2] == first["messages"]
    answer, reply = second["messages"][2:]
    assert answer["tool_calls"][0]["function"]["name"] == "move"
    assert reply["role"] == "tool"
    assert reply["tool_call_id"] == answer["tool_calls"][0]["id"]


@pytest.mark.parametrize("calls", [[], [("jump", "{}")], [("move", "{broken")]])
async def test_an_unusable_answer_ends_the_episode(calls: list[tuple[str, str]]) -> None:
    endpoint = Endpoint(lambda *_: calls)
    outcome = await roll(endpoint)
    assert outcome.reward == -0.5
    assert outcome.components["invalid"] == 1.0
    assert len(endpoint.requests) == 1


async def test_several_calls_in_one_answer_are_all_made() -> None:
    endpoint = Endpoint(lambda *_: [move("up")] * 8)
    outcome = await roll(endpoint, "t")
    assert outcome.components["moves"] <= 6
    assert len(endpoint.requests) == 1


async def test_concurrent_episodes_share_connections_and_keep_their_keys() -> None:
    endpoint = Endpoint(lambda _, last: [move(towards(last))])
    agent = endpoint.agent()
    ids = [f"task-{n}" for n in range(20)]
    outcomes = await asyncio.gather(*(agent(Task(i), episode(i)) for i in ids))
    await agent.close()
    assert [o.reward for o in outcomes] == [1.0] * 20
    starts = {
        key: request["messages"][1]["content"]
        for key, request in zip(endpoint.keys, endpoint.requests, strict=True)
    }
    assert starts == {f"key-of-{i}": GridWalk(i).observation() for i in ids}


async def test_by_default_it_makes_its_own_client_and_closes_it() -> None:
    agent = GridWalkAgent()
    own = agent._openai
    assert not own.is_closed()
    await agent.close()
    assert own.is_closed()
