"""The server's end of a socket to a worker: sends calls as frames and receives the responses."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from ajet_core.errors import WorkerDiedError, error_from_payload
from ajet_core.interfaces import GenerateChunk, GenerateRequest
from ajet_server.workers import frames
from ajet_server.workers.codec import from_plain, pack_request, to_plain, unpack_chunk
from ajet_server.workers.methods import GENERATE, Method

P = TypeVar("P")
R = TypeVar("R")


_Stream = asyncio.Queue[GenerateChunk | Exception | None]
"""The response to a running `generate`: its next chunk, an error, or None at the end."""


class WorkerConnection:
    """Calls to the worker at the other end of a socket. Create it with `WorkerConnection.open`.

    A call has no deadline. Callers use `asyncio.timeout`: cancelling a call here also cancels it in
    the worker.

    :ivar closed: whether `close` was called.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = frames.FrameWriter(writer)
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._streams: dict[int, _Stream] = {}
        self._lost: str | None = None
        self.closed = False

    @classmethod
    async def open(cls, connected: socket.socket) -> WorkerConnection:
        """Open a connection over a connected socket; no call completes before `read` runs."""
        return cls(*await asyncio.open_unix_connection(sock=connected, limit=1 << 20))

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call a method and return its result.

        :raises AjetError: the worker raised it, of the same class.
        :raises WorkerDiedError: the worker ended first.
        """
        # Convert large parameters in a thread, so that the event loop can serve agents' calls.
        plain = await asyncio.to_thread(to_plain, params) if method.large else to_plain(params)
        call_id = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[call_id] = future
        try:
            self._send([frames.CALL, call_id, method.name, plain])
            return from_plain(method.result, await future)
        except asyncio.CancelledError:
            self._cancel(call_id)
            raise
        finally:
            self._pending.pop(call_id, None)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Generate as `ServingEngine.generate` does, with the errors of `call`."""
        call_id = next(self._ids)
        stream = self._streams[call_id] = _Stream()
        over = False
        try:
            self._send([frames.CALL, call_id, GENERATE, pack_request(request)])
            while (item := await stream.get()) is not None:
                over = isinstance(item, Exception) or item.finish_reason is not None
                if isinstance(item, Exception):
                    raise item
                yield item
            over = True
        finally:
            del self._streams[call_id]
            if not over:
                self._cancel(call_id)

    async def read(self) -> None:
        """Pass responses to their callers until the other end is closed.

        :raises Exception: a frame is malformed.
        """
        async for frame in frames.read(self._reader):
            self.receive(frame)

    def receive(self, frame: list[Any]) -> None:
        """Pass a response to its caller."""
        kind, *rest = frame
        if kind == frames.CHUNKS:
            for call_id, chunk in rest[0]:
                if (stream := self._streams.get(call_id)) is not None:
                    stream.put_nowait(unpack_chunk(chunk))
            return
        call_id, value = rest
        failure = error_from_payload(value) if kind == frames.ERROR else None
        if (stream := self._streams.get(call_id)) is not None:
            stream.put_nowait(failure)
            return
        future = self._pending.get(call_id)
        if future is None or future.done():
            return
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(failure)

    def lose(self, reason: str) -> None:
        """Fail all present and future calls, because the worker has ended."""
        self._lost = reason
        for future in list(self._pending.values()):
            if not future.done():
                future.set_exception(WorkerDiedError(reason))
        for stream in self._streams.values():
            stream.put_nowait(WorkerDiedError(reason))

    def close(self) -> None:
        """Tell the worker to end, and close the socket."""
        self.closed = True
        if self._lost is None:
            self._writer.write(frames.pack([frames.END]))
        self._writer.close()

    def _send(self, frame: list[Any]) -> None:
        if self._lost is not None:
            raise WorkerDiedError(self._lost)
        self._writer.write(frames.pack(frame))

    def _cancel(self, call_id: int) -> None:
        if self._lost is None and not self.closed:
            self._writer.write(frames.pack([frames.CANCEL, call_id]))
