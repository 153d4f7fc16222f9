"""Group commit: one thread writes everything that is waiting in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from ajet_core.errors import StoreError

T = TypeVar("T")

# The most writes in a transaction; further writers wait in order.
MAX_WAITING_WRITES = 1024
# While writes come in groups, each transaction waits this long for more of them. This saves a tenth
# of the server's CPU time under load.
_GATHER_SECONDS = 0.001


class TransactionOwner(Protocol):
    """The callbacks of the committing thread around each transaction."""

    def before_commit(self) -> None:
        """Write the changes of the transaction as a whole."""

    def committed(self) -> None:
        """Called once the transaction is durable."""

    def rolled_back(self) -> None:
        """Called after the transaction was rolled back."""


@dataclass(frozen=True, slots=True)
class _Write:
    apply: Callable[[], object]
    answer: asyncio.Future[object]


@dataclass(frozen=True, slots=True)
class _WriteResult:
    write: _Write
    result: object = None
    error: Exception | None = None


class GroupCommitter:
    """Runs writes on `connection` in a separate thread, in the order of their requests.

    An error of a single write, such as a violated constraint, fails only that write. A full disk,
    an I/O error and the like fail every write of the transaction and undo all of it; later writes
    are attempted again.

    :param fatal: whether a SQLite error fails the whole transaction.
    :param translate: converts a SQLite error to one for the caller.
    :ivar transactions: the number committed since the start.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        owner: TransactionOwner,
        *,
        fatal: Callable[[sqlite3.Error], bool],
        translate: Callable[[sqlite3.Error], StoreError],
        max_waiting: int = MAX_WAITING_WRITES,
    ) -> None:
        self._connection = connection
        self._owner = owner
        self._fatal = fatal
        self._translate = translate
        self._loop = asyncio.get_running_loop()
        # The semaphore is fair: waiters acquire it in order.
        self._places = asyncio.Semaphore(max_waiting)
        self._requested: list[_Write] = []
        self._inbox: queue.SimpleQueue[list[_Write] | None] = queue.SimpleQueue()
        self._closed = False
        self._in_groups = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self.transactions = 0
        self._thread.start()

    async def write(self, apply: Callable[[], T]) -> T:
        """Run `apply` in a transaction, and return its result once that is durable.

        `apply` runs in the committing thread and changes the database with one statement, or within
        `savepoint`. If the caller is cancelled after its request was queued, the write still
        happens.

        :raises StoreError: the write failed, or the store is closed.
        """
        # The usual case, without waiting, causes no task switch.
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise StoreError("the store is closed")
        answer: asyncio.Future[object] = self._loop.create_future()
        if not self._requested:
            # Handing over at the end of the loop iteration groups the requests made in it.
            self._loop.call_soon(self._hand_over)
        self._requested.append(_Write(apply, answer))
        return cast("T", await answer)

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
            writes, open_ = self._take()
            self._in_groups = len(writes) > 1
            if writes:
                outcomes = self._transaction(writes)
                try:
                    self._loop.call_soon_threadsafe(self._answer, outcomes)
                except RuntimeError:
                    # The loop is closed, so no caller waits and `close` will not be called.
                    return

    def _take(self) -> tuple[list[_Write], bool]:
        """Return all waiting writes, at least one; False if there will be no more."""
        batch = self._inbox.get()
        if self._in_groups:
            time.sleep(_GATHER_SECONDS)
        writes: list[_Write] = []
        while batch is not None:
            writes += batch
            try:
                batch = self._inbox.get_nowait()
            except queue.Empty:
                return writes, True
        return writes, False

    def _transaction(self, writes: list[_Write]) -> list[_WriteResult]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._apply(write) for write in writes]
            self._owner.before_commit()
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            # After some errors SQLite has rolled back already, so a failed rollback is harmless.
            with contextlib.suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            self._owner.rolled_back()
            return [_WriteResult(write, error=self._caused(error)) for write in writes]
        self.transactions += 1
        self._owner.committed()
        return outcomes

    def _apply(self, write: _Write) -> _WriteResult:
        try:
            return _WriteResult(write, write.apply())
        except sqlite3.Error as error:
            if self._fatal(error):
                raise
            return _WriteResult(write, error=self._caused(error))
        # A record that cannot be stored fails only its writer; the thread continues.
        except Exception as error:  # noqa: BLE001
            return _WriteResult(write, error=error)

    def _caused(self, error: sqlite3.Error) -> StoreError:
        translated = self._translate(error)
        translated.__cause__ = error
        return translated

    def _answer(self, outcomes: list[_WriteResult]) -> None:
        for outcome in outcomes:
            self._places.release()
            answer = outcome.write.answer
            if answer.done():
                continue
            if outcome.error is not None:
                answer.set_exception(outcome.error)
            else:
                answer.set_result(outcome.result)


@contextlib.contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """Undo only the statements of the block if it raises."""
    connection.execute("SAVEPOINT one_write")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO one_write")
            connection.execute("RELEASE one_write")
        raise
    connection.execute("RELEASE one_write")
