"""Threads for programs that block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """An executor with one daemon thread per job: a hanging job blocks no other job and no exit.

    It is a `ThreadPoolExecutor` because event loops accept only that as their default.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start a job at once, in a new thread."""
        future: Future[T] = Future()
        thread = threading.Thread(
            target=_run, args=(future, fn, args, kwargs), name="ajet-program", daemon=True
        )
        thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Return without waiting: results are awaited through their futures."""


def _run(
    future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
        future.set_exception(error)
