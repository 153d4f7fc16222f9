"""A connection between two processes of a server, both of which call the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType
from typing import Any, TypeVar

from ajet_server.workers import frames
from ajet_server.workers.callee import Callee, CallInProgress, Handler
from ajet_server.workers.codec import from_plain, to_plain
from ajet_server.workers.connection import WorkerConnection
from ajet_server.workers.methods import Method

STREAM_BYTES = 1 << 20
"""What a connection reads before the other end has to wait."""

P = TypeVar("P")
R = TypeVar("R")


def answering(method: Method[P, R], answer: Callable[[P], Awaitable[R]]) -> tuple[str, Handler]:
    """Return the handler of a method, with its name."""

    async def handle(_: CallInProgress, plain: Any) -> Any:
        result = await answer(from_plain(method.params, plain))
        return None if method.result is NoneType else to_plain(result)

    return method.name, handle


class Link(WorkerConnection):
    """Calls the process at the other end, and answers its calls.

    :param handlers: for the other end's calls, by method name.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[str, Handler],
    ) -> None:
        super().__init__(reader, writer)
        self._callee = Callee(handlers, self._writer)

    def receive(self, frame: list[Any]) -> None:
        """Extend the base class: the other end's calls arrive here, too."""
        if frame[0] in (frames.CALL, frames.CANCEL):
            self._callee.receive(frame)
        else:
            super().receive(frame)

    async def serve(self, other: str) -> None:
        """Serve until the other end is gone; fail all calls to it, and cancel all that it made.

        :param other: names the other process in errors.
        """
        try:
            await self.read()
        finally:
            self.lose(f"the {other} process ended")
            self._writer.close()
            await self._callee.cancel_all()
