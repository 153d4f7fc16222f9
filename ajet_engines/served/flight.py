"""One request at one model server, read as fast as it comes, whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from ajet_engines.served.api import Piece


class Flight:
    """Reads the pieces of a completion in a task of its own.

    A server that was halted has ended all requests that it knew, but others may still be on their way to it.
    Those have sampled nothing and are given up without a loss (`drop_unless_begun`).

    :param pieces: what `ajet_engines.served.api.ModelServer.sample` gave.
    :ivar policy_version: version of the weights that all its tokens are sampled by.
    :ivar heard: pieces that have come from the server.
    """

    def __init__(self, pieces: AsyncIterator[Piece], policy_version: int) -> None:
        self.policy_version = policy_version
        self.heard = 0
        self._queue: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(pieces))
        self._task.add_done_callback(self._ended)

    async def pieces(self) -> AsyncIterator[Piece]:
        """All of them; it ends without a finish reason if the flight was interrupted.

        Whatever the server's `sample` raises is raised here.
        """
        while (item := await self._queue.get()) is not None:
            yield item
        await self.over()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def drop_unless_begun(self) -> None:
        """Give it up if it has no token yet."""
        if not self.heard:
            self._task.cancel()

    async def over(self) -> None:
        """Return when nothing more comes from the server."""
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """Cancel the request, if it is not over."""
        self._task.cancel()
        await self.over()

    async def _read(self, pieces: AsyncIterator[Piece]) -> None:
        assert isinstance(pieces, AsyncGenerator), "closing it is what cancels the request"
        async with aclosing(pieces):
            async for piece in pieces:
                self.heard += 1
                self._queue.put_nowait(piece)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Here, because a task that is cancelled before its first step runs nothing of itself.
        self._queue.put_nowait(None)
        # An error of a request that nobody waits for any more is no news.
        if not task.cancelled():
            task.exception()
