"""Run several completions concurrently: gather their results, or merge their chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

T = TypeVar("T")


async def gathered(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run `work` concurrently and return the results; a failure or a cancellation cancels all."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _stop(tasks)


def merged(parts: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the items of all `parts` as they arrive; closing this closes all parts."""
    return parts[0] if len(parts) == 1 else _merged(parts)


async def _merged(parts: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    queue: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()

    async def pump(part: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(part):
                async for item in part:
                    queue.put_nowait((item,))
        except Exception as error:  # noqa: BLE001 - raised again below, for the reader
            queue.put_nowait(error)
        else:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(part)) for part in parts]
    try:
        for _ in tasks:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item[0]
    finally:
        await _stop(tasks)


async def _stop(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
