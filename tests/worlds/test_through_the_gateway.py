"""Worlds on a real server with the official SDK; the model answers like the expert."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from agentjet.client import AsyncSwarmClient, RunnerReport
from ajet_core.interfaces import World
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent
from ajet_worlds.demonstrations import assistant_turn
from ajet_worlds.rehearsal import RehearsedCall, rehearse

pytestmark = pytest.mark.processes

pytest.importorskip("openai")

ANSWER_FOLLOWS = r"(\n</tool_response>)?<\|im_end\|>\s*<\|im_start\|>assistant\s*$"
SEED = 0


def reply(exchange: RehearsedCall) -> ScriptedReply:
    """The answer to this prompt, recognised by the contents of its messages in their order."""
    contents = [re.escape(m["content"]) for m in exchange.prompt.messages if m["content"]]
    return ScriptedReply(
        prompt=".*".join(contents) + ANSWER_FOLLOWS, says=(assistant_turn(exchange.answer),)
    )


def script(world: World, tasks: list[str]) -> list[ScriptedReply]:
    """What the expert says; the longest conversations first, because they contain the others."""
    played = [rehearse(world, task, world.expert, random.Random(task)) for task in tasks]
    exchanges = [exchange for rehearsal in played for exchange in rehearsal.exchanges]
    exchanges.sort(key=lambda exchange: -len(exchange.prompt.messages))
    return list(dict.fromkeys(map(reply, exchanges)))


async def roll_out(world: World, swarm: ScriptedSwarm, tasks: list[str]) -> RunnerReport:
    agent = WorldAgent(world)
    async with AsyncSwarmClient(swarm.url, swarm.token) as client:
        report = await client.run_episodes_until_all_complete(
            tasks, agent, episodes_per_task=2, concurrency=4, retries=0
        )
    await agent.close()
    return report


@pytest.mark.parametrize("name", ["bandit", "grid", "memory", "mine", "pair"])
def test_what_the_expert_says_succeeds_on_a_real_server(name: str, tmp_path: Path) -> None:
    world = load_world(name)
    tasks = world.task_ids("train", SEED, 2)
    with ScriptedSwarm(tmp_path, script(world, tasks)) as swarm:
        report = asyncio.run(roll_out(world, swarm, tasks))
        assert not report.failures
        assert [r.outcome.components["success"] for r in report.outcomes] == [1.0] * 4
        least, most = world.reward_range
        for result in report.outcomes:
            assert least <= result.outcome.reward <= most
            calls = swarm.calls(result.episode.episode_id)
            expected = rehearse(world, result.task.id, world.expert, random.Random(result.task.id))
            assert [call.agent or "" for call in calls] == [
                exchange.prompt.agent for exchange in expected.exchanges
            ]
