"""Tools of real MCP servers over stdio and HTTP, with every fault that a server can have."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentjet.mcp import HttpServer, McpServerError, McpServers, McpTimeoutError, StdioServer
from ajet_core.errors import ConfigError

pytest.importorskip("mcp")
pytestmark = pytest.mark.processes
SCRIPT = str(Path(__file__).with_name("faulty_server.py"))


def stdio(name: str = "faulty", *args: str, **options: Any) -> StdioServer:
    return StdioServer(name, sys.executable, [SCRIPT, *args], **options)


@contextlib.contextmanager
def http() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server over HTTP, and its URL."""
    with subprocess.Popen(
        [sys.executable, SCRIPT, "http"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http() as (_, url):
        yield url


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> Any:
    """A function that describes a server of one of the transports."""
    if request.param == "stdio":
        return stdio
    url = request.getfixturevalue("url")
    return lambda name="faulty", **options: HttpServer(name, url, **options)


async def call(servers: McpServers, name: str, arguments: Any = None) -> str:
    async with servers.tools() as tools:
        return await tools.call(name, arguments)


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def gone(*processes: int) -> None:
    """Wait until processes have ended: a signal arrives a moment after it was sent."""
    while any(map(is_alive, processes)):
        await asyncio.sleep(0.01)


async def hanging(tools: Any, directory: Path, name: str = "hangs") -> tuple[asyncio.Task, int]:
    """A call that has begun and does not end, and the process of its server."""
    started = directory / "started"
    calling = asyncio.create_task(tools.call(name, {"started": str(started)}))
    ready = Path(f"{started}.ready")
    while not ready.exists():
        await asyncio.sleep(0.01)
        assert not calling.done()
    process = int(ready.read_text())
    ready.unlink()
    return calling, process


async def test_definitions_are_those_of_chat_completions(server: Any) -> None:
    async with McpServers(server()).tools() as tools:
        first = tools.definitions[0]
        names = [tool["function"]["name"] for tool in tools.definitions]
    assert first["type"] == "function"
    assert first["function"]["description"] == "Add two numbers."
    assert first["function"]["parameters"]["required"] == ["a", "b"]
    assert "odd_name" in names


async def test_results_are_text(server: Any) -> None:
    async with McpServers(server()).tools() as tools:
        assert await tools.call("add", '{"a": 1, "b": 2}') == "3"
        assert await tools.call("add", {"a": 1, "b": 3}) == "4"
        assert await tools.call("odd_name", "") == "odd"
        assert await tools.call("picture") == "a dot\n[image: image/png, 8 bytes]"
        assert await tools.call("figures") == '{"mean": 0.5}'


async def test_mistakes_of_the_model_are_text_for_it(server: Any) -> None:
    async with McpServers(server()).tools() as tools:
        assert (await tools.call("subtract", "{}")).startswith("Error: there is no tool 'subtract'")
        assert "not valid JSON" in await tools.call("add", '{"a": 1')
        assert "not a JSON object" in await tools.call("add", "[1, 2]")
        assert "not valid JSON" in await tools.call("variable", '{"name": "\\ud83d"}')
        assert "not valid JSON" in await tools.call("variable", {"name": "\ud83d"})
        assert "valid integer" in await tools.call("add", {"a": "one", "b": 2})
        assert "fails" in await tools.call("fails")
        assert await tools.call("add", {"a": 1, "b": 2}) == "3"


async def test_a_tool_that_reports_an_error_can_end_the_episode(server: Any) -> None:
    with pytest.raises(McpServerError, match="failed in tool 'fails': the tool reported an error"):
        await call(McpServers(server(tool_errors="raise")), "fails")


async def test_names_in_several_servers_are_prefixed(url: str) -> None:
    servers = McpServers(stdio("one"), HttpServer("two", url))
    async with servers.tools() as tools:
        names = {tool["function"]["name"] for tool in tools.definitions}
        assert {"one_add", "two_add", "one_odd_name", "two_odd_name"} <= names
        assert len(names) == len(tools.definitions)
        pids = {await tools.call("one_process"), await tools.call("two_process")}
    assert len(pids) == 2


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("refuses", {}, "MCPError: the disk is full"),
        ("dies", {}, r"MCPError: Connection closed[\s\S]*out of paper"),
        ("blocks", {}, "no answer within 2 s"),
        ("only_garbage", {}, "no answer within 2 s; the server sent .*'debugging: here'"),
    ],
)
async def test_faults_name_server_tool_and_cause(
    tool: str, arguments: dict[str, Any], reason: str
) -> None:
    servers = McpServers(stdio(call_timeout=2))
    with pytest.raises(McpServerError, match=f"'faulty' failed in tool '{tool}': {reason}") as info:
        await call(servers, tool, arguments)
    assert isinstance(info.value, McpTimeoutError) == ("no answer" in reason)
    assert pickle.loads(pickle.dumps(info.value)).args == info.value.args
    assert await call(servers, "add", {"a": 1, "b": 2}) == "3"


@pytest.mark.parametrize("binary", [False, True])
async def test_garbage_between_messages_does_no_harm(binary: bool) -> None:
    assert await call(McpServers(stdio()), "garbage", {"binary": binary}) == "after garbage"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("dies", r"MCPError: Connection closed[\s\S]*no licence"),
        ("hangs", "no answer within 2 s"),
        ("garbage", "no answer within 2 s; the server sent .*'Welcome!'"),
    ],
)
async def test_faults_at_the_start_are_named(fault: str, reason: str) -> None:
    with pytest.raises(McpServerError, match=f"'faulty' did not start: {reason}"):
        await call(McpServers(stdio("faulty", fault, start_timeout=2)), "add")


async def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(McpServerError, match=r"did not start: [\s\S]*/nonexistent"):
        await call(McpServers(StdioServer("none", "/nonexistent")), "add")


async def test_a_server_that_is_not_there_is_named() -> None:
    with http() as (process, url):
        process.kill()
        process.wait()
        with pytest.raises(McpServerError, match="'web' did not start: ConnectError"):
            await call(McpServers(HttpServer("web", url)), "add")


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_server_that_is_killed_in_a_call_ends_it(
    transport: str, shared: bool, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        if transport == "stdio":
            server: Any = stdio(shared=shared)
        else:
            server = HttpServer("faulty", stack.enter_context(http())[1], shared=shared)
        async with McpServers(server) as servers:
            failure = "'faulty' failed in tool 'hangs': "
            with pytest.raises(McpServerError, match=failure):  # noqa: PT012
                async with servers.tools() as tools:
                    calling, process = await hanging(tools, tmp_path)
                    os.kill(process, signal.SIGKILL)
                    await calling
            if transport == "stdio":
                assert await call(servers, "add", {"a": 1, "b": 2}) == "3"


async def test_a_failure_that_the_program_catches_still_ends_the_episode() -> None:
    servers = McpServers(stdio())
    with pytest.raises(McpServerError, match="failed in tool 'dies'"):  # noqa: PT012
        async with servers.tools() as tools:
            with contextlib.suppress(McpServerError):
                await tools.call("dies")
            with pytest.raises(McpServerError, match="failed in tool 'dies'"):
                await tools.call("add", {"a": 1, "b": 2})
    with pytest.raises(McpServerError, match="failed in tool 'dies'") as info:  # noqa: PT012
        async with servers.tools() as tools:
            try:
                await tools.call("dies")
            except McpServerError as error:
                raise ValueError("the framework failed") from error
    assert isinstance(info.value.__cause__, ValueError)


async def test_processes_end_with_their_episode_and_so_do_their_children() -> None:
    async with McpServers(stdio()).tools() as tools:
        process, child = int(await tools.call("process")), int(await tools.call("child"))
        assert is_alive(process)
        assert is_alive(child)
    await gone(process, child)


async def test_processes_end_when_the_episode_is_cancelled(tmp_path: Path) -> None:
    processes: list[int] = []

    async def episode() -> None:
        async with McpServers(stdio()).tools() as tools:
            processes.append(int(await tools.call("child")))
            calling, process = await hanging(tools, tmp_path)
            processes.append(process)
            reached.set()
            await calling

    reached = asyncio.Event()
    running = asyncio.create_task(episode())
    await reached.wait()
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(processes) == 2
    await gone(*processes)


async def test_a_start_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1] + '.new').write_text(str(os.getpid()))\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(3600)\n"
    )
    number = tmp_path / "pid"
    servers = McpServers(StdioServer("slow", sys.executable, [str(script), str(number)]))
    starting = asyncio.create_task(call(servers, "add"))
    while not number.exists():
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_alive(int(number.read_text()))


@pytest.mark.parametrize("cancels", [True, False])
def test_shared_servers_end_with_the_event_loop(cancels: bool) -> None:
    async def main() -> int:
        return int(await call(McpServers(stdio(shared=True)), "process"))

    if cancels:
        assert not is_alive(asyncio.run(main()))
        return
    # A loop that is abandoned, by a program that then ends.
    program = (
        "import asyncio, sys\n"
        "from tests.mcp.test_mcp import McpServers, call, stdio\n"
        "loop = asyncio.new_event_loop()\n"
        "servers = McpServers(stdio(shared=True))\n"
        "print(loop.run_until_complete(call(servers, 'child')), flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert not is_alive(int(ended.stdout))


async def test_a_shared_server_serves_all_episodes_and_is_started_again(server: Any) -> None:
    async with McpServers(server(shared=True)) as servers:
        processes = await asyncio.gather(*(call(servers, "process") for _ in range(20)))
        assert len(set(processes)) == 1
        if isinstance(servers._servers[0], HttpServer):
            return
        os.kill(int(processes[0]), signal.SIGKILL)
        while is_alive(int(processes[0])):
            await asyncio.sleep(0.01)
        again = processes[0]
        while again == processes[0]:
            # A call that begins before its end is noticed fails with it.
            with contextlib.suppress(McpServerError):
                again = await call(servers, "process")
    await gone(int(again))


def test_shared_servers_can_be_used_in_one_event_loop_after_another() -> None:
    servers = McpServers(stdio(shared=True))
    first = asyncio.run(call(servers, "process"))
    second = asyncio.run(call(servers, "process"))
    assert first != second
    asyncio.run(gone(int(first), int(second)))


async def test_a_shared_server_that_is_stuck_is_replaced() -> None:
    async with McpServers(stdio(shared=True, call_timeout=1)) as servers:
        first = await call(servers, "process")
        with pytest.raises(McpTimeoutError):
            await call(servers, "blocks")
        assert await call(servers, "process") != first
        await gone(int(first))


async def test_a_server_that_fails_too_often_is_refused_for_a_while() -> None:
    now = [0.0]
    servers = McpServers(stdio(), ban_after=2, ban_seconds=60, clock=lambda: now[0])
    for _ in range(2):
        with pytest.raises(McpServerError, match="Connection closed"):
            await call(servers, "dies")
    now[0] = 20.0
    with pytest.raises(
        McpServerError,
        match=r"'faulty' did not start: refused for another 40 s after 2 failures in a row\. "
        "The last one: MCP server 'faulty' failed in tool 'dies'",
    ):
        await call(servers, "add", {"a": 1, "b": 2})
    now[0] = 61.0
    assert await call(servers, "add", {"a": 1, "b": 2}) == "3"
    with pytest.raises(McpServerError, match="Connection closed"):
        await call(servers, "dies")
    assert await call(servers, "add", {"a": 1, "b": 2}) == "3"


async def test_after_a_ban_one_failure_bans_again() -> None:
    now = [0.0]
    servers = McpServers(stdio("faulty", "dies"), ban_after=2, ban_seconds=60, clock=lambda: now[0])
    for _ in range(2):
        with pytest.raises(McpServerError, match="no licence"):
            await call(servers, "add")
    now[0] = 61.0
    with pytest.raises(McpServerError, match="did not start: MCPError"):
        await call(servers, "add")
    with pytest.raises(McpServerError, match="refused for another 60 s after 3 failures"):
        await call(servers, "add")


async def test_calls_that_a_shared_server_loses_at_once_are_one_failure(tmp_path: Path) -> None:
    async with McpServers(stdio(shared=True), ban_after=2) as servers:
        async with contextlib.AsyncExitStack() as stack:
            every = [await stack.enter_async_context(servers.tools()) for _ in range(3)]
            hung = []
            for tools in every:
                calling, process = await hanging(tools, tmp_path)
                hung.append(calling)
            os.kill(process, signal.SIGKILL)
            errors = await asyncio.gather(*hung, return_exceptions=True)
            assert [type(error) for error in errors] == [McpServerError] * 3
            for tools in every:
                tools._failure = None
        assert await call(servers, "add", {"a": 1, "b": 2}) == "3"


EPISODE = contextvars.ContextVar("EPISODE", default="")


async def test_a_server_is_answered_in_the_context_of_its_episode(server: Any) -> None:
    asked = []

    async def sample(messages: list[dict[str, str]], max_tokens: int) -> str:
        asked.append((messages, max_tokens))
        return f"{EPISODE.get()} says {messages[-1]['content']}"

    async def episode(name: str) -> str:
        EPISODE.set(name)
        async with McpServers(server()).tools(sample=sample) as tools:
            return await tools.call("asks", {"question": f"hello to {name}"})

    assert await asyncio.gather(*map(episode, "ab")) == [
        "The model says: a says hello to a",
        "The model says: b says hello to b",
    ]
    system = {"role": "system", "content": "Be brief."}
    assert ([system, {"role": "user", "content": "hello to a"}], 16) in asked


async def test_the_time_of_a_model_call_is_not_that_of_the_server() -> None:
    limit = 1.0

    async def sample(messages: list[dict[str, str]], max_tokens: int) -> str:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.call_later(2 * limit, over.set)
        await over.wait()
        return "at last"

    async with McpServers(stdio(call_timeout=limit)).tools(sample=sample) as tools:
        assert await tools.call("asks", {"question": "hello"}) == "The model says: at last"


async def test_an_answer_that_is_no_text_is_the_fault_of_the_program() -> None:
    async def sample(messages: list[dict[str, str]], max_tokens: int) -> Any:
        return None

    servers = McpServers(stdio(), ban_after=1)

    async def episode() -> None:
        async with servers.tools(sample=sample) as tools:
            await tools.call("asks", {"question": "hello"})

    # The second one is not refused: the server has not failed.
    for _ in range(2):
        with pytest.raises(TypeError, match="must return the text of the answer, not None"):
            await episode()


async def test_a_model_call_that_fails_ends_the_episode_that_a_server_asked_in() -> None:
    busy = RuntimeError("the model is busy")

    async def sample(messages: list[dict[str, str]], max_tokens: int) -> str:
        raise busy

    async def episode() -> None:
        async with McpServers(stdio()).tools(sample=sample) as tools:
            with pytest.raises(RuntimeError, match="is busy"):
                await tools.call("asks", {"question": "hello"})
            # A program that catches the error can make no further call.
            with pytest.raises(RuntimeError, match="is busy"):
                await tools.call("add", {"a": 1, "b": 2})

    with pytest.raises(RuntimeError) as caught:
        await episode()
    assert caught.value is busy


async def test_a_server_that_asks_a_program_without_a_model_is_refused() -> None:
    with pytest.raises(McpServerError, match="did not declare the sampling capability"):
        await call(McpServers(stdio()), "asks", {"question": "hello"})


async def test_servers_receive_only_variables_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of-the-episode")
    monkeypatch.setenv("AJET_TOKEN", "of-the-client")
    servers = McpServers(stdio(env={"COLOUR": "red"}))
    async with servers.tools() as tools:
        assert await tools.call("variable", {"name": "OPENAI_API_KEY"}) == "(not set)"
        assert await tools.call("variable", {"name": "AJET_TOKEN"}) == "(not set)"
        assert await tools.call("variable", {"name": "COLOUR"}) == "red"
    async with servers.tools(env={"faulty": {"OPENAI_API_KEY": "given"}}) as tools:
        assert await tools.call("variable", {"name": "OPENAI_API_KEY"}) == "given"
        assert await tools.call("variable", {"name": "COLOUR"}) == "red"


async def test_settings_that_cannot_work_are_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="two MCP servers have the name 'one'"):
        McpServers(stdio("one"), stdio("one"))
    with pytest.raises(ConfigError, match="'a b' cannot be the name of an MCP server"):
        stdio("a b")
    with pytest.raises(ConfigError, match="time limits of MCP server 'one' must be positive"):
        stdio("one", call_timeout=0)
    with pytest.raises(ConfigError, match="ban_after must be at least 1"):
        McpServers(stdio(), ban_after=0)
    servers = McpServers(HttpServer("web", url), stdio("both", shared=True))
    for name, message in {
        "web": "no process for each episode",
        "both": "no process for each episode",
        "other": "there is no MCP server 'other'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            async with servers.tools(env={name: {"A": "b"}}):
                pass
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'agentjet\[mcp\]>=0.1'"):
        McpServers(stdio())
