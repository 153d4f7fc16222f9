"""The command `ajet mcp` as assistants use it: over stdio, and over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

pytest.importorskip("mcp")

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

pytestmark = pytest.mark.processes
COMMAND = [sys.executable, "-P", "-m", "ajet_cli.main", "mcp"]


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[ScriptedSwarm]:
    replies = [ScriptedReply(prompt="", says=("Yes.<|im_end|>",))]
    with ScriptedSwarm(tmp_path / "swarm", replies) as swarm:
        yield swarm


async def test_an_assistant_starts_it_over_stdio(swarm: ScriptedSwarm, tmp_path: Path) -> None:
    # A module of the project must not be imported instead of ours.
    (tmp_path / "click.py").write_text("raise SystemExit('imported')")
    server = StdioServerParameters(
        command=COMMAND[0],
        args=COMMAND[1:],
        cwd=tmp_path,
        env={"PATH": "", "AJET_URL": swarm.url, "AJET_TOKEN": swarm.tokens.control},
    )
    async with Client(stdio_client(server)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"swarm_status", "swarm_start", "swarm_wait"} <= names
        status = await client.call_tool("swarm_status", {})
        assert status.structured_content["data"]["state"] == "ROLLING"
        started = await client.call_tool("swarm_start", {})
        assert started.structured_content["data"]["state"] == "ROLLING"


@pytest.fixture
def over_http(swarm: ScriptedSwarm) -> Iterator[str]:
    """The URL of a process that serves over HTTP."""
    environ = {**os.environ, "AJET_URL": swarm.url, "AJET_TOKEN": swarm.tokens.control}
    process = subprocess.Popen(
        [*COMMAND, "--http", "--port", "0"], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        yield process.stderr.readline().split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


async def test_it_serves_holders_of_the_token_over_http(
    swarm: ScriptedSwarm, over_http: str
) -> None:
    headers = {"authorization": f"Bearer {swarm.tokens.control}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        async with Client(streamable_http_client(over_http, http_client=http)) as client:
            status = await client.call_tool("swarm_status", {})
            assert status.structured_content["data"]["state"] == "ROLLING"


async def test_http_needs_the_token_and_refuses_other_names_of_the_host(
    swarm: ScriptedSwarm, over_http: str
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    right = {"authorization": f"Bearer {swarm.tokens.control}"}
    async with httpx2.AsyncClient() as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": swarm.token}):
            refused = await http.post(over_http, json=body, headers=accept | headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        # The client's token is valid at the swarm server, but its scope is another.
        other = {"authorization": f"Bearer {swarm.token}"}
        assert (await http.post(over_http, json=body, headers=accept | other)).status_code == 401
        rebound = accept | right | {"host": "evil.example"}
        assert (await http.post(over_http, json=body, headers=rebound)).status_code == 421
        browser = accept | right | {"origin": "http://evil.example"}
        assert (await http.post(over_http, json=body, headers=browser)).status_code == 403


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "mcp").mkdir()
    (tmp_path / "mcp" / "__init__.py").write_text("raise ImportError('away')")
    done = subprocess.run(
        [sys.executable, "-m", "ajet_cli.main", "mcp"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("requires the package mcp in version 2: pip install 'agentjet[mcp]>=0.1'")
