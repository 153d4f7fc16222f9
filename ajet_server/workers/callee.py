"""The called end of a connection: run the handler of each call, and send its response."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ajet_core.errors import AjetError, WorkerError
from ajet_server.workers import frames

Handler = Callable[["CallInProgress", Any], Awaitable[Any]]
"""Handles a call: takes the call and its plain parameters, and returns its plain result."""

_CANCEL_SECONDS = 2.0


class Callee:
    """Runs the calls that arrive over one connection.

    :param handlers: by method name.
    :param failed: the class of the error that is sent for an exception that is no `AjetError`, by
        method name.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        writer: frames.FrameWriter,
        failed: Callable[[str], type[AjetError]] = lambda _: WorkerError,
    ) -> None:
        self._handlers = handlers
        self._writer = writer
        self._failed = failed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._chunks: list[list[Any]] = []

    def receive(self, frame: list[Any]) -> None:
        """Begin the call of a CALL frame, or cancel that of a CANCEL frame."""
        kind, call_id, *rest = frame
        if kind == frames.CALL:
            method, params = rest
            task = asyncio.create_task(self._answer(CallInProgress(self, call_id), method, params))
            self._tasks[call_id] = task
            task.add_done_callback(functools.partial(self._forget, call_id))
        elif kind == frames.CANCEL and (running := self._tasks.get(call_id)) is not None:
            running.cancel()

    async def cancel_all(self) -> bool:
        """Cancel all calls; return False if some do not end.

        A call that runs in a thread, such as a training step, continues.
        """
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        if not running:
            return True
        _, unending = await asyncio.wait(running, timeout=_CANCEL_SECONDS)
        return not unending

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def send_chunk(self, call_id: int, chunk: list[Any]) -> None:
        """Send a part of a call's response, with those of this loop iteration as one frame."""
        if not self._chunks:
            asyncio.get_running_loop().call_soon(self._flush_chunks)
        self._chunks.append([call_id, chunk])

    def _flush_chunks(self) -> None:
        chunks, self._chunks = self._chunks, []
        if chunks:
            self._writer.write(frames.pack([frames.CHUNKS, chunks]))

    def _forget(self, call_id: int, _: asyncio.Task[None]) -> None:
        self._tasks.pop(call_id, None)

    async def _answer(self, call: CallInProgress, method: str, params: Any) -> None:
        call_id = call.call_id
        try:
            handler = self._handlers.get(method)
            if handler is None:
                raise WorkerError(f"unknown method {method!r}")
            answer = frames.pack([frames.RESULT, call_id, await handler(call, params)])
        except asyncio.CancelledError:
            answer = frames.pack([frames.RESULT, call_id, None])
        except AjetError as error:
            answer = frames.pack([frames.ERROR, call_id, error.to_payload()])
        # A component may raise anything, and the caller is in another process: report it there.
        except Exception as error:  # noqa: BLE001
            text = "".join(traceback.format_exception(error)[-12:])
            reason = f"{method} failed: {type(error).__name__}: {error}\n{text}"
            failure = self._failed(method)(reason).to_payload()
            answer = frames.pack([frames.ERROR, call_id, failure])
        self._flush_chunks()
        self._writer.write(answer)


class CallInProgress:
    """A call that a handler is answering.

    :param call_id: the caller's number of it.
    """

    __slots__ = ("_callee", "call_id")

    def __init__(self, callee: Callee, call_id: int) -> None:
        self._callee = callee
        self.call_id = call_id

    def send_chunk(self, chunk: list[Any]) -> None:
        """Send a part of the response before its end."""
        self._callee.send_chunk(self.call_id, chunk)
