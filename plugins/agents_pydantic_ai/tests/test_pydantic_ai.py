"""The adapter for Pydantic AI, with real agents of it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pydantic_ai_program as program
import pytest
from pydantic_ai import Agent, ModelRequest, ModelRetry
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.direct import model_request

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
    ScriptedReply(prompt='"name": "ask_planner"', says=(tool_call("ask_planner", "{}"),)),
    *REPLIES[1:],
)
"""Besides, the agent that can ask the planner does so."""


def names(calls: list[Call]) -> list[str]:
    return [call.agent for call in calls]


class TestPydanticAI(AgentSuite):
    adapter = "pydantic-ai"
    replies = ASKING

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return program.worker

    async def test_an_agent_in_a_tool_of_another_is_itself(self, swarm: ScriptedSwarm) -> None:
        """And so is the other one afterwards."""
        boss = Agent(program.model, name="boss")

        @boss.tool_plain
        async def ask_planner() -> str:
            return (await program.planner.run("Which door?")).output

        assert names(await self.calls_of(swarm, boss.run, "t500x")) == [
            "boss",
            "planner",
            "boss",
        ]

    async def test_streams_are_recorded_as_other_calls(self, swarm: ScriptedSwarm) -> None:
        """Of texts, and of all steps of a run."""

        async def streams(task: str) -> object:
            async with program.planner.run_stream(task) as stream:
                plan = "".join([text async for text in stream.stream_text(delta=True)])
            async with program.worker.run_stream_events(f"{task} {plan}") as events:
                async for _ in events:
                    pass
            return plan

        assert names(await self.calls_of(swarm, streams, "t501x")) == [
            "planner",
            "worker",
            "worker",
        ]

    async def test_names_for_the_time_being(self, swarm: ScriptedSwarm) -> None:
        """``override`` says another name; who wraps an agent is called like it."""

        async def renamed(task: str) -> object:
            with program.planner.override(name="strategist"):
                await program.planner.run(task)
            return await WrapperAgent(program.planner).run(task)

        assert names(await self.calls_of(swarm, renamed, "t502x")) == ["strategist", "planner"]

    async def test_an_agent_without_a_name_is_not_given_one(self, swarm: ScriptedSwarm) -> None:
        """By this package's variables."""
        nameless = Agent(program.model)
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(nameless, client, reward=lambda task, result: 1.0)
            played = await agent.episode("t509x")
        assert len(swarm.calls(played.episode.episode_id)) == 1
        assert nameless.name is None

    async def test_a_model_is_trained_without_an_agent(self, swarm: ScriptedSwarm) -> None:
        """Who asks it directly is nobody."""

        async def asks(task: str) -> object:
            return await model_request(program.model, [ModelRequest.user_text_prompt(task)])

        speakers = names(await self.calls_of(swarm, asks, "t503x"))
        assert speakers == [""]

    async def test_answers_that_do_not_fit_are_recorded(self, swarm: ScriptedSwarm) -> None:
        """Asking again is a call as any other, of the same agent, and extends the one before."""

        agent = Agent(program.model, name="answerer", retries=40)

        @agent.output_validator
        def wants_the_left_door(output: str) -> str:
            if "left" not in output:
                raise ModelRetry("Not that one.")
            return output

        most = 0
        for i in range(8):
            calls = await self.calls_of(swarm, agent.run, f"t51{i}x")
            assert {call.agent for call in calls} == {"answerer"}
            for one, two in pairwise(calls):
                assert two.prompt_ids[: one.length] == one.token_ids
            most = max(most, len(calls))
        assert most > 1

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


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
