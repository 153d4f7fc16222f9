"""Run the programs of one module in all cases: `run.py MODULE ARGUMENTS`, with `Arguments` as JSON.

The results of the episodes are written as a JSON list to the file that the arguments name, because
some frameworks print to the terminal.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from agentjet.agents import current_route, trainable
from agentjet.client import AsyncSwarmClient, Task
from compat_cases.contract import AGENT, CASES, server_of, task_text

Program = Callable[[str], Any]


class Arguments(TypedDict):
    """What to run, and where.

    :ivar servers: URL and token of each server.
    :ivar first: number of the first task; each task has a unique name.
    :ivar output: file for the results.
    """

    servers: dict[str, tuple[str, str]]
    cases: list[str]
    episodes: int
    first: int
    output: str


async def main(module: str, arguments: Arguments) -> list[dict[str, Any]]:
    """Run each case that the module supports, with its episodes in parallel."""
    programs = importlib.import_module(f"compat_cases.{module}")
    found: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        clients = {
            server: await stack.enter_async_context(AsyncSwarmClient(url, token))
            for server, (url, token) in arguments["servers"].items()
        }
        number = arguments["first"]
        for case in arguments["cases"]:
            program = getattr(programs, case)
            if program is None:
                continue
            client = clients[server_of(case)]
            case_of = Case(
                name=case,
                program=program,
                agent="" if case in getattr(programs, "NAMELESS", ()) else AGENT,
            )
            names = [f"t{i:04}x" for i in range(number, number + arguments["episodes"])]
            number += len(names)
            found += await asyncio.gather(*(one(client, case_of, name) for name in names))
    return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case of a framework.

    :param agent: name of the agent that makes its calls.
    """

    name: str
    program: Program
    agent: str


async def one(client: AsyncSwarmClient, case: Case, name: str) -> dict[str, Any]:
    """Run one episode."""
    said: dict[str, Any] = {
        "case": case.name,
        "agent": case.agent,
        "name": name,
        "passed": False,
        "error": "",
        "sent": 0,
        "answered": 0,
    }

    async def plays(_: str) -> float:
        route = current_route()
        assert route is not None
        said["episode_id"] = episode.episode_id
        try:
            result = await _called(case.program, task_text(case.name, name))
        finally:
            said.update(sent=route.sent, answered=route.answered)
        said["passed"] = CASES[case.name](result)
        if not said["passed"]:
            said["error"] = f"returned {result!r}"[:300]
        return 1.0

    async with client.episode(name) as episode:
        episode.reward = 1.0
        try:
            await trainable(plays).agent(Task(name), episode)
        except Exception as error:  # noqa: BLE001 - what a framework raises is what is looked at
            said["passed"] = False
            last = traceback.extract_tb(error.__traceback__)[-1]
            said["error"] = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"[:500]
    return said


async def _called(program: Program, text: str) -> Any:
    if inspect.iscoroutinefunction(program):
        waiting: Awaitable[Any] = program(text)
        return await waiting
    return await asyncio.to_thread(program, text)


if __name__ == "__main__":
    arguments: Arguments = json.loads(sys.argv[2])
    results = asyncio.run(main(sys.argv[1], arguments))
    Path(arguments["output"]).write_text(json.dumps(results))
