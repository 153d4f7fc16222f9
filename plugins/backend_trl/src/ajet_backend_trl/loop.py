"""A Hugging Face training loop that is stepped from outside.

`transformers.Trainer.train` runs in a separate thread. When it requests inputs, it blocks here
until the next batch arrives. So the library's loop is used unchanged for all batches. It restarts
only when the number of micro-batches in an optimiser step changes, or after an exception.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class _Again(Exception):  # noqa: N818
    """Leaves the loop, to restart it with the batch just fetched."""


class _Closed(Exception):  # noqa: N818
    """Leaves the loop permanently."""


class StepLoop(Generic[Work]):
    """Pass batches to a training loop, one at a time.

    :param train: runs the loop until it raises an exception, with the settings of a given batch.
    :param fits: whether the loop can continue with a batch, or must restart.
    """

    def __init__(self, train: Callable[[Work], None], fits: Callable[[Work], bool]) -> None:
        self._train = train
        self._fits = fits
        self._inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._fetched: Work | None = None
        self._busy = False

    def run(self, work: Work) -> None:
        """Compute a batch completely; exceptions in the loop are raised here."""
        if self._thread is None or not self._thread.is_alive():
            self._busy, self._fetched = False, None
            self._thread = threading.Thread(target=self._main, name="trl", daemon=True)
            self._thread.start()
        self._inbox.put(work)
        failure = self._outbox.get()
        if failure is not None:
            # The next call of `run` must see that the thread has ended.
            self._thread.join()
            raise failure

    def take(self) -> Work:
        """Report that the previous batch is done, and wait for the next one; called by the loop."""
        if self._fetched is not None:
            work, self._fetched = self._fetched, None
            return work
        if self._busy:
            self._busy = False
            self._outbox.put(None)
        fetched = self._inbox.get()
        if fetched is None:
            raise _Closed
        self._busy = True
        if not self._fits(fetched):
            self._fetched = fetched
            raise _Again
        return fetched

    def close(self) -> None:
        """Stop the thread."""
        if self._thread is not None and self._thread.is_alive():
            self._inbox.put(None)
            self._thread.join()

    def _main(self) -> None:
        first = self._inbox.get()
        if first is None:
            return
        self._busy, self._fetched = True, first
        while self._fetched is not None:
            try:
                self._train(self._fetched)
            except _Again:
                continue
            except _Closed:
                return
            # `run` raises it.
            except Exception as error:  # noqa: BLE001
                self._outbox.put(error)
                return
            self._outbox.put(RuntimeError("the training loop ended by itself"))
            return
