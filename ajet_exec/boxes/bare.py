"""The sandbox ``none``: a process group of the host. It separates nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import ClassVar

from ajet_core.errors import SandboxError
from ajet_core.interfaces import BoxExit, BoxProgram, Sandbox
from ajet_exec.boxes import owners
from ajet_exec.boxes.capture import captured
from ajet_exec.boxes.tools import limited, missing_tools, tool
from ajet_exec.boxes.watching import watched


class BareSandbox(Sandbox):
    """Runs programs with the files, the network and the user of the launcher.

    What it gives up: a program reads and writes whatever the launcher's user may, including the
    tokens of local servers, reaches every network, sees other processes, and may be as many
    processes as the user may have. Children are found by a variable of their environment, so those
    that remove it survive.
    """

    isolated: ClassVar[bool] = False
    limits_of: ClassVar[Mapping[str, str]] = {"processes": "nothing"}

    def problem(self) -> str:
        """Return which program is missing."""
        return missing_tools("setpriv", "prlimit")

    def remove_leftovers(self) -> None:
        """Kill processes of launchers that are gone."""
        owners.kill_marked(owners.is_gone)

    async def run(self, program: BoxProgram, *, timeout: float, grace: float = 5.0) -> BoxExit:
        """Run a program in a session of its own, and kill all its descendants at the end.

        :raises SandboxError: it cannot be started.
        """
        if problem := self.problem():
            raise SandboxError(problem)
        mark = owners.new_mark()
        async with contextlib.AsyncExitStack() as stack:
            limit = program.limits.output_bytes
            out = await stack.enter_async_context(captured(program.stdout, limit))
            err = await stack.enter_async_context(captured(program.stderr, limit))
            stdin = os.open(program.stdin or os.devnull, os.O_RDONLY)
            try:
                # Should the launcher be killed, the program dies with it.
                process = await asyncio.create_subprocess_exec(
                    *(tool("setpriv"), "--pdeathsig", "KILL", "--"),
                    *limited(program.limits, processes=False),
                    *program.argv,
                    env={**program.environ, owners.VARIABLE: mark},
                    cwd=program.work,
                    stdin=stdin,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            finally:
                out.close()
                err.close()
                os.close(stdin)

            def to_group(number: int) -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

            async def kill() -> None:
                to_group(signal.SIGKILL)
                await asyncio.to_thread(owners.kill_marked, mark.__eq__)

            return await watched(
                process,
                timeout=timeout,
                grace=grace,
                terminate=lambda: to_group(signal.SIGTERM),
                kill=kill,
            )
