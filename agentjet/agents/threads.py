"""Threads for programs that block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads(ThreadPoolExecutor):
    """A thread for each job, a daemon: one that hangs takes no other's place, and keeps no program from ending.

    It is a `ThreadPoolExecutor` because event loops take no other as their default.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Begin at once."""
        future: Future[T] = Future()
        thread = threading.Thread(
            target=_run, args=(future, fn, args, kwargs), name="ajet-program", daemon=True
        )
        thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is waited for: whoever wants a result has it."""


def _run(
    future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
        future.set_exception(error)
