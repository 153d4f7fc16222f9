"""The adapter for LlamaIndex, with real agents and workflows of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Literal

import llamaindex_program as program
import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.llms import ChatMessage
from workflows import Workflow, step
from workflows.events import StartEvent, StopEvent

from agentjet.agents import Adapters, train, trainable
from agentjet.client import AsyncSwarmClient, SwarmClient
from ajet_core.timeline import Call
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import LAST_IS_TOOL, REPLIES, AgentSuite, tool_call
from ajet_testing.tutorial import run_tutorial

HANDING_OVER = (
    # Who was given the task opens a door.
    ScriptedReply(
        prompt=f"now handling the request((?!</tool_response>).)*{LAST_IS_TOOL}",
        says=(tool_call("open_door", '{"door": "left"}'),),
    ),
    REPLIES[0],
    ScriptedReply(prompt='"name": "ask_planner"', says=(tool_call("ask_planner", "{}"),)),
    # Who can give the task away and cannot open doors gives it away.
    ScriptedReply(
        prompt='^(?!.*"name": "open_door").*"name": "handoff"',
        says=(tool_call("handoff", '{"to_agent": "worker", "reason": "it has hands"}'),),
    ),
    ScriptedReply(prompt="Thought: ", says=("Thought: I know.\nAnswer: the left door.<|im_end|>",)),
    *REPLIES[1:],
)


def names(calls: Sequence[Call]) -> list[str]:
    return [call.agent for call in calls]


class TestLlamaIndex(AgentSuite):
    adapter = "llamaindex"
    replies = HANDING_OVER
    # A tool's exception is its output.
    tool_errors: Literal["told"] = "told"

    async def play(self, task: str) -> object:
        return await program.play(task)

    def worker(self) -> object:
        return program.worker

    async def test_agents_that_hand_over(self, swarm: ScriptedSwarm) -> None:
        """Each speaks in its own steps of one workflow."""
        planner = FunctionAgent(
            name="planner", description="Plans.", llm=program.llm, can_handoff_to=["worker"]
        )
        team = AgentWorkflow(agents=[planner, program.worker], root_agent="planner")
        calls = await self.calls_of(swarm, lambda task: team.run(user_msg=task), "t500x")
        assert names(calls) == ["planner", "worker", "worker"]

    async def test_a_team_is_trained_as_it_is(self, swarm: ScriptedSwarm) -> None:
        """In several episodes at once."""
        planner = FunctionAgent(
            name="planner", description="Plans.", llm=program.llm, can_handoff_to=["worker"]
        )
        team = AgentWorkflow(agents=[planner, program.worker], root_agent="planner")
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(team, client, reward=lambda task, result: 1.0)
            played = await asyncio.gather(*map(agent.episode, ["t501x", "t502x", "t503x"]))
        for one in played:
            calls = swarm.calls(one.episode.episode_id)
            assert names(calls) == ["planner", "worker", "worker"]

    async def test_an_agent_in_a_tool_of_another_is_itself(self, swarm: ScriptedSwarm) -> None:
        """And so is the other one afterwards."""

        async def ask_planner() -> str:
            """Ask."""
            return str(await program.planner.run(user_msg="Which door?"))

        boss = FunctionAgent(name="boss", tools=[ask_planner], llm=program.llm)
        calls = await self.calls_of(swarm, lambda task: boss.run(user_msg=task), "t504x")
        assert names(calls) == ["boss", "planner", "boss"]

    async def test_agents_of_other_kinds(self, swarm: ScriptedSwarm) -> None:
        """Those that do not stream, and those that think in texts."""
        still = FunctionAgent(name="still", llm=program.llm, streaming=False)
        calls = await self.calls_of(swarm, lambda task: still.run(user_msg=task), "t505x")
        assert names(calls) == ["still"]
        thinker = ReActAgent(name="thinker", tools=[program.open_door], llm=program.llm)
        calls = await self.calls_of(swarm, lambda task: thinker.run(user_msg=task), "t506x")
        assert names(calls) == ["thinker"]

    async def test_the_last_word_after_too_many_steps(self, swarm: ScriptedSwarm) -> None:
        """Is the agent's."""

        def run(task: str) -> Awaitable[object]:
            return program.worker.run(
                user_msg=task, max_iterations=1, early_stopping_method="generate"
            )

        calls = await self.calls_of(swarm, run, "t507x")
        assert set(names(calls)) == {"worker"}

    async def test_steps_of_a_workflow_are_named(self, swarm: ScriptedSwarm) -> None:
        """Where no agent is; sync steps run in threads."""

        class Flow(Workflow):
            @step
            async def think(self, event: StartEvent) -> StopEvent:
                said = await program.llm.achat([ChatMessage(content=event.get("question"))])
                return StopEvent(result=said.message.content)

        class Blocking(Workflow):
            @step
            def ponder(self, event: StartEvent) -> StopEvent:
                said = program.llm.chat([ChatMessage(content=event.get("question"))])
                return StopEvent(result=said.message.content)

        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            for flow, name in (Flow(), "think"), (Blocking(), "ponder"):
                agent = trainable(
                    flow, client, reward=lambda task, text: 1.0, task_id=lambda task: "t508x"
                )
                played = await agent.episode({"question": "t508x"})
                assert names(swarm.calls(played.episode.episode_id)) == [name]

    async def test_a_model_is_trained_without_an_agent(self, swarm: ScriptedSwarm) -> None:
        """Nobody asks it, also after agents have run."""

        async def asks(task: str) -> object:
            await program.planner.run(user_msg=task)
            return await program.llm.acomplete(task)

        calls = await self.calls_of(swarm, asks, "t509x")
        assert names(calls) == ["planner", ""]

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

    async def test_it_listens_once(self, own_adapter: Any) -> None:
        """However often it is prepared, and hears nothing outside of episodes."""
        before = len(get_dispatcher().span_handlers)
        await asyncio.gather(*(asyncio.to_thread(own_adapter.prepare) for _ in range(8)))
        after = len(get_dispatcher().span_handlers)
        await asyncio.to_thread(Adapters().of(program.worker).prepare)
        assert before <= after == len(get_dispatcher().span_handlers) <= before + 1

        class Listens(Workflow):
            @step
            async def look(self, event: StartEvent) -> StopEvent:
                return StopEvent(result=own_adapter.current_agent())

        assert await Listens().run() is None


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
