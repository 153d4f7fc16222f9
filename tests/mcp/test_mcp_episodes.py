"""Episodes with tools of real MCP servers: many at once, and each fault costs its episode alone."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentjet.client import AsyncSwarmClient
from agentjet.mcp import HttpServer, McpServerError, McpServers
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import tool_call
from tests.mcp.test_mcp import hanging, http, is_alive, stdio

pytest.importorskip("mcp")
pytestmark = pytest.mark.processes
SAYS = (
    ScriptedReply(prompt="<tool_response>\\s*3\\s", says=("It is 3.<|im_end|>",)),
    ScriptedReply(prompt="Add", says=(tool_call("add", '{"a": 1, "b": 2}'),)),
)


@pytest.fixture
def swarm(tmp_path: Path) -> Any:
    with ScriptedSwarm(tmp_path, SAYS, batch={"tasks": 25, "episodes_per_task": 2}) as swarm:
        yield swarm


async def ask(http: httpx2.AsyncClient, episode: Any, messages: list[Any], tools: Any) -> Any:
    answer = await http.post(
        f"{episode.base_url}/chat/completions",
        headers={"Authorization": f"Bearer {episode.api_key}"},
        json={"model": episode.model, "messages": messages, "tools": tools, "max_tokens": 64},
        timeout=100,
    )
    return answer.raise_for_status().json()["choices"][0]["message"]


FAULTS = {
    "1": ("dies", "MCPError: Connection closed"),
    "2": ("refuses", "MCPError: the disk is full"),
    "3": ("blocks", "no answer within"),
    "4": ("only_garbage", "the server sent what is not a message"),
    "5": ("killed", "MCPError: Connection closed"),
}
"""By task, what its server does and what is reported of it."""


@pytest.mark.nightly
async def test_of_fifty_episodes_at_once_only_those_with_faults_are_lost(
    swarm: Any, tmp_path: Path
) -> None:
    processes: set[int] = set()
    with http() as (_, url):
        options: Any = {"start_timeout": 100, "call_timeout": 100}
        over_http = McpServers(HttpServer("faulty", url, **options))
        shared = McpServers(stdio(shared=True, **options))
        # Servers with faults end only their own episodes.
        faulty = McpServers(stdio(start_timeout=100, call_timeout=5))

        async def agent(task: Any, episode: Any) -> float:
            fault, _ = FAULTS.get(task.id, ("", ""))
            servers = faulty if fault else (over_http if int(task.id) % 2 else shared)
            messages: list[Any] = [{"role": "user", "content": f"Add for {task.id}."}]
            async with servers.tools() as tools:
                message = await ask(client, episode, messages, tools.definitions)
                if fault or servers is shared:
                    processes.add(int(await tools.call("process")))
                # Programs that catch errors cannot hide them.
                with contextlib.suppress(McpServerError):
                    if fault == "killed":
                        directory = tmp_path / episode.episode_id
                        directory.mkdir()
                        calling, process = await hanging(tools, directory)
                        os.kill(process, signal.SIGKILL)
                        await calling
                    elif fault:
                        await tools.call(fault)
                    (wanted,) = message["tool_calls"]
                    text = await tools.call("add", wanted["function"]["arguments"])
                    reply = {"role": "tool", "tool_call_id": wanted["id"], "content": text}
                    messages += [message, reply]
                    message = await ask(client, episode, messages, tools.definitions)
            return float("3" in (message["content"] or ""))

        async with (
            httpx2.AsyncClient() as client,
            shared,
            AsyncSwarmClient(swarm.url, swarm.token) as own,
        ):
            report = await own.run_episodes_until_all_complete(
                [str(number) for number in range(25)],
                agent,
                episodes_per_task=2,
                concurrency=50,
                retries=0,
            )
    assert len(report.outcomes) == 40
    assert [result.outcome.reward for result in report.outcomes] == [1.0] * 40
    aborted = [episode for episode in swarm.episodes() if episode.state == "aborted"]
    assert sorted(episode.task_id for episode in aborted) == sorted([*FAULTS, *FAULTS])
    for episode in aborted:
        fault, reason = FAULTS[episode.task_id]
        tool = "hangs" if fault == "killed" else fault
        assert f"MCP server 'faulty' failed in tool '{tool}': " in episode.reason
        assert reason in episode.reason
        assert episode.cause == ("timeout" if "no answer" in episode.reason else "error")
    assert len(processes) == 11
    assert not any(map(is_alive, processes))
