"""Requests that pass the router by, and those that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ajet_core.errors import EpisodeClosedError
from ajet_core.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from ajet_server.fastpath.router import JsonEndpoint, ShortCut


class Number(BaseModel):
    value: int


async def requested_length(request: Request) -> int:
    return int(request.headers["content-length"])


async def doubled(
    name: str, number: Number, request: Request, length: Annotated[int, Depends(requested_length)]
) -> Number:
    assert length == len(await request.body())
    if number.value == 410:
        raise EpisodeClosedError("it is over")
    if number.value == 499:
        raise HTTPException(499, "gone")
    return Number(value=2 * number.value + len(name))


class Replaced:
    """Answers in the place of the router, with what it would have read."""

    def __init__(self, app: ASGIApp) -> None:
        self.router = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        await Response(b"router: " + body)(scope, receive, send)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.post("/double/{name}")(doubled)
    (route,) = [route for route in app.routes if isinstance(route, APIRoute)]
    app.add_middleware(Replaced)
    app.add_middleware(ShortCut, routes=[JsonEndpoint(route).quick])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {PROTOCOL_HEADER: PROTOCOL_VERSION}])
async def test_a_request_that_is_in_order_goes_straight_to_its_endpoint(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await http.post("/double/abc", json={"value": 4}, headers=headers)
    assert answer.json() == {"value": 11}
    assert answer.headers["content-type"] == "application/json"
    untyped = await http.post("/double/abc", content=b'{"value": 4}', headers=headers)
    assert untyped.json() == {"value": 11}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"value": "x"}', {}),
        (b"no JSON", {}),
        (b'{"value": 4}', {"content-type": "text/plain"}),
        (b'{"value": 4}', {PROTOCOL_HEADER: "2.0"}),
    ],
)
async def test_the_router_answers_what_is_not_in_order_and_sees_all_of_it(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str]
) -> None:
    answer = await http.post("/double/abc", content=body, headers=headers)
    assert answer.content == b"router: " + body


async def test_the_router_answers_other_methods(http: httpx.AsyncClient) -> None:
    assert (await http.get("/double/abc")).content == b"router: "


async def test_errors_are_answered_as_elsewhere(http: httpx.AsyncClient) -> None:
    over = await http.post("/double/abc", json={"value": 410})
    assert (over.status_code, over.json()["error"]["message"]) == (410, "it is over")
    gone = await http.post("/double/abc", json={"value": 499})
    assert (gone.status_code, gone.json()["error"]["message"]) == (499, "gone")
