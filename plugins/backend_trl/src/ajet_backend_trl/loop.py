"""A training loop of Hugging Face that is stepped from outside.

`transformers.Trainer.train` runs in a thread of its own and asks for its inputs; what asks is made to wait here for
the next batch. So the loop of the library is used as it is, from the first batch to the last, and only begins anew
when the number of micro-batches of an optimiser step changes or something was raised in it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class _Again(Exception):  # noqa: N818
    """Leaves the loop, to begin anew with the batch that was fetched."""


class _Closed(Exception):  # noqa: N818
    """Leaves the loop for good."""


class StepLoop(Generic[Work]):
    """Hands batches to a training loop, one at a time.

    :param train: runs the loop until something is raised in it, beginning with a given batch's settings.
    :param fits: whether the loop can go on with a batch, or has to begin anew.
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
        """Compute a batch, all of it; what is raised in the loop is raised here."""
        if self._thread is None or not self._thread.is_alive():
            self._busy, self._fetched = False, None
            self._thread = threading.Thread(target=self._main, name="trl", daemon=True)
            self._thread.start()
        self._inbox.put(work)
        failure = self._outbox.get()
        if failure is not None:
            # Before the next batch comes the thread has to be seen as ended.
            self._thread.join()
            raise failure

    def take(self) -> Work:
        """For the loop: the batch before is done; wait for the next one."""
        if self._fetched is not None:
            work, self._fetched = self._fetched, None
            return work
        if self._busy:
            self._busy = False
            self._outbox.put(None)
        found = self._inbox.get()
        if found is None:
            raise _Closed
        self._busy = True
        if not self._fits(found):
            self._fetched = found
            raise _Again
        return found

    def close(self) -> None:
        """End the thread."""
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
            # It is raised where the batch came from.
            except Exception as error:  # noqa: BLE001
                self._outbox.put(error)
                return
            self._outbox.put(RuntimeError("the training loop ended by itself"))
            return
