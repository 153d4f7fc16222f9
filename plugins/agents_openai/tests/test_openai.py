"""The adapter for the OpenAI Agents SDK, with real agents of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai_program as program
import pytest
from agents import (
    Agent,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    add_trace_processor,
    custom_span,
    flush_traces,
    function_tool,
    handoff,
    set_trace_processors,
    set_tracing_disabled,
    trace,
)
from agents.tracing import TracingProcessor
from agents.tracing.processors import default_processor

from ajet_core.interfaces import AgentAdapter
from ajet_testing.door_training import assert_learns
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import PLANNER, REPLIES, WORKER, AgentSuite, tool_call
from ajet_testing.tutorial import run_tutorial

BOSS = "the boss"
WHOM_TO_ASK = (
    ScriptedReply(
        prompt=r'"name": "transfer_to_worker"', says=(tool_call("transfer_to_worker", "{}"),)
    ),
    ScriptedReply(
        prompt=r'"name": "ask_worker"', says=(tool_call("ask_worker", '{"input": "look there"}'),)
    ),
    ScriptedReply(prompt=r'"name": "ask_model"', says=(tool_call("ask_model", "{}"),)),
)


class Recorder(TracingProcessor):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.exported: list[str] = []

    def on_trace_start(self, trace: Any) -> None:
        self.heard.append(trace.name)

    def on_trace_end(self, trace: Any) -> None:
        pass

    def on_span_start(self, span: Any) -> None:
        self.heard.append(span.span_data.type)

    def on_span_end(self, span: Any) -> None:
        self.exported.append(str(span.export()))

    def shutdown(self) -> None:
        pass

    def force_flush(self) -> None:
        pass


class TestOpenAIAgents(AgentSuite):
    adapter = "openai-agents"
    # The SDK writes the error into the tool's answer, unless the tool has another
    # failure_error_function.
    tool_errors = "told"
    traces = True
    replies = (REPLIES[0], *WHOM_TO_ASK, *REPLIES[1:])

    async def play(self, task: str) -> object:
        return await program.play(task)

    def play_sync(self, task: str) -> object:
        return program.play_sync(task)

    def worker(self) -> object:
        return program.worker

    @contextmanager
    def spans(self) -> Iterator[list[str]]:
        recorder = Recorder()
        # Without the default one, which would send the spans to OpenAI, later and from a thread.
        set_trace_processors([recorder])
        try:
            yield recorder.exported
        finally:
            set_trace_processors([default_processor()])

    async def test_streamed_calls_are_attributed(self, swarm: ScriptedSwarm) -> None:
        assert await self.speakers(swarm, program.play_streamed) == [PLANNER, WORKER, WORKER]

    async def test_calls_of_the_responses_api_are_attributed(self, swarm: ScriptedSwarm) -> None:
        """And the next still begins with the tokens of the last."""
        model = OpenAIResponsesModel("any-model", program.client)
        for calls in await self.calls(swarm, program.worker.clone(model=model)):
            assert [call.agent for call in calls] == [WORKER, WORKER]
            self.assert_extended(calls)

    async def test_behind_a_handoff_another_speaks(self, swarm: ScriptedSwarm) -> None:
        boss = Agent(name=BOSS, model=program.model, handoffs=[handoff(program.worker)])
        assert await self.speakers(swarm, boss) == [BOSS, WORKER]

    async def test_an_agent_as_a_tool_speaks_for_itself(self, swarm: ScriptedSwarm) -> None:
        """And whose tool it is after it."""
        tool = program.worker.as_tool("ask_worker", "Let the worker look.")
        boss = Agent(name=BOSS, model=program.model, tools=[tool])
        assert await self.speakers(swarm, boss) == [BOSS, WORKER, WORKER, BOSS]

    async def test_a_tool_that_asks_a_model_speaks_for_its_agent(
        self, swarm: ScriptedSwarm
    ) -> None:
        @function_tool
        async def ask_model() -> str:
            """Ask."""
            asked: Any = [{"role": "user", "content": "inside"}]
            answer = await program.client.chat.completions.create(model="m", messages=asked)
            return str(answer.choices[0].message.content)

        boss = Agent(name=BOSS, model=program.model, tools=[ask_model])
        assert await self.speakers(swarm, boss) == [BOSS, BOSS, BOSS]

    async def test_names_do_not_depend_on_tracing(self, swarm: ScriptedSwarm) -> None:
        """Which the program may have switched off, in whatever way, or use itself."""
        configs = (
            RunConfig(tracing_disabled=True),
            RunConfig(tracing={"include_task_and_turn_spans": False}),
        )

        async def play(task: str) -> None:
            for config in configs:
                await Runner.run(program.planner, task, run_config=config)
            with trace("mine"), custom_span("of the program"):
                await Runner.run(program.planner, task)

        assert await self.speakers(swarm, play) == [PLANNER] * 3
        set_tracing_disabled(True)
        try:
            assert await self.speakers(swarm, play) == [PLANNER] * 3
        finally:
            set_tracing_disabled(False)

    async def test_no_processor_hears_of_episodes(
        self, swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither that of the SDK, which would send prompts away, nor others; outside they do."""
        monkeypatch.setenv("OPENAI_API_KEY", "a key with which traces would be sent")
        recorder = Recorder()
        add_trace_processor(recorder)
        assert await self.speakers(swarm, self.play) == [PLANNER, WORKER, WORKER]
        flush_traces()
        assert recorder.heard == []
        monkeypatch.delenv("OPENAI_API_KEY")
        with trace("outside"), custom_span("of the program"):
            pass
        assert recorder.heard == ["outside", "custom"]

    async def test_a_session_belongs_to_one_episode(self, swarm: ScriptedSwarm) -> None:
        """If the program makes it there."""

        async def play(task: str) -> None:
            session = SQLiteSession(task)
            for _ in range(2):
                await Runner.run(program.planner, task, session=session)

        for one, two in await self.calls(swarm, play):
            self.assert_extended([one, two])

    async def test_messages_are_a_task(
        self, swarm: ScriptedSwarm, own_adapter: AgentAdapter
    ) -> None:
        """And a dictionary of anything else is none."""
        messages = [{"role": "user", "content": "t800x"}]
        task = {"id": "t800x", "messages": messages}
        assert await self.speakers(swarm, program.worker, task) == [WORKER, WORKER]
        with pytest.raises(TypeError, match="'question', 'answer' is not an input"):
            await own_adapter.run(program.worker, {"question": "?", "answer": "gold"})


@pytest.mark.learns
@pytest.mark.timeout(600)
def test_the_program_learns(tmp_path: Path) -> None:
    assert_learns(program.play, tmp_path)


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch)
