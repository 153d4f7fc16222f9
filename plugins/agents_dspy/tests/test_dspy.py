"""The adapter for DSPy, with real modules of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import dspy
import dspy_program as program
import pytest
from dspy.utils.exceptions import AdapterParseError

from agentjet.agents import trainable
from agentjet.client import SwarmClient
from ajet_core.interfaces import AgentAdapter
from ajet_core.timeline import Call
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import DOORS, TRAPDOOR, AgentSuite
from ajet_testing.tutorial import run_tutorial


def fields(**values: str) -> str:
    """An answer in the form that DSPy's `ChatAdapter` asks for."""
    texts = [f"[[ ## {name} ## ]]\n{value}" for name, value in values.items()]
    return "\n\n".join([*texts, "[[ ## completed ## ]]<|im_end|>"])


def use_of(tool: str, arguments: str) -> str:
    return fields(next_thought="I try.", next_tool_name=tool, next_tool_args=arguments)


def opening(door: str) -> str:
    return use_of("open_door", f'{{"door": "{door}"}}')


REPLIES = (
    ScriptedReply(
        prompt=r"## observation_0 ##", says=(fields(reasoning="I looked.", answer="Done."),)
    ),
    ScriptedReply(prompt=r"open_door.*t9\d\dx", says=(opening(TRAPDOOR),)),
    ScriptedReply(prompt="open_door", says=tuple(opening(door) for door in DOORS)),
    ScriptedReply(prompt="reasoning", says=(fields(reasoning="Luck.", plan="Left."),)),
    ScriptedReply(prompt="", says=tuple(fields(plan=f"Take the {door} door.") for door in DOORS)),
)
TUTORIAL = (
    ScriptedReply(prompt=r"## observation_0 ##", says=(fields(reasoning="Added.", answer="3"),)),
    ScriptedReply(prompt="", says=(use_of("add", '{"a": 1, "b": 2}'),)),
)


class TestDSPy(AgentSuite):
    adapter = "dspy"
    replies = REPLIES
    # ReAct writes what has happened into a new message each time.
    extends = False
    tool_errors: Literal["raised", "told"] = "told"

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return program.expedition.worker

    async def test_no_answer_comes_from_a_cache(self, swarm: ScriptedSwarm) -> None:
        """The program asks for it; every episode of a task has calls of its own nevertheless."""
        assert program.lm.cache
        cached = dspy.Predict("task -> plan", cache=True)

        async def play(task: str) -> object:
            return [await cached.acall(task=task) for _ in range(2)]

        for calls in await self.calls(swarm, play):
            assert len(calls) == 2

    async def test_other_providers_and_their_settings_are_rerouted(
        self, swarm: ScriptedSwarm
    ) -> None:
        """Each keeps the model's name, by which roles are told apart."""
        lms = (
            dspy.LM("anthropic/claude-sonnet-4-5", max_tokens=64),
            dspy.LM("gemini/gemini-2.5-pro", temperature=1.0),
            dspy.LM("openai/gpt-5-mini", engine="lm15"),
            dspy.LM("openai/any-model", model_type="text"),
        )

        async def play(task: str) -> None:
            for lm in lms:
                with dspy.context(lm=lm):
                    await dspy.Predict("task -> plan").acall(task=task)

        assert await self.speakers(swarm, play) == ["Predict"] * len(lms)

    async def test_modules_are_named_after_their_place(self, swarm: ScriptedSwarm) -> None:
        class Team(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.crew = [program.Expedition()]
                self.judge = dspy.ChainOfThought("task -> plan")

            async def aforward(self, task: str) -> None:
                await self.crew[0].acall(task=task)
                await self.judge.predict.acall(task=task)
                await dspy.settings.lm.acall(task)

        swarm_says = await self.speakers(swarm, Team())
        assert swarm_says == ["crew[0].planner", *["crew[0].worker"] * 2, "judge.predict", "Team"]

    async def test_threads_of_dspy_belong_to_the_episode(self, swarm: ScriptedSwarm) -> None:
        planner = program.expedition.planner

        def play(task: str) -> object:
            examples = [dspy.Example(task=task).with_inputs("task") for _ in range(3)]
            return dspy.Parallel(num_threads=3, disable_progress_bar=True)(
                [(planner, example) for example in examples]
            )

        with SwarmClient(swarm.url, swarm.token) as client:
            played = trainable(play, client, reward=lambda task, result: 1.0).episode("t500x")
        calls = swarm.calls(played.episode.episode_id)
        assert [call.agent for call in calls] == ["Predict"] * 3

    async def test_histories_and_traces_do_not_keep_episodes(self, swarm: ScriptedSwarm) -> None:
        before = len(dspy.clients.base_lm.GLOBAL_HISTORY)
        await self.calls(swarm, program.expedition)
        assert program.expedition.history == program.lm.history == []
        assert len(dspy.clients.base_lm.GLOBAL_HISTORY) == before
        assert dspy.settings.trace == []

    async def test_inputs_of_tasks(self, swarm: ScriptedSwarm, own_adapter: AgentAdapter) -> None:
        """They are those of the signature or of ``forward``; the answer stays with the reward."""
        task = {"id": "t502x", "task": "t502x", "answer": "forty-two"}
        example = dspy.Example(task="t503x", answer="forty-two").with_inputs("task")
        reasoner = dspy.ChainOfThought("task -> plan")
        for agent in (program.expedition, program.expedition.worker, reasoner):
            for one in (task, "t504x"):
                calls = await self._asked(swarm, own_adapter, agent, one)
                assert not any(re.search("forty-two", swarm.text(call)) for call in calls)
        await self._asked(swarm, own_adapter, program.expedition, example)
        with pytest.raises(TypeError, match="'question' has not all inputs"):
            await own_adapter.run(program.expedition, {"question": "?"})
        with pytest.raises(TypeError, match="not a text"):
            await own_adapter.run(dspy.Predict("task, hint -> plan"), "t505x")

    async def _asked(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter, agent: object, task: object
    ) -> list[Call]:
        async def play(_: str) -> object:
            return await own_adapter.run(agent, task)

        return await self.calls_of(swarm, play, f"inputs {id(agent)} {task}")

    async def test_demonstrations_are_copied(self, own_adapter: AgentAdapter) -> None:
        """They are what an optimizer has learned."""
        optimized = program.expedition.deepcopy()
        optimized.planner.demos = [dspy.Example(task="a", plan="b")]
        twin = own_adapter.fresh(optimized)
        assert isinstance(twin, program.Expedition)
        assert twin.planner is not optimized.planner
        assert twin.planner.demos == optimized.planner.demos

    async def test_outside_of_episodes_nothing_changes(self, own_adapter: AgentAdapter) -> None:
        lm = dspy.utils.DummyLM([{"plan": "left"}, {"plan": "right"}])
        with dspy.context(lm=lm):
            assert (await dspy.Predict("task -> plan").acall(task="t")).plan == "left"
        assert len(lm.history) == 1
        assert own_adapter.current_agent() is None


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    """An answer that DSPy cannot parse opens no door; without this it would end the episode."""

    async def plays(task: str) -> list[str]:
        try:
            return await program.play(task)
        except AdapterParseError:
            return []

    assert_learns(plays, tmp_path, REPLIES, own_words=True)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch, TUTORIAL)
