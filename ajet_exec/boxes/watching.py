"""The end of a program: by itself, by its time limit, or because it is no longer waited for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from ajet_core.interfaces import BoxExit

_SIGNAL_BASE = 128


async def watched(
    process: asyncio.subprocess.Process,
    *,
    timeout: float,
    grace: float,
    terminate: Callable[[], object],
    kill: Callable[[], Awaitable[object] | object],
) -> BoxExit:
    """Wait until a process ends, and kill everything that is left then.

    :param terminate: asks the program to end, after `timeout` seconds.
    :param kill: kills all processes of the box; called in any case.
    """
    began = time.monotonic()
    timed_out = False
    try:
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            timed_out = True
            terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
    finally:
        killing = asyncio.ensure_future(_killed(process, kill))
        await _undisturbed(killing)
    code = process.returncode
    assert code is not None
    status = _SIGNAL_BASE - code if code < 0 else code
    return BoxExit(status=status, timed_out=timed_out, seconds=time.monotonic() - began)


async def _killed(
    process: asyncio.subprocess.Process, kill: Callable[[], Awaitable[object] | object]
) -> None:
    result = kill()
    if isinstance(result, Awaitable):
        await result
    await process.wait()


async def _undisturbed(task: asyncio.Future[None]) -> None:
    """Wait for a task to its end, however often the caller is cancelled meanwhile."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
