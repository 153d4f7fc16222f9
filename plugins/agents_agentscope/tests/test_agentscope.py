"""The adapter for AgentScope, with real agents of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import agentscope_program as program
import pytest
from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.pipeline import TeamMember, TeamPipeline
from agentscope.tool import FunctionTool

from agentjet.agents import train, trainable
from agentjet.client import AsyncSwarmClient, SwarmClient
from ajet_core.timeline import Call
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import REPLIES, AgentSuite, tool_call
from ajet_testing.tutorial import run_tutorial

ASKING = (
    REPLIES[0],
    ScriptedReply(
        prompt='"name": "TeamAssign"',
        says=(tool_call("TeamAssign", '{"member": "planner", "prompt": "Which door?"}'),),
    ),
    *REPLIES[1:],
)


def names(calls: Sequence[Call]) -> list[str]:
    return [call.agent for call in calls]


def make_team() -> TeamPipeline:
    leader = program.make("leader", "Ask the planner.")
    return TeamPipeline(leader, [TeamMember(agent=program.make_planner(), description="Plans.")])


class TestAgentScope(AgentSuite):
    adapter = "agentscope"
    replies = ASKING
    # The model is told errors of tools.
    tool_errors: Literal["told"] = "told"
    existing = program.make_worker()

    async def play(self, task: str) -> object:
        return await program.play(task)

    def worker(self) -> object:
        return self.existing

    async def test_members_of_a_team_speak_for_themselves(self, swarm: ScriptedSwarm) -> None:
        """And the leader before and after them."""

        async def plays(task: str) -> None:
            async for _ in make_team().reply_stream(UserMsg(name="user", content=task)):
                pass

        calls = await self.calls_of(swarm, plays, "t500x")
        assert names(calls) == ["leader", "planner", "leader"]

    async def test_one_team_in_many_episodes(self, swarm: ScriptedSwarm) -> None:
        """None of which it remembers; its answer is the leader's."""
        team = make_team()
        tasks = [f"t{i}x" for i in range(501, 509)]
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(team, client, reward=lambda task, result: 1.0)
            played = await asyncio.gather(*map(agent.episode, tasks))
        for one, task in zip(played, tasks, strict=True):
            calls = swarm.calls(one.episode.episode_id)
            assert names(calls) == ["leader", "planner", "leader"]
            assert all(task in swarm.text(call) for call in calls if call.agent == "leader")
            assert one.result.get_text_content() == "I have looked behind it."
        assert team.leader.state.context == []

    async def test_a_twin_remembers_nothing(self, own_adapter: Any) -> None:
        """It has the class and middlewares, and repeats no request that the SDK has repeated."""

        class Quiet(MiddlewareBase):
            async def on_model_call(
                self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Any
            ) -> Any:
                return await next_handler(**input_kwargs)

        class Loud(Agent):
            volume = 0

        old = Loud("loud", "Shout.", program.model, middlewares=[Quiet()])
        old.volume = 11
        await old.observe(UserMsg(name="user", content="Hear!"))
        old.state.permission_context.allow_rules["open_door"] = []
        twin = own_adapter.fresh(old)
        assert (type(twin), twin.name, twin.volume) == (Loud, "loud", 11)
        assert (twin.state.context, len(old.state.context)) == ([], 1)
        assert twin.state.permission_context == old.state.permission_context
        assert twin.state.permission_context is not old.state.permission_context
        assert twin._model_call_middlewares == old._model_call_middlewares != []
        assert (twin.model.max_retries, old.model.max_retries) == (0, 3)
        assert await twin._get_system_prompt() == await old._get_system_prompt()

    async def test_streams_are_recorded_as_other_calls(self, swarm: ScriptedSwarm) -> None:
        """Also of two agents that take turns."""

        async def streams(task: str) -> None:
            heard = UserMsg(name="user", content=task)
            agents = program.make_worker(), program.make_planner()
            running = [agent.reply_stream(heard) for agent in agents]
            while running:
                for stream in list(running):
                    if await anext(stream, None) is None:
                        running.remove(stream)

        calls = await self.calls_of(swarm, streams, "t510x")
        assert sorted(names(calls)) == ["planner", "worker", "worker"]
        for call in calls:
            assert ('"name": "open_door"' in swarm.text(call)) is (call.agent == "worker")

    async def test_what_compresses_a_conversation_is_the_agents(self, swarm: ScriptedSwarm) -> None:
        """Whether or not a summary comes of it."""

        async def compresses(task: str) -> None:
            agent = program.make_planner()
            for _ in range(3):
                await agent.reply(UserMsg(name="user", content=task))
            changes = {"trigger_ratio": 0.0002, "reserve_ratio": 0.0001}
            config = agent.context_config.model_copy(update=changes)
            await agent.compress_context(context_config=config)

        calls = await self.calls_of(swarm, compresses, "t511x")
        assert len(calls) > 3
        assert set(names(calls)) == {"planner"}

    async def test_a_model_is_trained_without_an_agent(self, swarm: ScriptedSwarm) -> None:
        """Nobody asks it, also after agents have run."""

        async def asks(task: str) -> None:
            await program.make_planner().reply(UserMsg(name="user", content=task))
            async for _ in await program.model([UserMsg(name="user", content=task)]):
                pass

        assert names(await self.calls_of(swarm, asks, "t512x")) == ["planner", ""]

    async def test_an_episode_that_is_given_up_is_not_answered(self, swarm: ScriptedSwarm) -> None:
        """By a text that no model wrote."""
        inside = asyncio.Event()

        async def open_door(door: str) -> str:
            inside.set()
            await asyncio.Event().wait()
            return door

        decision = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="allowed")
        stuck = program.make("stuck", "Open it.", FunctionTool(open_door, permission=decision))
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(stuck, client, reward=lambda task, result: 1.0)
            playing = asyncio.create_task(agent.episode("t513x"))
            await inside.wait()
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing

    async def test_one_model_in_many_event_loops(self, swarm: ScriptedSwarm) -> None:
        """Each call of ``asyncio.run`` has its own, one after another and in threads."""
        with SwarmClient(swarm.url, swarm.token) as client:
            report = await asyncio.to_thread(
                train,
                trainable(
                    lambda task: asyncio.run(program.play(task)), reward=lambda task, result: 1.0
                ),
                [f"t{i}x" for i in range(520, 530)],
                client=client,
                episodes_per_task=2,
                concurrency=4,
                retries=0,
                progress=False,
            )
        assert [str(failure.error) for failure in report.failures] == []

    async def test_wrapping_twice_changes_nothing(self, own_adapter: Any) -> None:
        await asyncio.gather(*(asyncio.to_thread(own_adapter.prepare) for _ in range(8)))
        before = Agent._call_model, Agent._compress_context_impl
        own_adapter.prepare()
        assert before == (Agent._call_model, Agent._compress_context_impl)


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
