"""Group commit: one thread writes everything that is waiting in one transaction."""

from __future__ import annotations

import asyncio
import copy
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ajet_core.errors import StoreError

__all__ = ["MAX_WAITING_WRITES", "GroupCommitter", "copy_error"]

W = TypeVar("W")
E = TypeVar("E", bound=Exception)

# The most writes in a transaction; further writers wait in order.
MAX_WAITING_WRITES = 1024
# While writes come in groups, each transaction waits this long for more of them. This saves a tenth
# of the server's CPU time under load.
_GATHER_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[W]):
    write: W
    answer: asyncio.Future[None]


class GroupCommitter(Generic[W]):
    """Commits writes in a separate thread, in the order of their requests.

    :param commit: commits writes in one transaction. Returns for each the error that made it fail
        alone, or None; raises an error if the whole transaction failed. It is called in the thread.
    :ivar transactions: the number committed since the start.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[W]], Sequence[Exception | None]],
        *,
        max_waiting: int = MAX_WAITING_WRITES,
    ) -> None:
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        # The semaphore is fair: waiters acquire it in order.
        self._places = asyncio.Semaphore(max_waiting)
        self._requested: list[_Waiting[W]] = []
        self._inbox: queue.SimpleQueue[list[_Waiting[W]] | None] = queue.SimpleQueue()
        self._closed = False
        self._in_groups = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self.transactions = 0
        self._thread.start()

    async def write(self, write: W) -> None:
        """Commit a write; it is durable when this returns.

        If the caller is cancelled after its request was queued, the write still happens.

        :raises StoreError: the write failed, or the store is closed.
        """
        # The usual case, without waiting, causes no task switch.
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise StoreError("the store is closed")
        answer: asyncio.Future[None] = self._loop.create_future()
        if not self._requested:
            # Handing over at the end of the loop iteration groups the requests made in it.
            self._loop.call_soon(self._hand_over)
        self._requested.append(_Waiting(write, answer))
        await answer

    async def close(self) -> None:
        """Commit all requested writes, and stop the thread."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _hand_over(self) -> None:
        if self._requested:
            self._inbox.put(self._requested)
            self._requested = []

    def _run(self) -> None:
        open_ = True
        while open_:
            waiting, open_ = self._take()
            self._in_groups = len(waiting) > 1
            if waiting:
                errors = self._transaction(waiting)
                try:
                    self._loop.call_soon_threadsafe(self._answer, waiting, errors)
                except RuntimeError:
                    # The loop is closed, so no caller waits and `close` will not be called.
                    return

    def _take(self) -> tuple[list[_Waiting[W]], bool]:
        """Return all waiting writes, at least one; False if there will be no more."""
        batch = self._inbox.get()
        if self._in_groups:
            time.sleep(_GATHER_SECONDS)
        waiting: list[_Waiting[W]] = []
        while batch is not None:
            waiting += batch
            try:
                batch = self._inbox.get_nowait()
            except queue.Empty:
                return waiting, True
        return waiting, False

    def _transaction(self, waiting: list[_Waiting[W]]) -> Sequence[Exception | None]:
        try:
            errors = self._commit([one.write for one in waiting])
        # Whatever fails, the thread continues.
        except Exception as error:  # noqa: BLE001
            return [copy_error(error) for _ in waiting]
        self.transactions += 1
        return errors

    def _answer(self, waiting: list[_Waiting[W]], errors: Sequence[Exception | None]) -> None:
        for one, error in zip(waiting, errors, strict=True):
            self._places.release()
            if one.answer.done():
                continue
            if error is not None:
                one.answer.set_exception(error)
            else:
                one.answer.set_result(None)


def copy_error(error: E) -> E:
    """Copy an error, because raising one object in several tasks mixes their tracebacks."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied
