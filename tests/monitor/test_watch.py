"""How often a server is asked, and for what."""

from __future__ import annotations

import asyncio
import copy

import httpx2

from agentjet.client import AsyncViewClient
from ajet_cli.monitor.watch import ServerWatch
from ajet_core.errors import ServerUnreachableError
from tests.monitor.scripted import OVERVIEW, ScriptedServer


def watched(server: ScriptedServer, **given) -> ServerWatch:
    client = AsyncViewClient("http://127.0.0.1:8000", "token", transport=server)
    return ServerWatch(client, given.pop("changed", lambda watch: None), **given)


async def test_curves_are_read_again_only_after_a_step() -> None:
    server = ScriptedServer()
    watch = watched(server)
    for _ in range(3):
        await watch.refresh()
    assert server.asked == ["/v1/overview", "/v1/steps?points=300", *["/v1/overview"] * 2]
    overview = copy.deepcopy(OVERVIEW)
    overview["status"]["step"] = 13
    server.answers["/v1/overview"] = overview
    await watch.refresh()
    assert server.asked[-1] == "/v1/steps?points=300"


async def test_it_asks_as_often_as_the_server_says() -> None:
    server = ScriptedServer(**{"/v1/overview": {**OVERVIEW, "again_seconds": 0.001}})
    thrice = asyncio.Event()
    seen: list[ServerWatch] = []

    def changed(watch: ServerWatch) -> None:
        seen.append(watch)
        if len(seen) == 3:
            thrice.set()

    running = asyncio.create_task(watched(server, changed=changed).run())
    await thrice.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert server.asked.count("/v1/overview") >= 3


async def test_since_when_a_server_is_gone_is_when_it_was_first_missed() -> None:
    server = ScriptedServer()
    seconds = iter([10.0, 20.0, 30.0])
    watch = watched(server, clock=lambda: next(seconds))
    await watch.refresh()
    assert watch.failure is None
    server.away = True
    await watch.refresh()
    await watch.refresh()
    assert isinstance(watch.failure, ServerUnreachableError)
    assert watch.failing_since == 10.0
    assert watch.overview is not None
    server.away = False
    await watch.refresh()
    assert watch.failure is None
    server.away = True
    await watch.refresh()
    assert watch.failing_since == 20.0


async def test_what_is_no_server_of_agentjet_is_an_error_in_words() -> None:
    server = ScriptedServer(**{"/v1/overview": httpx2.Response(200, content=b"<html>")})
    watch = watched(server)
    await watch.refresh()
    assert "is this an agentjet server?" in str(watch.failure)
