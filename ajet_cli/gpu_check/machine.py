"""Facts about the machine: its GPUs, their memory, and what an interpreter sees of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from ajet_core.errors import WorkerError
from ajet_installation.environment import Interpreter

_TAIL = 15
_SMI_SECONDS = 20.0


async def gpus() -> tuple[list[str], str]:
    """Return the names of the GPUs and the driver's version; no names without ``nvidia-smi``."""
    rows = await _smi("name,driver_version")
    return [row[0] for row in rows], rows[0][1] if rows else ""


async def memory_used() -> float | None:
    """Return the memory in use on all GPUs, in GiB; None without ``nvidia-smi``."""
    rows = await _smi("memory.used")
    try:
        return round(sum(float(row[0]) for row in rows) / 1024, 2) if rows else None
    except ValueError:
        # Virtual GPUs report "[N/A]".
        return None


async def _smi(fields: str) -> list[list[str]]:
    try:
        process = await asyncio.create_subprocess_exec(
            "nvidia-smi",
            f"--query-gpu={fields}",
            "--format=csv,noheader,nounits",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return []
    try:
        async with asyncio.timeout(_SMI_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return []
    if process.returncode != 0:
        return []
    return [[cell.strip() for cell in line.split(",")] for line in output.decode().splitlines()]


async def run_module(interpreter: Interpreter | None, *arguments: str) -> str:
    """Run ``python -m`` with these arguments, and return its standard output.

    :param interpreter: None for this process's.
    :raises WorkerError: it failed; the message has the last lines of its output.
    """
    interpreter = interpreter or Interpreter(sys.executable)
    try:
        process = await asyncio.create_subprocess_exec(
            interpreter.python,
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**interpreter.environ(os.environ), "HF_HUB_OFFLINE": "1"},
        )
    except OSError as error:
        raise WorkerError(f"cannot run {interpreter.python!r}: {error}") from error
    try:
        output, errors = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        raise
    if process.returncode != 0:
        tail = "\n".join(errors.decode("utf-8", "replace").splitlines()[-_TAIL:])
        raise WorkerError(
            f"{interpreter.python} -m {' '.join(arguments[:2])} failed with exit status "
            f"{process.returncode}:\n{tail}"
        )
    return output.decode("utf-8", "replace")


async def on_device(interpreter: Interpreter | None, *arguments: str) -> dict[str, Any]:
    """Run a command of `ajet_torch.on_device`, and return what it printed."""
    printed = await run_module(interpreter, "ajet_torch.on_device", *arguments)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result
