"""Drives a study, for the suite ``faults``: ``python -m ajet_cli.studies.driving STUDY DIRECTORY``.

It starts ``ajet mcp`` over stdio, and has the study led to its end by the tools. It may be killed
at any moment: called again, it continues the study.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.studies.drivers import over_stdio
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from mcp import Client

_PARALLEL = 2
_WAIT_SECONDS = 5.0
_STARTS = 20
"""Calls of ``research_start`` before it gives up."""


async def drive(project: Path, study: str, directory: str) -> str:
    """Start a study, or continue it; return why it is not finished in the end, "" if it is.

    :param study: path of the study file in the project; `directory` is that of the study.
    """
    async with over_stdio(project) as client:
        problem = "it was not led to its end"
        for _ in range(_STARTS):
            try:
                await _call(client, "research_start", study=study, parallel=_PARALLEL)
                if await _is_finished(client, directory):
                    return ""
            except ConfigError as error:
                # The leader that a killed driver has started may not have registered it yet.
                problem = error.message
        return f"after {_STARTS} starts: {problem}"


async def _is_finished(client: Client, directory: str) -> bool:
    """Wait until the study is finished, or no longer led; return whether it is finished."""
    while True:
        data = await _call(client, "research_wait", directory=directory, seconds=_WAIT_SECONDS)
        status = data["status"]
        if status["phase"] == "finished" or not status["leader"]:
            return bool(status["phase"] == "finished")


async def _call(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    if result.is_error or result.structured_content is None:
        raise ConfigError(f"{tool}: {getattr(result.content[0], 'text', result.content)}")
    data: dict[str, Any] = result.structured_content["data"]
    return data


def main(source: Path, directory: Path) -> int:
    """Drive a study; return the exit status."""
    project = source.parent
    where = directory.relative_to(project).as_posix()
    if problem := asyncio.run(drive(project, source.name, where)):
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
