"""Suite ``drivers``: one scripted researcher, by each way in which it can drive a study.

In-process, it calls the functions behind the commands. Elsewhere it calls the tools of ``ajet mcp``
over MCP: in memory, over stdio and over HTTP; and as the model of a real opencode, which starts
``ajet mcp`` over stdio. All of them have to leave the same ledger.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.studies.opencode import drive_opencode, why_absent
from ajet_cli.studies.scripted import (
    HOPELESS,
    HOPELESS_ACCEPTED,
    LIE,
    LIE_ACCEPTED,
    OUTPUT,
    PROPOSAL,
    QUESTION,
    STUDY,
    TOPIC,
    tool_calls,
    tools_environ,
)
from ajet_core.errors import AjetError, ConfigError
from ajet_research.leader import run_study
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.researchers import submit_proposal, submit_prose
from ajet_research.study import canonical
from ajet_research.suites.researching import GOOD_PROSE
from ajet_research.verifying import verify_study

if TYPE_CHECKING:
    from mcp import Client

_NAME = "assistant"
"""What the tools call the researcher."""
_SECONDS, _END_SECONDS = 600.0, 30.0
_TURN = 0.05
_SERVED = re.compile(r"^serving MCP at (\S+)\n", re.MULTILINE)
_MEASURED = frozenset({"host", "pid", "seconds"})
"""Of rows, what differs from run to run."""
_COMMAND = (sys.executable, "-P", "-m", "ajet_cli.main", "mcp")

Drive = Callable[[Path], list[str]]
"""Drives the study of a project's topic, and returns what went wrong."""


def run_drivers(*, seed: int, size: int | None = None) -> dict[str, Any]:
    """Drive the same study in each way, and compare the ledgers.

    A driver that needs a program that is not here is ``skipped``, with the reason, and the suite
    has then not passed. One beyond `size` is ``skipped``, too, but does not count.

    :param seed: nothing depends on it.
    :param size: how many ways, in the order of `DRIVERS`; all by default.
    :raises ConfigError: the package mcp is not installed.
    """
    _ = seed
    try:
        import mcp
    except ImportError as error:
        raise ConfigError(
            "the suite drivers needs the package mcp: pip install 'agentjet[mcp]>=0.1'"
        ) from error
    _ = mcp
    began = time.monotonic()
    ledgers: dict[str, str] = {}
    rows: dict[str, int] = {}
    problems: list[str] = []
    wanted = dict(list(DRIVERS.items())[:size])
    skipped = {name: why for name in wanted if (why := _ABSENT.get(name, str)())}
    with tempfile.TemporaryDirectory() as folder:
        for name, drive in wanted.items():
            if name in skipped:
                continue
            project = Path(folder) / name
            project.mkdir()
            (project / TOPIC).write_text(QUESTION, encoding="utf-8")
            try:
                wrong = drive(project)
                problems += [f"{name}: {one}" for one in wrong]
                if wrong:
                    continue
                text = ledger_text(project / STUDY)
            except (AjetError, OSError, TimeoutError) as error:
                problems.append(f"{name}: {type(error).__name__}: {error}")
                continue
            rows[name] = text.count("\n") + 1
            ledgers[name] = hashlib.sha256(text.encode()).hexdigest()
    return {
        "suite": "drivers",
        "drivers": rows,
        "ledgers": len(set(ledgers.values())),
        "digests": {name: digest[:12] for name, digest in ledgers.items()},
        "skipped": skipped | {name: f"size {size}" for name in DRIVERS if name not in wanted},
        "problems": problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not (problems or skipped) and len(set(ledgers.values())) == 1,
    }


def ledger_text(directory: Path) -> str:
    """Return the rows of a ledger, one a line, without what differs from run to run.

    The hashes of rows depend on their times, as the record does, and jumps of the clock on the
    machine.
    """
    lines = []
    for row in read_ledger(directory / LEDGER):
        if row.event.kind == "clock_jumped":
            continue
        body = row.event.model_dump(mode="json", by_alias=True)
        body = {key: value for key, value in body.items() if key not in _MEASURED}
        if row.event.kind == "reported":
            files = row.event.files.items()
            body["files"] = {
                name: content for name, content in files if not name.startswith("record.")
            }
        lines.append(canonical(body))
    return "\n".join(lines)


def _in_process(project: Path) -> list[str]:
    topic, output, study = (project / name for name in (TOPIC, OUTPUT, STUDY))
    problems = []
    if not submit_proposal(topic, output, HOPELESS, {}, name=_NAME).problems:
        problems.append(HOPELESS_ACCEPTED)
    if refused := submit_proposal(topic, output, PROPOSAL, {}, name=_NAME).problems:
        return [*problems, *refused]
    run_study(output, study)
    if not submit_prose(study, LIE, name=_NAME).problems:
        problems.append(LIE_ACCEPTED)
    problems += submit_prose(study, GOOD_PROSE, name=_NAME).problems
    return [*problems, *verify_study(study).problems]


async def _by_tools(client: Client) -> list[str]:
    """Do the same by tools.

    :raises ConfigError: a tool refused what it has to do, or the study is not led.
    """
    researcher = tool_calls()
    tool, arguments = next(researcher)
    while True:
        result = await client.call_tool(tool, arguments)
        if result.is_error or result.structured_content is None:
            raise ConfigError(f"{tool}: {getattr(result.content[0], 'text', result.content)}")
        try:
            tool, arguments = researcher.send(result.structured_content["data"])
        except StopIteration as done:
            problems: list[str] = done.value
            return problems


@asynccontextmanager
async def _in_memory(project: Path) -> AsyncIterator[Client]:
    from mcp import Client

    from ajet_cli.mcp.registry import ToolRegistry
    from ajet_cli.mcp.research import ResearchTools
    from ajet_cli.mcp.server import mcp_server

    async with Client(mcp_server(ToolRegistry(ResearchTools(project).tools()), list)) as client:
        yield client


@asynccontextmanager
async def over_stdio(project: Path) -> AsyncIterator[Client]:
    """Start ``ajet mcp`` in a project, and connect to it."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=_COMMAND[0], args=list(_COMMAND[1:]), cwd=project, env=tools_environ("none")
    )
    async with Client(stdio_client(server)) as client:
        yield client


@asynccontextmanager
async def _over_http(project: Path) -> AsyncIterator[Client]:
    # The package mcp needs it for its clients.
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    token = secrets.token_urlsafe(32)
    path = project / "mcp.log"
    # A pipe that is not read on would block it.
    with path.open("wb") as log:
        server = await asyncio.create_subprocess_exec(
            *(*_COMMAND, "--http", "--port", "0"),
            cwd=project,
            env=tools_environ(token),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        while not (served := _SERVED.search(path.read_text(encoding="utf-8", errors="replace"))):
            if server.returncode is not None:
                raise ConfigError("ajet mcp --http ended before it served")
            await asyncio.sleep(_TURN)
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=_SECONDS) as http,
            Client(streamable_http_client(served[1], http_client=http)) as client,
        ):
            yield client
    finally:
        if server.returncode is None:
            server.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_END_SECONDS):
                await server.wait()
        except TimeoutError:
            server.kill()
            await server.wait()


def _connected(
    connect: Callable[[Path], AbstractAsyncContextManager[Client]],
) -> Drive:
    async def driven(project: Path) -> list[str]:
        async with asyncio.timeout(_SECONDS), connect(project) as client:
            try:
                return await _by_tools(client)
            except AjetError as error:
                # Beyond this block, it would be one of a group of errors.
                return [error.message]

    return lambda project: asyncio.run(driven(project))


DRIVERS: dict[str, Drive] = {
    "in-process": _in_process,
    "memory": _connected(_in_memory),
    "stdio": _connected(over_stdio),
    "http": _connected(_over_http),
    "opencode": lambda project: drive_opencode(project, _SECONDS),
}
"""By name. Those that need another program are last, so that a size can leave them out."""
_ABSENT: dict[str, Callable[[], str]] = {"opencode": why_absent}
"""By driver, what returns why it cannot run here, "" if it can."""
