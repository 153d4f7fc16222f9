"""The compute thread: steps the batcher, runs commands in between, reports failures as errors."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable

import torch

from ajet_backend_torch.batcher import Batcher
from ajet_backend_torch.requests import ActiveRequest, Post
from ajet_core.errors import EngineError, SealError
from ajet_torch.memory import headline, is_out_of_memory

logger = logging.getLogger(__name__)

Command = Callable[[], None]


class DecodeLoop:
    """Owner of the compute thread. Call its methods on the event loop; they do not block it."""

    def __init__(self, batcher: Batcher, post: Post, on_start: Command) -> None:
        self._batcher = batcher
        self._post = post
        self._on_start = on_start
        self._condition = threading.Condition()
        self._commands: deque[Command] = deque()
        self._paused = False
        self._stopping = False
        self._ended = False
        self._failure: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="ajet-torch-engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> EngineError | None:
        """The error that ended the computation, if any."""
        return self._failure

    def submit(self, request: ActiveRequest) -> None:
        """Queue a request."""

        def accept() -> None:
            if self._failure is None:
                self._batcher.submit(request)
            else:
                self._post.put(request, [self._failure])

        self._command(accept)

    def cancel(self, request: ActiveRequest) -> None:
        """Drop a request; its slot is free at the next step."""
        self._command(lambda: self._batcher.cancel(request))

    async def pause(self) -> None:
        """Stop stepping; no forward pass runs after this returns."""
        await self.between_steps(lambda: self._set_paused(True))

    async def resume(self) -> None:
        """Continue stepping."""
        await self.between_steps(lambda: self._set_paused(False))

    async def between_steps(self, action: Command) -> None:
        """Run `action` in the compute thread between two steps; its exceptions are raised here.

        After a `SealError` nothing is computed any longer.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            error: Exception | None = self._failure
            if error is None:
                try:
                    action()
                except SealError as raised:
                    self._end_with(raised)
                    error = raised
                except Exception as raised:  # noqa: BLE001 - it is raised by the caller
                    error = raised
            self._post.flush()
            loop.call_soon_threadsafe(settle, error)

        self._command(run)
        await done

    async def close(self) -> None:
        """End all requests with "abort", and stop the thread."""
        self._command(self._stop)
        await asyncio.to_thread(self._thread.join)

    def _command(self, command: Command) -> None:
        with self._condition:
            if not self._ended:
                self._commands.append(command)
                self._condition.notify()
                return
        # The thread has ended, so this cannot run concurrently with it; the command sees that
        # `failure` is set.
        command()
        self._post.flush()

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused

    def _stop(self) -> None:
        self._batcher.abort_all()
        self._stopping = True

    @torch.no_grad()
    def _run(self) -> None:
        self._guard(self._on_start)
        while not self._stopping:
            self._run_commands()
            if self._can_step() and not self._stopping:
                self._guard(self._batcher.step)
            self._post.flush()
        with self._condition:
            self._ended = True
            self._failure = self._failure or EngineError("the engine 'torch' is closed")
        for command in self._commands:
            command()
        self._post.flush()

    def _can_step(self) -> bool:
        return not self._paused and self._batcher.has_work

    def _run_commands(self) -> None:
        with self._condition:
            while not self._commands and not self._can_step():
                self._condition.wait()
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            self._guard(command)

    def _guard(self, action: Command) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - no caller may be left waiting
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End all requests with an error, and refuse new ones."""
        logger.error("the decode loop failed", exc_info=error)
        advice = (
            (
                "; to reduce memory, lower engine.settings.max_requests, kv_tokens or "
                "prefill_token_budget"
            )
            if is_out_of_memory(error)
            else ""
        )
        self._end_with(
            EngineError(
                "the engine 'torch' failed while decoding and must be restarted "
                f"({headline(error)}){advice}"
            )
        )

    def _end_with(self, failure: EngineError) -> None:
        self._failure = failure
        self._batcher.fail_all(failure)
