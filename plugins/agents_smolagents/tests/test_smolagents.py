"""The adapter for smolagents, with real agents of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import smolagents_program as program
from smolagents import CodeAgent, LogLevel, MultiStepAgent, ToolCallingAgent, local_python_executor
from smolagents.local_python_executor import InterpreterError

from agentjet.agents import trainable
from agentjet.client import AsyncSwarmClient, SwarmClient
from ajet_core.timeline import Call
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import DOORS, TRAPDOOR, AgentSuite, tool_call
from ajet_testing.tutorial import run_tutorial

# The last thing said is what a tool returned, or an error: both come as a user's message.
WAS_TOLD = (
    r"(Observation|Error):((?!<\|im_start\|>).)*<\|im_end\|>\s*<\|im_start\|>assistant"
    r"\s*(<think>\s*</think>\s*)?$"
)


def answer(text: str) -> str:
    return tool_call("final_answer", f'{{"answer": "{text}"}}')


def code(text: str) -> str:
    # White space before the closing tag, at which the server stops, would be gone from what the
    # agent is told it wrote.
    return f"Thought: I write code.\n<code>\n{text}</code><|im_end|>"


# As those of the suite, but that agents answer by calling a tool.
REPLIES = (
    ScriptedReply(prompt=f"<code>.*{WAS_TOLD}", says=(code("final_answer('done')"),)),
    ScriptedReply(
        prompt="<code>.*You are the coder", says=(code("print(planner(task='Which door?'))"),)
    ),
    ScriptedReply(prompt=WAS_TOLD, says=(answer("I have looked behind it."),)),
    ScriptedReply(
        prompt=r'"name": "open_door".*t9\d\dx',
        says=(tool_call("open_door", f'{{"door": "{TRAPDOOR}"}}'),),
    ),
    ScriptedReply(
        prompt='"name": "open_door"',
        says=tuple(tool_call("open_door", f'{{"door": "{door}"}}') for door in DOORS),
    ),
    ScriptedReply(
        prompt='"name": "planner"', says=(tool_call("planner", '{"task": "Which door?"}'),)
    ),
    ScriptedReply(prompt="", says=tuple(answer(f"Take the {door} door.") for door in DOORS)),
)
ADDING = (
    ScriptedReply(prompt=WAS_TOLD, says=(answer("It is 3."),)),
    ScriptedReply(prompt="", says=(tool_call("add", '{"a": 1, "b": 2}'),)),
)


def names(calls: Sequence[Call]) -> list[str]:
    return [call.agent for call in calls]


def make_boss(**options: Any) -> ToolCallingAgent:
    return ToolCallingAgent(
        tools=[],
        managed_agents=[program.make_planner()],
        model=program.model,
        verbosity_level=LogLevel.OFF,
        max_steps=3,
        **options,
    )


def make_coder() -> CodeAgent:
    return CodeAgent(
        tools=[],
        managed_agents=[program.make_planner()],
        model=program.model,
        instructions="You are the coder.",
        name="coder",
        verbosity_level=LogLevel.OFF,
        max_steps=3,
    )


class TestSmolagents(AgentSuite):
    adapter = "smolagents"
    replies = REPLIES
    # Tool calls come back as text.
    extends = False
    # Errors are observations.
    tool_errors: Literal["told"] = "told"
    existing = program.make_worker()

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return self.existing

    async def test_managed_agents_speak_for_themselves(self, swarm: ScriptedSwarm) -> None:
        """The managing agent speaks last; without a name, it is called like its class."""
        boss = make_boss(name="boss")
        assert names(await _calls(swarm, boss.run, "t500x")) == ["boss", "planner", "boss"]
        nameless = make_boss()
        calls = await _calls(swarm, nameless.run, "t501x")
        assert names(calls) == ["ToolCallingAgent", "planner", "ToolCallingAgent"]

    async def test_plans_are_the_agents(self, swarm: ScriptedSwarm) -> None:
        """That made before the first step has no memory to speak of."""
        boss = make_boss(name="boss", planning_interval=2)
        calls = await _calls(swarm, boss.run, "t502x")
        assert names(calls) == ["boss", "boss", "planner", "boss"]

    async def test_streams_are_recorded_as_other_calls(self, swarm: ScriptedSwarm) -> None:
        """Also of two agents that take turns."""

        def streams(task: str) -> None:
            one, two = program.make_worker(), make_boss(name="boss", stream_outputs=True)
            running = [agent.run(task, stream=True) for agent in (one, two)]
            while running:
                for stream in list(running):
                    if next(stream, None) is None:
                        running.remove(stream)

        calls = await _calls(swarm, streams, "t503x")
        assert sorted(names(calls)) == ["boss", "boss", "planner", "worker", "worker"]
        for call in calls:
            assert ('"name": "open_door"' in swarm.text(call)) is (call.agent == "worker")
            assert ('"name": "planner"' in swarm.text(call)) is (call.agent == "boss")

    async def test_code_that_calls_agents(self, swarm: ScriptedSwarm) -> None:
        """In the thread in which it runs; each call extends the tokens of the last."""
        calls = await _calls(swarm, make_coder().run, "t504x")
        assert names(calls) == ["coder", "planner", "coder"]
        one, two = calls[0], calls[2]
        assert two.prompt_ids[: one.length] == one.token_ids

    async def test_one_coder_in_many_episodes(self, swarm: ScriptedSwarm) -> None:
        """Each run has its own interpreter and managed agents; the original is used in none."""
        coder = make_coder()
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(coder, client, reward=lambda task, result: 1.0)
            tasks = [f"t{i}x" for i in range(505, 517)]
            played = await asyncio.gather(*map(agent.episode, tasks))
        for one, task in zip(played, tasks, strict=True):
            calls = swarm.calls(one.episode.episode_id)
            assert names(calls) == ["coder", "planner", "coder"]
            assert all(task in swarm.text(call) for call in calls if call.agent == "coder")
        assert coder.memory.steps == []

    async def test_a_twin_remembers_nothing(self, own_adapter: Any) -> None:
        """Of what the agent was told before; and it waits for no rate limit."""
        boss = make_boss(name="boss")
        for agent in (boss, boss.managed_agents["planner"]):
            agent.memory.steps.append(agent.memory.system_prompt)
            agent.state["secret"] = 1
        twin = own_adapter.fresh(boss)
        planner = twin.managed_agents["planner"]
        for agent in (twin, planner):
            assert (agent.memory.steps, agent.state) == ([], {})
        for agent in (boss, boss.managed_agents["planner"]):
            assert len(agent.memory.steps) == len(agent.state) == 1
        assert planner is not boss.managed_agents["planner"]
        assert planner.memory is not twin.memory
        assert planner.model is twin.model is not boss.model
        assert twin.model.client is boss.model.client
        assert (twin.model.retryer.max_attempts, boss.model.retryer.max_attempts) == (1, 3)

    async def test_the_interpreter_of_a_twin_knows_nothing(self, own_adapter: Any) -> None:
        """Neither variables nor imports of earlier code: each twin has its own interpreter."""
        coder = make_coder()
        boss = make_boss(name="boss")
        coder.description = "Writes code."
        boss.managed_agents["coder"] = coder
        coder.python_executor.send_tools({})
        coder.python_executor("import math\nsecret = math.floor(7.5)\ndef told(): return secret")
        for twin in (own_adapter.fresh(coder), own_adapter.fresh(boss).managed_agents["coder"]):
            twin.python_executor.send_tools({})
            with pytest.raises(InterpreterError, match="secret"):
                twin.python_executor("print(secret)")
            with pytest.raises(InterpreterError, match="told"):
                twin.python_executor("print(told())")
            twin.python_executor("secret = 8")
        assert coder.python_executor("told()").output == 7

    async def test_a_model_is_trained_without_an_agent(self, swarm: ScriptedSwarm) -> None:
        """Nobody asks it, also after agents have run."""

        def asks(task: str) -> object:
            program.make_planner().run(task)
            return program.model.generate([{"role": "user", "content": task}])

        assert names(await _calls(swarm, asks, "t520x")) == ["planner", ""]

    async def test_wrapping_twice_changes_nothing(self, own_adapter: Any) -> None:
        """And outside of episodes nobody speaks."""
        await asyncio.gather(*(asyncio.to_thread(own_adapter.prepare) for _ in range(8)))
        before = MultiStepAgent.run, local_python_executor.ThreadPoolExecutor
        own_adapter.prepare()
        assert before == (MultiStepAgent.run, local_python_executor.ThreadPoolExecutor)
        program.make_worker().write_memory_to_messages()
        assert own_adapter.current_agent() is None


async def _calls(swarm: ScriptedSwarm, play: Callable[[str], object], task: str) -> list[Call]:
    def plays(task: str) -> object:
        return play(task)

    with SwarmClient(swarm.url, swarm.token) as client:
        program = trainable(plays, client, reward=lambda task, result: 1.0)
        played = await asyncio.to_thread(program.episode, task)
    return swarm.calls(played.episode.episode_id)


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path, REPLIES)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch, ADDING)
