"""The adapter for the Claude Agent SDK, with real processes of Claude Code."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import claude_program as program
import httpx2
import pytest
from ajet_agents_claude import processes, workplace
from ajet_agents_claude.relay import Caller, relay
from claude_agent_sdk import (
    AgentDefinition,
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultError,
    StreamEvent,
    query,
)

from agentjet.agents import Route, agent_name, current_route, trainable
from agentjet.client import AsyncSwarmClient, Task
from ajet_core.errors import ConfigError
from ajet_core.interfaces import AgentAdapter, ModelEndpoint
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import (
    DOORS,
    LAST_IS_TOOL,
    TRAPDOOR,
    WORKER,
    AgentSuite,
    tool_call,
)
from ajet_testing.tutorial import run_tutorial

END = "<|im_end|>"
DELEGATED = json.dumps(
    {
        "subagent_type": WORKER,
        "description": "open",
        "prompt": "Open the left door.",
        "run_in_background": False,
    }
)


def opening(door: str) -> str:
    return tool_call(program.OPEN_DOOR, json.dumps({"door": door}))


REPLIES = (
    ScriptedReply(prompt=LAST_IS_TOOL, says=(f"I have looked behind it.{END}",)),
    ScriptedReply(prompt="You only pass on", says=(tool_call("Agent", DELEGATED),)),
    ScriptedReply(
        prompt="You may only run commands", says=(tool_call("Bash", '{"command": "env"}'),)
    ),
    ScriptedReply(prompt=rf'"name": "{program.OPEN_DOOR}".*t9\d\dx', says=(opening(TRAPDOOR),)),
    ScriptedReply(
        prompt=f'"name": "{program.OPEN_DOOR}"', says=tuple(opening(door) for door in DOORS)
    ),
    ScriptedReply(prompt="", says=tuple(f"Take the {door} door.{END}" for door in DOORS)),
)
ADDING = (
    ScriptedReply(prompt=LAST_IS_TOOL, says=(f"It is 3.{END}",)),
    ScriptedReply(prompt="", says=(tool_call("mcp__sums__add", '{"a": 1, "b": 2}'),)),
)


def left_behind() -> list[Path]:
    """The directories of episodes that still exist."""
    return [place.path for place in workplace._places.values() if place.path.exists()]


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A port that records who connects, and answers nobody."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        yield listener


class TestClaude(AgentSuite):
    adapter = "claude-agent-sdk"
    replies = REPLIES
    tool_errors: Literal["raised", "told"] = "told"
    # Each is a process with more than 200 MB.
    many = 8
    time_limit = 300.0

    async def play(self, task: str) -> object:
        return await program.play(task)

    def worker(self) -> object:
        return program.worker

    async def test_sub_agents_are_themselves(self, swarm: ScriptedSwarm) -> None:
        boss = replace(
            program.worker,
            agents={
                "boss": AgentDefinition(description="boss", prompt="You only pass on tasks."),
                WORKER: AgentDefinition(
                    description="Opens doors.", prompt="Open a door.", tools=[program.OPEN_DOOR]
                ),
            },
            extra_args={"agent": "boss"},
            tools=["Agent"],
            allowed_tools=["Agent", program.OPEN_DOOR],
        )
        assert await self.speakers(swarm, boss) == ["boss", WORKER, WORKER, "boss"]

    async def test_a_main_agent_without_a_name_is_that_of_the_code(
        self, swarm: ScriptedSwarm
    ) -> None:
        async def play(task: str) -> None:
            with agent_name("critic"):
                await program.ask(ClaudeAgentOptions(tools=[], setting_sources=[]), task)

        assert await self.speakers(swarm, play) == ["critic"]

    async def test_clients_keep_their_conversation_and_stream(self, swarm: ScriptedSwarm) -> None:
        """The second message continues the tokens of the first, as do calls after a tool."""

        async def play(task: str) -> None:
            options = replace(program.worker, include_partial_messages=True)
            async with ClaudeSDKClient(options) as client:
                for question in (task, "And now?"):
                    await client.query(question)
                    messages = [message async for message in client.receive_response()]
                    assert any(isinstance(message, StreamEvent) for message in messages)

        for calls in await self.calls(swarm, play):
            assert [call.agent for call in calls] == [WORKER] * 4
            self.assert_extended(calls)
            assert "billing" not in swarm.text(calls[0])

    async def test_commands_of_the_model_get_no_credentials(
        self, swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither those of this process, nor the key of the episode; each has its own home."""
        secrets = {
            "ANTHROPIC_AUTH_TOKEN": "secret-token",
            "ANTHROPIC_CUSTOM_HEADERS": "x-secret: 1",
            "AWS_SECRET_ACCESS_KEY": "secret-aws",
            "CLAUDE_CODE_OAUTH_TOKEN": "secret-oauth",
            "CLAUDE_CODE_USE_BEDROCK": "1",
            "OTEL_EXPORTER_OTLP_HEADERS": "secret-otel",
        }
        for name, value in secrets.items():
            monkeypatch.setenv(name, value)
        options = ClaudeAgentOptions(
            system_prompt="You may only run commands.",
            tools=["Bash"],
            allowed_tools=["Bash"],
            setting_sources=[],
            env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "MINE": "kept"},
        )
        seen: list[dict[str, str]] = []

        async def play(task: str) -> None:
            messages = await program.ask(options, task)
            seen.append(_variables(messages))
            route = current_route()
            assert route is not None
            assert route.endpoints[""].api_key not in str(messages)

        await self.calls(swarm, play)
        assert len(seen) == len({variables["HOME"] for variables in seen}) == 8
        for variables in seen:
            assert not any("secret" in value for value in variables.values())
            assert variables["MINE"] == "kept"
            assert variables["HOME"] != os.environ["HOME"]

    async def test_nothing_is_sent_elsewhere(self, swarm: ScriptedSwarm, tmp_path: Path) -> None:
        """Whatever proxies there are, and whatever the settings of the project say."""
        with listening() as proxy, listening() as other:
            names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
            proxies = dict.fromkeys(names, f"http://127.0.0.1:{proxy.getsockname()[1]}")
            url = f"http://127.0.0.1:{other.getsockname()[1]}"
            settings = tmp_path / ".claude" / "settings.json"
            settings.parent.mkdir()
            settings.write_text(json.dumps({"env": {"ANTHROPIC_BASE_URL": url}}))
            options = replace(
                program.worker, cwd=tmp_path, setting_sources=["project"], env=proxies
            )

            async def play(task: str) -> object:
                return await program.ask(options, task)

            for calls in await self.calls(swarm, play):
                assert len(calls) == 2
            for listener in (proxy, other):
                with pytest.raises(BlockingIOError):
                    listener.accept()

    async def test_an_episode_leaves_nothing_behind(self, swarm: ScriptedSwarm) -> None:
        """Also if it ends in the middle of a conversation, whose process then ends too."""
        running: list[Any] = []
        places: list[Path] = []

        async def play(task: str) -> None:
            messages = query(prompt=task, options=program.worker)
            async for message in messages:
                if isinstance(message, AssistantMessage):
                    break
            running.append(messages)
            route = current_route()
            assert route is not None
            place = workplace.workplace_of(route)
            places.append(place.path)
            assert place.path.exists()

        await self.calls(swarm, play)
        assert len(places) == 8
        assert not any(path.exists() for path in places)
        assert left_behind() == []
        for messages in running:
            await messages.aclose()

    async def test_an_agent_without_a_directory_gets_one(self, swarm: ScriptedSwarm) -> None:
        texts = [swarm.text(calls[0]) for calls in await self.calls(swarm, program.worker)]
        assert all("/work" in text and str(Path.cwd()) not in text for text in texts)

    async def test_episodes_that_would_share_a_session_are_refused(
        self, own_adapter: AgentAdapter
    ) -> None:
        for shared in ({"resume": "1"}, {"continue_conversation": True}, {"session_id": "1"}):
            with pytest.raises(ConfigError, match="share"):
                own_adapter.fresh(ClaudeAgentOptions(**shared))

    async def test_models_that_pass_through_are_left_alone(
        self, swarm: ScriptedSwarm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their processes have the environment that the program gives them."""
        monkeypatch.setattr(processes, "relay", lambda: pytest.fail("it is rerouted"))
        its_own = {"ANTHROPIC_BASE_URL": swarm.url, "ANTHROPIC_API_KEY": "none"}
        judge = replace(program.planner, model="judge", env=its_own)

        async def play(task: str) -> object:
            return await program.ask(judge, task)

        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            episode = await client.begin_episode("t510x")
            plays = trainable(play, reward=lambda *_: 1.0, passthrough=["judge"])
            # The server does not know its key.
            with pytest.raises(ResultError):
                await plays.agent(Task("t510x"), episode)
            await client.abort_episode(episode, "done")


def test_the_relay_sends_model_calls_of_open_episodes_only() -> None:
    route = Route({"": ModelEndpoint("http://127.0.0.1:9/v1", "ajet-ep-x")})
    url = relay().url_for(Caller(route, None, {}))
    with httpx2.Client(trust_env=False) as client:
        assert client.post(f"{url}/v1/files", json={}).status_code == 404
        assert client.get(f"{url}/v1/models").status_code == 404
        call = {"model": "m", "messages": []}
        # Nothing listens on the discard port.
        assert client.post(f"{url}/v1/messages", json=call).status_code == 502
        route.finish()
        over = client.post(f"{url}/v1/messages", json=call)
        assert (over.status_code, over.json()["error"]["message"]) == (404, "the episode is over")


def test_a_sub_agent_is_known_by_its_prompt() -> None:
    caller = Caller(Route({}), "boss", {"worker": "You open doors."})
    prompts = [{"type": "text", "text": "A line."}, {"type": "text", "text": "You open doors. Now"}]
    assert caller.speaker(json.dumps({"system": prompts}).encode()) == "worker"
    assert caller.speaker(json.dumps({"system": "You plan."}).encode()) == "boss"
    assert caller.speaker(b"no JSON") == "boss"


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tutorial(Path(__file__).parents[1] / "README.md", tmp_path, monkeypatch, ADDING)


def _variables(messages: list[Any]) -> dict[str, str]:
    """The environment that a command of the model has printed."""
    for message in messages:
        for block in getattr(message, "content", ()):
            text = getattr(block, "content", None)
            if isinstance(text, str) and "HOME=" in text:
                pairs = (line.partition("=") for line in text.splitlines())
                return {name: value for name, _, value in pairs}
    pytest.fail(f"no variables in {messages}")
