"""Work for a client that may hang up before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ajet_core.server.http_errors import CLIENT_CLOSED_REQUEST

T = TypeVar("T")


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
    farewell = asyncio.ensure_future(_disconnected(request))
    try:
        done, _ = await asyncio.wait(
            {task, farewell}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            raise TimeoutError
        if not task.done():
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client closed the connection")
        return task.result()
    finally:
        farewell.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
