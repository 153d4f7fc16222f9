"""Count the functions and modules of agentjet that run between a call's request and its answer.

A real server in this process, whose worker hosts the scripted engine, answers the fourth call of a
conversation: a request that continues the one before, on the way that `docs/one-call.md` describes.
Python's profiler notes every function that runs in the server, helpers included. `--list` prints
them in the order of their first run.

The JSON line comes last: `functions`, `modules`, and `runs`, the number of calls of these
functions.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from reporting import report

from ajet_testing.servers import ServerFactory, key, write_scripted_model

ROOT = Path(__file__).parents[1]
# What Python makes functions of, and readers of the code do not.
NO_FUNCTIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>")
CALLS = 4


class Profile:
    """Notes the functions of this project that run."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, str]] = Counter()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; a profile function of Python."""
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or code.co_name in NO_FUNCTIONS or not path.is_relative_to(ROOT):
            return
        module = path.relative_to(ROOT)
        if module.parts[0].startswith("ajet_") and module.parts[0] != "ajet_testing":
            self.runs[str(module), code.co_qualname] += 1


async def measure(directory: Path, profile: Profile) -> None:
    """Make the calls, and profile the last one."""
    model = write_scripted_model(directory / "models" / "tiny")
    async with ServerFactory(model, directory / "run").running() as server:
        await server.roll()
        grant = await server.claim("task")
        messages: list[dict[str, Any]] = []
        for number in range(1, CALLS + 1):
            messages.append({"role": "user", "content": f"question {number}"})
            if number == CALLS:
                sys.setprofile(profile.note)
                threading.setprofile(profile.note)
            answer = await server.http.post(
                "/v1/chat/completions",
                headers=key(grant),
                json={"model": "any", "messages": messages},
            )
            sys.setprofile(None)
            answer.raise_for_status()
            messages.append(answer.json()["choices"][0]["message"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the functions")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    profile = Profile()
    with tempfile.TemporaryDirectory(prefix="ajet-one-call-") as directory:
        asyncio.run(measure(Path(directory), profile))
    if options.list:
        for module, function in profile.runs:
            print(f"{module}  {function}")
    report(
        {
            "functions": len(profile.runs),
            "modules": len({module for module, _ in profile.runs}),
            "runs": profile.runs.total(),
        },
        options.output,
    )


if __name__ == "__main__":
    main()
