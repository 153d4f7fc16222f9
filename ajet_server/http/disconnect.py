"""Clients that hang up: before their answer is made, or before they have read it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ajet_server.http.http_errors import CLIENT_CLOSED_REQUEST

T = TypeVar("T")

_UNREAD = "unread"


async def until_disconnect(
    request: Request, work: Coroutine[Any, Any, T] | asyncio.Task[T], timeout: float | None = None
) -> T:
    """The result of `work`, which is cancelled if the client goes away first.

    Call it after the body has been read: what comes next from the client can only be its farewell.

    :param timeout: seconds after which `work` is cancelled; None waits as long as the client does.
    :raises TimeoutError: it took longer.
    :raises HTTPException: status 499, if the client went away.
    """
    task = asyncio.ensure_future(work)
    limit = asyncio.timeout(timeout)

    def finished(_: asyncio.Task[T]) -> None:
        # As if the time were over: it ends the wait for the farewell, without a task of its own for it.
        if not limit.expired():
            limit.reschedule(0.0)

    try:
        async with limit:
            task.add_done_callback(finished)
            await _disconnected(request)
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client closed the connection")
    except TimeoutError:
        if not task.done():
            raise
    finally:
        task.remove_done_callback(finished)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()


def when_unread(request: Request, tell: Callable[[], None]) -> None:
    """Have `tell` called if the connection breaks before the client has read the answer to `request`.

    Only a break that shows it counts; a client that reads its answer may close the connection, and says nothing.
    """
    setattr(request.state, _UNREAD, tell)


def left_unread(state: dict[str, Any]) -> None:
    """The connection of a request, whose state this is, broke, and the answer was not read."""
    tell: Callable[[], None] | None = state.pop(_UNREAD, None)
    if tell is not None:
        tell()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
