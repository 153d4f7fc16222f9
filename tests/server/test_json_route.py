"""Routes of the protocol: what endpoints are given, what clients get, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import APIRouter, Body, Depends, Header
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ajet_core.errors import AjetError, EpisodeClosedError
from ajet_core.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from ajet_server.http.http_errors import on_ajet_error, on_http_exception
from ajet_server.http.json_route import JsonRoute

router = APIRouter(route_class=JsonRoute)


class Number(BaseModel):
    value: int


async def requested_length(request: Request) -> int:
    return int(request.headers["content-length"])


@router.post("/double/{name}")
async def doubled(
    name: str, number: Number, request: Request, length: Annotated[int, Depends(requested_length)]
) -> Number:
    assert length == len(await request.body())
    if number.value == 410:
        raise EpisodeClosedError("it is over")
    if number.value == 499:
        raise HTTPException(499, "gone")
    return Number(value=2 * number.value + len(name))


@router.post("/maybe")
async def maybe(number: Annotated[Number | None, Body()] = None) -> Number:
    return number or Number(value=-1)


@router.get("/after")
async def after(last_event_id: Annotated[int | None, Header(ge=0)] = None) -> Response:
    return PlainTextResponse(f"after {last_event_id}")


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    handlers: dict[Any, Any] = {AjetError: on_ajet_error, HTTPException: on_http_exception}
    app = Starlette(routes=router.routes, exception_handlers=handlers)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {PROTOCOL_HEADER: PROTOCOL_VERSION},
        {"content-type": "application/json"},
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "application/problem+json"},
    ],
)
async def test_an_endpoint_is_given_what_its_signature_asks_for(
    http: httpx2.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await http.post("/double/abc", content=b'{"value": 4}', headers=headers)
    assert answer.json() == {"value": 11}
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b'{"value": "x"}', {}, 400, "value: Input should be a valid integer"),
        (b"{}", {}, 400, "value: Field required"),
        (b"", {}, 400, "body: Field required"),
        (b'{"value": ', {}, 400, "JSON decode error"),
        (b'{"value": "\xff"}', {}, 400, "the body is not valid JSON"),
        (b"[" * 100_000, {}, 400, "the body is not valid JSON"),
        (b'{"value": 4}', {"content-type": "text/plain"}, 400, "sent as application/json"),
        (b'{"value": 4}', {PROTOCOL_HEADER: "2.0"}, 426, "the server supports protocol"),
        (b'{"value": 4}', {PROTOCOL_HEADER: "new"}, 426, "new"),
        (b'{"value": 410}', {}, 410, "it is over"),
        (b'{"value": 499}', {}, 499, "gone"),
    ],
)
async def test_a_refusal_says_why(
    http: httpx2.AsyncClient, body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    answered, message = refusal(await http.post("/double/abc", content=body, headers=headers))
    assert answered == status
    assert says in message


async def test_a_wrong_body_is_reported_after_a_dependency_refuses(
    http: httpx2.AsyncClient,
) -> None:
    # The version is wrong whatever the body says, so the client hears of it first.
    answer = await http.post(
        "/double/abc", content=b'{"value": "x"}', headers={PROTOCOL_HEADER: "2.0"}
    )
    assert answer.status_code == 426


async def test_a_body_may_be_left_out_where_the_endpoint_has_a_default(
    http: httpx2.AsyncClient,
) -> None:
    assert (await http.post("/maybe")).json() == {"value": -1}
    assert (await http.post("/maybe", content=b"null")).json() == {"value": -1}
    assert (await http.post("/maybe", json={"value": 3})).json() == {"value": 3}
    assert (await http.post("/maybe", json=[])).status_code == 400


async def test_headers_are_checked(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/after")).text == "after None"
    assert (await http.get("/after", headers={"last-event-id": "7"})).text == "after 7"
    status, message = refusal(await http.get("/after", headers={"last-event-id": "-1"}))
    assert status == 400
    assert message == "header.last-event-id: Input should be greater than or equal to 0"


async def test_other_methods_are_refused_with_those_that_exist(http: httpx2.AsyncClient) -> None:
    answer = await http.put("/double/abc")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_the_document_describes_the_routes_by_their_signatures() -> None:
    document = get_openapi(title="t", version="1", routes=router.routes)
    operation = document["paths"]["/double/{name}"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Number"}
