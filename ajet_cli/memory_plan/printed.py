"""The memory of a run as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from ajet_cli.memory_plan.parts import GIB, ComponentMemory, MemoryPart, count
from ajet_cli.memory_plan.plan import USABLE, RunMemory, WayOut

_NAME = 20


def memory_lines(memory: RunMemory, ways: tuple[WayOut, ...]) -> Iterator[str]:
    """Yield lines that show all parts with their formulas, the sums, and the verdict."""
    machine = memory.machine
    yield f"model     {memory.shape}"
    beside = ", and as many for the engine" if machine.separate else ""
    yield f"machine   {count(machine.gpus, 'GPU')} of {machine.gpu_bytes / GIB:.1f} GiB{beside}"
    yield from _component("trainer", memory.trainer)
    yield from _component("engine", memory.engine.memory)
    room = memory.engine.room
    yield (
        f"cache     {room.all_tokens:,} tokens in {count(room.servers, 'server')}, "
        f"{room.token_bytes:,} B each: {memory.episodes:.1f} conversations of the longest context"
    )
    usable = machine.gpu_bytes * USABLE / GIB
    yield (
        f"each GPU  rolling out {memory.rolling_out / GIB:.1f}, training "
        f"{memory.training / GIB:.1f} of {usable:.1f} GiB ({USABLE:.0%} of its memory)"
    )
    yield f"host      {memory.host / GIB:.1f} GiB"
    for part in (*memory.trainer.host, *memory.engine.memory.host):
        yield _line(part)
    if not memory.problems:
        yield click.style("fits", fg="green")
        return
    for problem in memory.problems:
        yield f"{click.style('does not fit', fg='red')}: {problem}"
    for way in ways:
        yield f"  -> {way}"
    if not ways:
        yield "  -> take more or larger GPUs, or a smaller model: no change of settings is enough"


def memory_json(memory: RunMemory, ways: tuple[WayOut, ...]) -> dict[str, Any]:
    """Return the same as plain data; sizes are bytes."""
    room = memory.engine.room
    return {
        "model": {"name": memory.shape.name, "parameters": memory.shape.parameters},
        "gpus": memory.machine.gpus,
        "gpu_bytes": memory.machine.gpu_bytes,
        "trainer": _plain(memory.trainer),
        "engine": _plain(memory.engine.memory),
        "kv_token_bytes": room.token_bytes,
        "kv_tokens": room.all_tokens,
        "conversations": round(memory.episodes, 2),
        "rolling_out_bytes": memory.rolling_out,
        "training_bytes": memory.training,
        "host_bytes": memory.host,
        "fits": not memory.problems,
        "problems": list(memory.problems),
        "ways_out": [dict(way.changes) for way in ways],
    }


def _component(kind: str, memory: ComponentMemory) -> Iterator[str]:
    last = f"s 0 to {memory.gpus - 1}" if memory.gpus > 1 else " 0"
    yield f"{kind:<9} {memory.title}, on GPU{last}"
    for part in (*memory.resident, *memory.working):
        yield _line(part)


def _line(part: MemoryPart) -> str:
    return f"{'':<9} {part.name:<{_NAME}} {part.size / GIB:8.2f} GiB  {part.formula}"


def _plain(memory: ComponentMemory) -> dict[str, Any]:
    return {
        "title": memory.title,
        "gpus": memory.gpus,
        "resident": {part.name: part.size for part in memory.resident},
        "working": {part.name: part.size for part in memory.working},
        "host": {part.name: part.size for part in memory.host},
    }
