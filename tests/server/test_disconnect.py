"""Work for a client that may hang up."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ajet_server.http.disconnect import until_disconnect


class Client:
    """A client that stays until it is told to hang up."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.request = Request({"type": "http"}, self._receive)

    async def _receive(self) -> dict[str, object]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def answer() -> str:
    await asyncio.sleep(0)
    return "done"


async def test_the_result_of_the_work() -> None:
    assert await until_disconnect(Client().request, answer(), 60.0) == "done"
    ready = asyncio.ensure_future(answer())
    await ready
    assert await until_disconnect(Client().request, ready) == "done"


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("its own")])
async def test_an_error_of_the_work(error: Exception) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        await until_disconnect(Client().request, fail(), 60.0)


async def test_a_client_that_hangs_up_ends_the_work() -> None:
    client = Client()
    work = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(client.gone.set)
    with pytest.raises(HTTPException) as caught:
        await until_disconnect(client.request, work, 60.0)
    assert caught.value.status_code == 499
    assert work.cancelled()


async def test_a_client_hangs_up_as_the_work_ends() -> None:
    """Neither the end of the work nor the hang-up may leave an error in the event loop."""
    loop = asyncio.get_running_loop()
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    for ahead in (True, False):
        client = Client()
        result = loop.create_future()
        if ahead:
            loop.call_soon(client.gone.set)
        loop.call_soon(result.set_result, "done")
        loop.call_soon(client.gone.set)

        async def work(result: asyncio.Future[str] = result) -> str:
            return await result

        with contextlib.suppress(HTTPException):
            assert await until_disconnect(client.request, work(), 60.0) == "done"
        await asyncio.sleep(0)
    assert not errors


async def test_the_deadline_ends_the_work() -> None:
    work = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(TimeoutError):
        await until_disconnect(Client().request, work, 0.0)
    assert work.cancelled()


async def test_cancelling_ends_the_work() -> None:
    work = asyncio.ensure_future(asyncio.Event().wait())
    waiting = asyncio.ensure_future(until_disconnect(Client().request, work, 60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.cancelled()
