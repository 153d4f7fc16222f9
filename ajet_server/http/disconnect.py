"""Handle clients that disconnect before their response is ready or before they have read it."""

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
    """Return the result of `work`; cancel it if the client disconnects first.

    Call this after the body has been read: the next message can then only be the disconnect.

    :param timeout: seconds after which `work` is cancelled; None waits as long as the client does.
    :raises TimeoutError: `work` took longer than `timeout`.
    :raises HTTPException: status 499: the client disconnected.
    """
    task = asyncio.ensure_future(work)
    limit = asyncio.timeout(timeout)
    waiting = True

    def finished(_: asyncio.Task[T]) -> None:
        # Expire the timeout now: this ends the wait for the disconnect without a separate task.
        # Callbacks that are due already run although they are removed below.
        if waiting and not limit.expired():
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
        waiting = False
        task.remove_done_callback(finished)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    return task.result()


def when_unread(request: Request, tell: Callable[[], None]) -> None:
    """Call `tell` if the connection breaks before the client has read the response to `request`.

    Only a break that proves it counts: a client may close the connection after reading a response.
    """
    setattr(request.state, _UNREAD, tell)


def left_unread(state: dict[str, Any]) -> None:
    """Report that the connection of a request broke before its response was read.

    :param state: the state of the request's scope.
    """
    tell: Callable[[], None] | None = state.pop(_UNREAD, None)
    if tell is not None:
        tell()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
