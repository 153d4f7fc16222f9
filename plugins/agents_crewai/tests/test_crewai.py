"""The adapter for CrewAI, with real crews and agents of it."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import crewai_program as program
import pytest
from crewai import Agent, Crew, Process, Task
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.telemetry import Telemetry
from crewai.tools import tool
from openai import OpenAI

from agentjet.agents import Route, trainable
from agentjet.client import AsyncSwarmClient
from agentjet.client import Task as ClientTask
from ajet_core.errors import ConfigError
from ajet_core.interfaces import AgentAdapter
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import PLANNER, REPLIES, WORKER, AgentSuite, tool_call
from ajet_testing.tutorial import run_tutorial

# CrewAI reads fields of its own that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BOSS = "boss"
NUMBERS = count(600)
TO_DELEGATE = '{"task": "look", "context": "a house", "coworker": "worker"}'
WHOM_TO_ASK = (
    ScriptedReply(
        prompt='"name": "delegate_work_to_coworker"',
        says=(tool_call("delegate_work_to_coworker", TO_DELEGATE),),
    ),
    ScriptedReply(prompt='"name": "ask_model"', says=(tool_call("ask_model", "{}"),)),
)


def make_agent(role: str, **options: Any) -> Agent:
    return Agent(
        role=role, goal="Find gold.", backstory="You are rich.", llm=program.llm, **options
    )


def make_crew(agents: list[Agent], *doing: Agent, **options: Any) -> Crew:
    """With a task for each of `doing`."""
    tasks = [Task(description="{task}", expected_output="Gold.", agent=agent) for agent in doing]
    return Crew(agents=agents, tasks=tasks, **options)


class TestCrewAI(AgentSuite):
    adapter = "crewai"
    # CrewAI gives the error to the model as the tool's answer.
    tool_errors = "told"
    # An agent does its task again after any error, max_retry_limit times, which is 2 unless the
    # program says otherwise.
    dead_requests = 3
    replies = (REPLIES[0], *WHOM_TO_ASK, *REPLIES[1:])

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return program.worker

    # --- Names ------------------------------------------------------------------------------------

    async def test_threads_of_a_crew_belong_to_its_episode(self, swarm: ScriptedSwarm) -> None:
        spoken = [PLANNER, WORKER, WORKER]
        assert await self.speakers(swarm, program.play_in_threads) == spoken

    async def test_an_agent_without_a_crew_has_a_name(self, swarm: ScriptedSwarm) -> None:
        """In each way to kick it off; in an event loop, `kickoff` returns an awaitable."""

        async def by_kickoff(task: str) -> None:
            waiting: Any = program.worker.copy().kickoff(task)
            await waiting

        async def by_kickoff_async(task: str) -> None:
            await program.worker.copy().kickoff_async(task)

        async def by_akickoff(task: str) -> None:
            await program.worker.copy().akickoff(task)

        async def in_a_thread(task: str) -> None:
            await asyncio.to_thread(program.worker.copy().kickoff, task)

        for play in (by_kickoff, by_kickoff_async, by_akickoff, in_a_thread):
            assert await self.speakers(swarm, play) == [WORKER, WORKER]

    async def test_agents_of_a_class_of_its_own_are_no_hindrance(
        self, swarm: ScriptedSwarm
    ) -> None:
        """A crew can contain agents of other frameworks, which lack some ways to kick them off."""

        class Caller(BaseAgent):
            def execute_task(self, task: Any, context: Any = None, tools: Any = None) -> str:
                return str(program.llm.call(task.description))

            async def aexecute_task(self, task: Any, context: Any = None, tools: Any = None) -> str:
                return str(await program.llm.acall(task.description))

            def create_agent_executor(self, tools: Any = None) -> None:
                pass

            def get_delegation_tools(self, agents: Any) -> list[Any]:
                return []

            def get_platform_tools(self, apps: Any) -> list[Any]:
                return []

            def get_mcp_tools(self, mcps: Any) -> list[Any]:
                return []

        async def play(task: str) -> None:
            caller = Caller(role="caller", goal="Call.", backstory="You call.")
            await caller.aexecute_task(Task(description=task, expected_output="Gold."))

        assert await self.speakers(swarm, play) == ["caller"]

    async def test_who_was_delegated_to_speaks_for_itself(self, swarm: ScriptedSwarm) -> None:
        """And who delegated, after it."""
        boss = make_agent(BOSS, allow_delegation=True)
        crew = make_crew([boss, program.worker.copy()], boss)
        assert await self.speakers(swarm, crew) == [BOSS, WORKER, WORKER, BOSS]

    async def test_a_manager_speaks_for_itself(self, swarm: ScriptedSwarm) -> None:
        """Where the crew's process is hierarchical."""
        manager = make_agent(BOSS, allow_delegation=True)
        crew = make_crew(
            [program.worker.copy()],
            manager_agent=manager,
            process=Process.hierarchical,
        )
        crew.tasks = [Task(description="{task}", expected_output="Gold.")]
        assert await self.speakers(swarm, crew) == [BOSS, WORKER, WORKER, BOSS]

    async def test_a_role_has_the_inputs_in_it(self, swarm: ScriptedSwarm) -> None:
        agent = make_agent("digger in {place}")
        tasks = [{"id": f"t{next(NUMBERS)}x", "task": "dig", "place": "Rome"}]
        assert await self.speakers(swarm, make_crew([agent], agent), *tasks) == ["digger in Rome"]

    async def test_a_tool_that_asks_a_model_speaks_for_its_agent(
        self, swarm: ScriptedSwarm
    ) -> None:
        """Where it asks by itself."""
        inside = OpenAI(base_url=program.URL, api_key="none")

        @tool("ask_model")
        def ask_model() -> str:
            """Ask."""
            asked: Any = [{"role": "user", "content": "inside"}]
            answer = inside.chat.completions.create(model="m", messages=asked)
            return str(answer.choices[0].message.content)

        agent = make_agent(BOSS, tools=[ask_model])
        assert await self.speakers(swarm, agent) == [BOSS, BOSS, BOSS]

    async def test_who_asks_outside_of_turns_has_no_name(self, swarm: ScriptedSwarm) -> None:
        async def play(task: str) -> None:
            await program.play(task)
            await program.llm.acall(task)

        assert await self.speakers(swarm, play) == [PLANNER, WORKER, WORKER, ""]

    async def test_streamed_calls_are_attributed(self, swarm: ScriptedSwarm) -> None:
        async def play(task: str) -> None:
            crew = program.crew.copy()
            crew.stream = True
            stream: Any = await crew.akickoff(inputs={"task": task})
            async for _ in stream:
                pass

        assert await self.speakers(swarm, play) == [PLANNER, WORKER, WORKER]

    # --- Copies -----------------------------------------------------------------------------------

    async def test_a_crew_is_trained_as_it_is(self, swarm: ScriptedSwarm) -> None:
        """And again after it has run itself, whatever that wrote into it."""
        crew = program.crew.copy()
        assert await self.speakers(swarm, crew) == [PLANNER, WORKER, WORKER]
        assert crew.tasks[0].output is None
        played = []

        async def play(task: str) -> None:
            if not played:
                played.append(task)
                await crew.akickoff(inputs={"task": task})
            await program.play(task)

        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            program_of_crew = trainable(play, client, reward=lambda task, result: 1.0)
            await program_of_crew(f"t{next(NUMBERS)}x")
        assert played[0] in crew.tasks[0].description
        assert await self.speakers(swarm, crew) == [PLANNER, WORKER, WORKER]

    async def test_agents_of_one_role_stay_two(self, swarm: ScriptedSwarm) -> None:
        one, two = make_agent("twin"), make_agent("twin")
        two.backstory = "You are poor."
        for first, second in await self.calls(swarm, make_crew([one, two], one, two)):
            assert "You are rich." in swarm.text(first)
            assert "You are poor." in swarm.text(second)

    async def test_a_memory_is_refused(self, own_adapter: AgentAdapter) -> None:
        crew = program.crew.copy()
        crew.memory = True
        with pytest.raises(ConfigError, match="memory"):
            own_adapter.fresh(crew)

    async def test_a_copy_does_not_begin_again(
        self, swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where an episode is over, it is asked once."""
        requests: list[Route] = []

        def counts(route: Route) -> None:
            requests.append(route)

        monkeypatch.setattr(Route, "note_sent", counts)
        for agent in (program.crew, program.worker):
            requests.clear()
            async with AsyncSwarmClient(swarm.url, swarm.token) as client:
                task = f"t{next(NUMBERS)}x"
                episode = await client.begin_episode(task)
                await client.abort_episode(episode, "given up")
                its = trainable(agent, reward=lambda task, result: 1.0)
                with pytest.raises(Exception, match=r"given up|410|closed"):
                    await its.agent(ClientTask(task), episode)
            assert len(requests) == 1
        assert program.worker.max_retry_limit == 2

    # --- Others -----------------------------------------------------------------------------------

    async def test_telemetry_hears_of_no_episode(
        self, swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """But outside of them what it heard before."""
        telemetry = Telemetry()
        monkeypatch.setattr(telemetry, "ready", True)
        heard = []

        async def play(task: str) -> None:
            await program.play(task)
            with monkeypatch.context() as patch:
                patch.setenv("CREWAI_DISABLE_TELEMETRY", "false")
                heard.append(telemetry._should_execute_telemetry())

        await self.calls(swarm, play)
        assert set(heard) == {False}
        monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "false")
        assert telemetry._should_execute_telemetry()

    async def test_a_dictionary_is_no_task_of_an_agent(self, own_adapter: AgentAdapter) -> None:
        with pytest.raises(TypeError, match="dict is not an input of an agent"):
            await own_adapter.run(
                own_adapter.fresh(program.worker), {"question": "?", "answer": "gold"}
            )


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
