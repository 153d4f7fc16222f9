"""Facts about the machine: its GPUs, their memory, and what an interpreter sees of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from ajet_core.errors import WorkerError
from ajet_installation.environment import Interpreter

_TAIL = 15
_SMI_SECONDS = 20.0
_NAME, _DRIVER = range(2)
# `ajet demo` needs up to 35 s to stop its server.
_TERMINATED_SECONDS = 45.0
_KILLED_SECONDS = 5.0


async def gpus() -> tuple[list[str], str]:
    """Return the names of the GPUs and the driver's version; no names without ``nvidia-smi``."""
    rows = [row for row in await _smi("name,driver_version") if len(row) > _DRIVER]
    return [row[_NAME] for row in rows], rows[0][_DRIVER] if rows else ""


async def memory_used() -> float | None:
    """Return the memory in use on all GPUs, in GiB; None if ``nvidia-smi`` does not report it."""
    rows = await _smi("memory.used")
    try:
        return round(sum(float(row[0]) for row in rows) / 1024, 2) if rows else None
    except ValueError:
        # Virtual GPUs report "[N/A]".
        return None


async def _smi(fields: str) -> list[list[str]]:
    command = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    try:
        async with asyncio.timeout(_SMI_SECONDS):
            code, output, _ = await _run(command, {**os.environ}, _KILLED_SECONDS)
    # A broken driver can stop it for good.
    except (OSError, TimeoutError):
        return []
    lines = output.splitlines() if code == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines]


async def _run(
    command: tuple[str, ...], environment: Mapping[str, str], patience: float
) -> tuple[int | None, str, str]:
    """Run a command, and end it if the caller is cancelled.

    :param patience: seconds after SIGTERM until it is killed.
    :return: exit status, standard output and standard error.
    :raises OSError: it cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        # Otherwise Ctrl-C would reach it too, and this process's signal interrupt its cleanup.
        start_new_session=True,
    )
    communicating = asyncio.create_task(process.communicate())
    try:
        output, errors = await asyncio.shield(communicating)
    except asyncio.CancelledError:
        for end, seconds in ((process.terminate, patience), (process.kill, _KILLED_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                end()
            # Reading on, because a full pipe would keep it from ending.
            done, _ = await asyncio.wait([communicating], timeout=seconds)
            if done:
                break
        communicating.cancel()
        raise
    return process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace")


async def run_module(
    interpreter: Interpreter | None, *arguments: str, **variables: str
) -> dict[str, Any]:
    """Run ``python -m`` with these arguments, and return the JSON object that it prints last.

    :param interpreter: None for this process's.
    :param variables: environment variables.
    :raises WorkerError: it failed; the message has the last lines of its output.
    """
    interpreter = interpreter or Interpreter(sys.executable)
    command = (interpreter.python, "-m", *arguments)
    environment = {**interpreter.environ(os.environ), "HF_HUB_OFFLINE": "1", **variables}
    try:
        code, output, errors = await _run(command, environment, _TERMINATED_SECONDS)
    except OSError as error:
        raise WorkerError(f"cannot run {interpreter.python!r}: {error}") from error
    # Libraries may print lines of their own, before and after.
    printed = [line for line in output.splitlines() if line.startswith("{")]
    if code != 0 or not printed:
        tail = "\n".join(errors.splitlines()[-_TAIL:])
        raise WorkerError(
            f"{' '.join(command[:4])} failed with exit status {code}; its last lines:\n{tail}"
        )
    result: dict[str, Any] = json.loads(printed[-1])
    return result


async def on_device(interpreter: Interpreter | None, *arguments: str) -> dict[str, Any]:
    """Run a command of `ajet_torch.on_device`, and return what it printed."""
    return await run_module(interpreter, "ajet_torch.on_device", *arguments)
