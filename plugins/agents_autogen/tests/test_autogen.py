"""The adapter for AutoGen, with real agents and teams of it."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import autogen_program as program
import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import UserMessage
from autogen_ext.models.cache import ChatCompletionCache
from autogen_ext.models.replay import ReplayChatCompletionClient
from openai import OpenAI

from ajet_core.errors import ConfigError
from ajet_core.interfaces import AgentAdapter
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import PLANNER, REPLIES, WORKER, AgentSuite, tool_call
from ajet_testing.tutorial import run_tutorial

# The server answers as the model "default", whichever was asked for.
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch")

BOSS = "boss"
MANAGER = "SelectorGroupChatManager"
NUMBERS = count(600)
WHOM_TO_ASK = (
    ScriptedReply(prompt="Then select the next role", says=("planner<|im_end|>",)),
    ScriptedReply(prompt='"name": "worker"', says=(tool_call("worker", '{"task": "look there"}'),)),
    ScriptedReply(prompt='"name": "ask_model"', says=(tool_call("ask_model", "{}"),)),
)


def make_boss(*tools: Any) -> AssistantAgent:
    return AssistantAgent(BOSS, program.client, tools=list(tools), max_tool_iterations=2)


def make_selector_team() -> SelectorGroupChat:
    agents = [program.make_planner(), program.make_worker()]
    return SelectorGroupChat(agents, program.client, max_turns=2)


class TestAutoGen(AgentSuite):
    adapter = "autogen"
    # AutoGen gives the error to the model as the tool's answer.
    tool_errors = "told"
    replies = (REPLIES[0], *WHOM_TO_ASK, *REPLIES[1:])

    async def play(self, task: str) -> object:
        return await program.play(task)

    def worker(self) -> object:
        return program.worker

    # --- Names ------------------------------------------------------------------------------------

    async def test_streamed_calls_are_attributed(self, swarm: ScriptedSwarm) -> None:
        assert await self.speakers(swarm, program.play_streamed) == [PLANNER, WORKER, WORKER]

    async def test_who_selects_the_next_speaker_is_not_an_agent(self, swarm: ScriptedSwarm) -> None:
        assert await self.speakers(swarm, make_selector_team()) == [
            MANAGER,
            PLANNER,
            WORKER,
            WORKER,
        ]

    async def test_members_of_a_team_in_a_team_speak_for_themselves(
        self, swarm: ScriptedSwarm
    ) -> None:
        team = RoundRobinGroupChat([make_selector_team(), make_boss()], max_turns=2)
        assert await self.speakers(swarm, team) == [MANAGER, PLANNER, WORKER, WORKER, BOSS]

    async def test_members_of_a_team_in_an_agent_speak_for_themselves(
        self, swarm: ScriptedSwarm
    ) -> None:
        """Also if that is a member of a team."""
        society = SocietyOfMindAgent("society", make_selector_team(), program.client)
        spoken = [MANAGER, PLANNER, WORKER, WORKER, "society"]
        assert await self.speakers(swarm, society) == spoken
        assert await self.speakers(swarm, RoundRobinGroupChat([society], max_turns=1)) == spoken

    async def test_an_agent_as_a_tool_speaks_for_itself(self, swarm: ScriptedSwarm) -> None:
        """And whose tool it is after it; in a team, too."""
        boss = make_boss(AgentTool(program.make_worker()))
        spoken = [BOSS, WORKER, WORKER, BOSS]
        assert await self.speakers(swarm, boss) == spoken
        assert await self.speakers(swarm, RoundRobinGroupChat([boss], max_turns=1)) == spoken

    async def test_a_tool_that_is_not_async_stays_in_its_episode(
        self, swarm: ScriptedSwarm
    ) -> None:
        """In whichever thread it is; and speaks for its agent."""
        threads = set()
        inside = OpenAI(base_url=program.URL, api_key="none")

        def ask_model() -> str:
            """Ask."""
            threads.add(threading.current_thread())
            asked: Any = [{"role": "user", "content": "inside"}]
            answer = inside.chat.completions.create(model="m", messages=asked)
            return str(answer.choices[0].message.content)

        assert await self.speakers(swarm, make_boss(ask_model)) == [BOSS, BOSS, BOSS]
        assert threading.current_thread() not in threads

    async def test_after_a_turn_nobody_speaks(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter
    ) -> None:
        """Nor between the messages of a stream."""
        heard: list[str | None] = []

        async def play(task: str) -> None:
            async for _ in program.make_worker().run_stream(task=task):
                heard.append(own_adapter.current_agent())
            await program.make_worker().run(task=task)
            heard.append(own_adapter.current_agent())

        assert await self.speakers(swarm, play) == [WORKER] * 4
        assert set(heard) == {None}

    # --- Copies -----------------------------------------------------------------------------------

    async def test_a_team_is_trained_as_it_is(self, swarm: ScriptedSwarm) -> None:
        """And again after it has run itself, whatever it has heard there."""
        assert await self.speakers(swarm, program.team) == [PLANNER, WORKER, WORKER]
        played = []

        async def play(task: str) -> None:
            # A team can be run but once at a time.
            if not played:
                played.append(task)
                await program.team.run(task=task)
            await program.play(task)

        await self.calls(swarm, play)
        assert played
        assert await self.speakers(swarm, program.team) == [PLANNER, WORKER, WORKER]

    async def test_what_a_copy_was_made_with_is_no_memory(self, swarm: ScriptedSwarm) -> None:
        """It has heard what its original has; conditions start afresh, tools are the program's."""
        opened: list[str] = []

        class House:
            def __init__(self) -> None:
                # Cannot be copied.
                self.lock = threading.Lock()

            def open_door(self, door: str) -> str:
                """Open one of the doors."""
                opened.append(door)
                return "nothing"

        context = UnboundedChatCompletionContext([UserMessage(content="hint", source="user")])
        await context.add_message(UserMessage(content="t999x is over", source="user"))
        worker = program.make_worker(tools=[House().open_door], model_context=context)
        over = MaxMessageTermination(2)
        await over([TextMessage(content="of before", source="user")] * 2)
        team = RoundRobinGroupChat([worker], termination_condition=over)
        for calls in await self.calls(swarm, team):
            assert len(calls) == 2
            assert all("hint" in swarm.text(call) for call in calls)
            assert not any("t999x" in swarm.text(call) for call in calls)
        assert len(opened) == 8
        assert over.terminated
        assert len(await context.get_messages()) == 2

    async def test_what_cannot_be_copied_is_refused(self, own_adapter: AgentAdapter) -> None:
        worker = program.make_worker()
        vars(worker)["lock"] = threading.Lock()
        with pytest.raises(ConfigError, match="cannot copy AssistantAgent"):
            own_adapter.fresh(worker)

    # --- Others -----------------------------------------------------------------------------------

    async def test_a_cache_answers_nobody_in_an_episode(self, swarm: ScriptedSwarm) -> None:
        """Streamed or not; and what was asked in an episode is not remembered."""
        asked = [UserMessage(content="the same", source="user")]
        outside = ChatCompletionCache(ReplayChatCompletionClient(["cached"]))
        assert (await outside.create(asked)).content == "cached"
        cache = ChatCompletionCache(program.client, outside.store)
        known = dict(outside.store.store)
        answers: list[object] = []

        async def play(task: str) -> None:
            answers.append((await cache.create(asked)).content)
            answers.extend([it async for it in cache.create_stream(asked)])

        assert await self.speakers(swarm, play) == ["", ""]
        assert len(answers) > 1
        assert "cached" not in [getattr(answer, "content", answer) for answer in answers]
        assert cache.store.store == known

    async def test_a_cache_answers_outside_episodes(self, swarm: ScriptedSwarm) -> None:
        await self.calls(swarm, self.play)
        cache = ChatCompletionCache(ReplayChatCompletionClient(["one", "two"]))
        asked = [UserMessage(content="the same", source="user")]
        assert [(await cache.create(asked)).content for _ in range(2)] == ["one", "one"]

    async def test_reflection_does_not_extend(self, swarm: ScriptedSwarm) -> None:
        """AutoGen asks without tools, so that the prompt begins with other tokens."""
        worker = program.make_worker(reflect_on_tool_use=True, max_tool_iterations=1)
        for one, two in await self.calls(swarm, worker):
            assert two.prompt_ids[: one.length] != one.token_ids

    async def test_messages_are_a_task(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter
    ) -> None:
        """And a dictionary is none."""
        tasks = [f"t{next(NUMBERS)}x" for _ in range(2)]

        async def run(task: str) -> None:
            message = TextMessage(content=task, source="user")
            for each in (message, [message]):
                await own_adapter.run(own_adapter.fresh(program.worker), each)

        assert await self.speakers(swarm, run, *tasks) == [WORKER] * 4
        with pytest.raises(TypeError, match="dict is not a task of an agent"):
            await own_adapter.run(
                own_adapter.fresh(program.worker), {"question": "?", "answer": "gold"}
            )


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
