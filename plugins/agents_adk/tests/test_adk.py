"""The adapter for Google's ADK, with real agents of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adk_program as program
import pytest
from google.adk.agents import LlmAgent, ParallelAgent, RunConfig, SequentialAgent
from google.adk.agents.run_config import StreamingMode
from google.adk.models import Gemini
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from ajet_core.interfaces import AgentAdapter
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import (
    PLANNER,
    REPLIES,
    WORKER,
    AgentSuite,
    open_telemetry_spans,
    tool_call,
)
from ajet_testing.tutorial import run_tutorial

WHOM_TO_ASK = (
    ScriptedReply(
        prompt="only pass on",
        says=(tool_call("transfer_to_agent", '{"agent_name": "worker"}'),),
    ),
    ScriptedReply(
        prompt=r'"name": "planner"', says=(tool_call("planner", '{"request": "Which door?"}'),)
    ),
)


class TestADK(AgentSuite):
    adapter = "google-adk"
    traces = True
    replies = (REPLIES[0], *WHOM_TO_ASK, *REPLIES[1:])

    async def play(self, task: str) -> object:
        return await program.play(task)

    def worker(self) -> object:
        return program.worker

    async def test_models_of_other_providers_are_swapped(self, swarm: ScriptedSwarm) -> None:
        """Gemini by name, by object, by default and by LiteLLM, and Claude."""
        models: list[Any] = [
            "gemini-2.5-flash",
            Gemini(model="gemini-2.5-pro"),
            "",
            LiteLlm(model="gemini/gemini-2.5-pro"),
            LiteLlm(model="anthropic/claude-sonnet-4-5", max_tokens=64),
        ]
        for model in models:
            agent = program.worker.clone(update={"model": model})
            assert await self.speakers(swarm, agent) == [WORKER, WORKER]

    async def test_sub_agents_are_themselves(self, swarm: ScriptedSwarm) -> None:
        """One after another, at the same time, and after a transfer."""
        in_order = SequentialAgent(
            name="both", sub_agents=[program.planner.clone(), program.worker.clone()]
        )
        assert await self.speakers(swarm, in_order) == [PLANNER, WORKER, WORKER]
        names = ["one", "two", "three"]
        at_once = ParallelAgent(
            name="all", sub_agents=[program.planner.clone({"name": name}) for name in names]
        )
        for calls in await self.calls(swarm, at_once):
            assert sorted(call.agent for call in calls) == sorted(names)
        boss = LlmAgent(
            name="boss",
            model="gemini-2.5-flash",
            instruction="You only pass on what you are asked.",
            sub_agents=[
                program.worker.clone(
                    {"disallow_transfer_to_parent": True, "disallow_transfer_to_peers": True}
                )
            ],
        )
        assert await self.speakers(swarm, boss) == ["boss", WORKER, WORKER]

    async def test_an_agent_as_a_tool_is_itself(self, swarm: ScriptedSwarm) -> None:
        boss = LlmAgent(name="boss", model=program.model, tools=[AgentTool(program.planner)])
        assert await self.speakers(swarm, boss) == ["boss", PLANNER, "boss"]

    async def test_streams_are_recorded_as_other_calls(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter
    ) -> None:
        current: list[str | None] = []

        async def streams(task: str) -> None:
            async with InMemoryRunner(agent=program.worker, app_name="doors") as runner:
                session = await runner.session_service.create_session(
                    app_name="doors", user_id="me"
                )
                async for _ in runner.run_async(
                    user_id="me",
                    session_id=session.id,
                    new_message=types.UserContent(parts=[types.Part(text=task)]),
                    run_config=RunConfig(streaming_mode=StreamingMode.SSE),
                ):
                    current.append(own_adapter.current_agent())

        for calls in await self.calls(swarm, streams):
            assert [call.agent for call in calls] == [WORKER, WORKER]
            self.assert_extended(calls)
        assert set(current) == {None}

    async def test_clones_share_nothing_that_changes(self, own_adapter: AgentAdapter) -> None:
        team = SequentialAgent(name="both", sub_agents=[program.worker.clone()])
        twin = own_adapter.fresh(team)
        assert isinstance(twin, SequentialAgent)
        assert twin.sub_agents[0] is not team.sub_agents[0]
        assert twin.sub_agents[0].tools == team.sub_agents[0].tools

    async def test_contents_are_a_task(self, swarm: ScriptedSwarm) -> None:
        message = types.UserContent(parts=[types.Part(text="t500x")])
        assert await self.speakers(swarm, program.worker, message) == [WORKER, WORKER]

    async def test_spans_of_the_program_around_agents_are_kept(self, swarm: ScriptedSwarm) -> None:
        """Only ADK's own are not made."""
        from opentelemetry import trace

        async def play(task: str) -> object:
            with trace.get_tracer("of the program").start_as_current_span("mine"):
                return await program.play(task)

        with open_telemetry_spans() as spans:
            await self.calls(swarm, play, "t501x")
        mine = [span for span in spans if '"name": "mine"' in span]
        assert len(mine) == 4
        # That of the client's rollout.
        others = {span for span in spans if '"name": "rollout"' not in span}
        assert others == {*mine}


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
