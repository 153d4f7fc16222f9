"""The walk of two, over the real OpenAI SDK, against scripted endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request
from test_agent import HTTP

from agentjet.client import Episode, EpisodeOutcome, SwarmEpisode, Task
from ajet_demo.relay import EXECUTOR, PLANNER, RelayAgent
from ajet_worlds.gridwalk import GridWalk

Speak = Callable[[str], str | None]
"""From a side's view to the direction that its model answers with; None for no direction."""


class Endpoint:
    """Both models; the key says which of them is asked."""

    def __init__(self, planner: Speak, executor: Speak) -> None:
        self.app = FastAPI()
        self.seen: list[tuple[str, list[str]]] = []

        @self.app.post("/v1/chat/completions")
        async def complete(request: Request) -> dict[str, Any]:
            body = await request.json()
            role = request.headers["authorization"].removeprefix("Bearer key-of-")
            texts = [message["content"] for message in body["messages"]]
            self.seen.append((role, texts))
            said = {PLANNER: planner, EXECUTOR: executor}[role](texts[-1])
            arguments = json.dumps({"direction": said})
            call = {
                "id": "call",
                "type": "function",
                "function": {"name": "move", "arguments": arguments},
            }
            return {
                "id": f"{role}-{len(self.seen)}",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls",
                        "message": {
                            "role": "assistant",
                            "content": None if said else "hm",
                            "tool_calls": [call] if said else None,
                        },
                    }
                ],
            }

    def walk(self, task_id: str = "1") -> dict[str, EpisodeOutcome]:
        """What becomes of a task."""
        client = HTTP.AsyncClient(transport=HTTP.ASGITransport(app=self.app))
        agent = RelayAgent(http_client=client)

        async def run() -> dict[str, EpisodeOutcome]:
            try:
                return await agent(Task(task_id), episode(task_id))
            finally:
                await agent.close()

        return asyncio.run(run())


def episode(task_id: str) -> SwarmEpisode:
    parts = {
        role: Episode(
            episode_id=f"{role}-part",
            task_id=task_id,
            group=task_id,
            kind="train",
            base_url="http://swarm.test/v1",
            api_key=f"key-of-{role}",
            model="tiny",
            policy_version=0,
            lease_seconds=60.0,
        )
        for role in (EXECUTOR, PLANNER)
    }
    return SwarmEpisode(task_id=task_id, joint_id="j" * 32, parts=parts)


def towards(sees: str) -> str:
    """The last direction of an observation."""
    return sees.rpartition(" ")[2]


def test_two_that_do_their_parts_reach_the_goal() -> None:
    endpoint = Endpoint(towards, towards)
    outcomes = endpoint.walk()
    moves = len(endpoint.seen) // 2
    for role in (PLANNER, EXECUTOR):
        assert (outcomes[role].reward, outcomes[role].components) == (1.0, {"success": 1.0})
        assert list(outcomes[role].call_rewards.values()) == [1.0] * moves
        assert all(call.startswith(role) for call in outcomes[role].call_rewards)


def test_the_executor_sees_the_planners_word_and_nothing_else() -> None:
    endpoint = Endpoint(towards, towards)
    endpoint.walk()
    goal = GridWalk("1").observation()
    (_, planner), (_, executor) = endpoint.seen[:2]
    assert planner == ["Walk to the goal.", goal]
    assert executor == ["Walk to the goal.", f"goal is 1 {towards(goal)}"]


def test_an_executor_that_goes_elsewhere_is_to_blame_and_the_planner_is_not() -> None:
    opposite = {"up": "down", "down": "up", "left": "right", "right": "left"}
    outcomes = Endpoint(towards, lambda sees: opposite[towards(sees)]).walk()
    assert outcomes[EXECUTOR].reward == 0.0
    assert set(outcomes[EXECUTOR].call_rewards.values()) == {0.0}
    assert set(outcomes[PLANNER].call_rewards.values()) == {1.0}
    assert outcomes[PLANNER].components == {"success": 0.0}


@pytest.mark.parametrize(
    ("planner", "executor", "blamed"),
    [(lambda _: None, towards, PLANNER), (towards, lambda _: None, EXECUTOR)],
)
def test_an_answer_without_a_direction_ends_the_walk(
    planner: Speak, executor: Speak, blamed: str
) -> None:
    outcomes = Endpoint(planner, executor).walk()
    assert {role: outcome.reward for role, outcome in outcomes.items()} == {
        PLANNER: 0.0,
        EXECUTOR: 0.0,
        blamed: -0.5,
    }
