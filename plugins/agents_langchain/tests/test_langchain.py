"""The adapter for LangChain, with real agents and graphs of it."""

from __future__ import annotations

from pathlib import Path

import langchain_program as program
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration

from ajet_core.agents import train_async, trainable
from ajet_core.client import AsyncSwarmClient
from ajet_core.testing.agent_suite import AgentSuite
from ajet_core.testing.scripted_swarm import ScriptedSwarm
from tests.agents.door_training import assert_learns
from tests.agents.tutorial import run_tutorial

CACHED = "out of the cache"


class KnowsEverything(InMemoryCache):
    def lookup(self, prompt: str, llm_string: str) -> list[ChatGeneration]:
        return [ChatGeneration(message=AIMessage(CACHED))]


class TestLangChain(AgentSuite):
    adapter = "langchain"

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return program.worker

    async def test_a_model_in_a_node_is_named_after_it(self, swarm: ScriptedSwarm) -> None:
        """Where no agent has a name."""
        from langgraph.graph import START, MessagesState, StateGraph

        async def chat(state: MessagesState) -> MessagesState:
            return {"messages": [await program.model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("chatter", chat)
        graph.add_edge(START, "chatter")
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            agent = trainable(graph.compile(), client, reward=lambda task, state: 1.0)
            played = await agent.episode("t500x")
        assert [call.agent for call in swarm.calls(played.episode.episode_id)] == ["chatter"]

    async def test_a_cache_answers_nobody_in_an_episode(self, swarm: ScriptedSwarm) -> None:
        """Even one that knows an answer to everything; and what was asked in an episode is not remembered."""
        cache = KnowsEverything()
        set_llm_cache(cache)
        answers: list[str] = []

        def score(task: str, answer: AIMessage) -> float:
            answers.append(answer.text)
            return 1.0

        try:
            assert (await program.model.ainvoke("outside")).text == CACHED
            async with AsyncSwarmClient(swarm.url, swarm.token) as client:
                report = await train_async(
                    trainable(program.model, reward=score),
                    ["t600x", "t601x"],
                    client=client,
                    group_size=4,
                    retries=0,
                    progress=False,
                )
            assert not report.failures
            assert len(answers) == 8
            assert CACHED not in answers
            assert not cache._cache
            assert get_llm_cache() is not cache
        finally:
            set_llm_cache(None)


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
