"""The adapter for LangChain, with real agents and graphs of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import langchain_program as program
import langsmith
import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.langchain import LangChainTracer

from agentjet.agents import train_async, trainable
from agentjet.client import AsyncSwarmClient
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import AgentSuite
from ajet_testing.tutorial import run_tutorial

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

    @pytest.mark.parametrize("own", [False, True])
    async def test_a_cache_answers_nobody_in_an_episode(
        self, swarm: ScriptedSwarm, own: bool
    ) -> None:
        """Even one with an answer to every prompt, the model's own or not; it gets no entry."""
        cache = KnowsEverything()
        model = program.model.model_copy(update={"cache": cache}) if own else program.model
        set_llm_cache(None if own else cache)
        answers: list[str] = []

        def score(task: str, answer: AIMessage) -> float:
            answers.append(answer.text)
            return 1.0

        try:
            assert (await model.ainvoke("outside")).text == CACHED
            async with AsyncSwarmClient(swarm.url, swarm.token) as client:
                report = await train_async(
                    trainable(model, reward=score),
                    [f"t60{own:d}x", f"t60{own + 2:d}x"],
                    client=client,
                    episodes_per_task=4,
                    retries=0,
                    progress=False,
                )
            assert not report.failures
            assert len(answers) == 8
            assert CACHED not in answers
            assert not cache._cache
            assert (await model.ainvoke("outside")).text == CACHED
        finally:
            set_llm_cache(None)

    async def test_langsmith_is_told_nothing_of_episodes(
        self, swarm: ScriptedSwarm, listener: list[str]
    ) -> None:
        """Outside of them it is."""
        url = listener[0]
        client = langsmith.Client(url, api_key="none", auto_batch_tracing=False)
        tracer = LangChainTracer(client=client)
        answer = RunnableLambda(str.upper).with_config(callbacks=[tracer])

        async def play(task: str) -> str:
            said = await program.model.ainvoke(task, config={"callbacks": [tracer]})
            return await answer.ainvoke(said.text)

        await self.calls(swarm, play)
        assert listener == [url]
        assert await answer.ainvoke("outside") == "OUTSIDE"
        assert listener[1:] == ["POST /runs", "PATCH /runs"]


@pytest.fixture
def listener() -> Iterator[list[str]]:
    """Its URL, and then what it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            if "runs" in self.path:
                heard.append(f"{self.command} /runs")
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PATCH = _answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard = [f"http://127.0.0.1:{server.server_port}"]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield heard
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
