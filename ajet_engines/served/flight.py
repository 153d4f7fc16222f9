"""One request to a model server, read as fast as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from ajet_engines.served.api import Piece


class Flight:
    """Reads the pieces of a completion in a separate task.

    A halted server has ended all requests that it had received, but others may still be on their
    way. They have not sampled anything and can be dropped without loss (`drop_unless_begun`).

    :param pieces: the result of `ajet_engines.served.api.ModelServer.sample`.
    :ivar policy_version: version of the weights that sample all its tokens.
    :ivar heard: number of pieces received from the server.
    """

    def __init__(self, pieces: AsyncIterator[Piece], policy_version: int) -> None:
        self.policy_version = policy_version
        self.heard = 0
        self._queue: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._read(pieces))
        self._task.add_done_callback(self._ended)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield all pieces; ends without a finish reason if the flight was interrupted.

        Errors of the server's `sample` are raised here.
        """
        while (item := await self._queue.get()) is not None:
            yield item
        await self.over()
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    def drop_unless_begun(self) -> None:
        """Cancel the request if it has no token yet."""
        if not self.heard:
            self._task.cancel()

    async def over(self) -> None:
        """Wait until nothing more arrives from the server."""
        await asyncio.wait([self._task])

    async def end(self) -> None:
        """Cancel the request if it is not over."""
        self._task.cancel()
        await self.over()

    async def _read(self, pieces: AsyncIterator[Piece]) -> None:
        assert isinstance(pieces, AsyncGenerator), "closing it is what cancels the request"
        async with aclosing(pieces):
            async for piece in pieces:
                self.heard += 1
                self._queue.put_nowait(piece)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # In a callback, because a task that is cancelled before its first step runs none of its
        # code.
        self._queue.put_nowait(None)
        # Mark the error as retrieved, because nothing may be waiting for this request.
        if not task.cancelled():
            task.exception()
