"""Routes of the protocol: what endpoints are given, what clients get, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ajet_core.errors import AjetError, EpisodeClosedError
from ajet_core.protocol import PROTOCOL_HEADER, PROTOCOL_VERSION
from ajet_server.http.documented import openapi_document
from ajet_server.http.http_errors import on_ajet_error, on_http_exception
from ajet_server.http.json_route import FromHeader, JsonRoutes, Needs

router = JsonRoutes(responses={})


LastEventId = Annotated[int, Field(ge=0), FromHeader("last-event-id")]


class Number(BaseModel):
    value: int


async def requested_length(request: Request) -> int:
    return int(request.headers["content-length"])


@router.post("/double/{name}", summary="Double a number", tags=["numbers"])
async def doubled(
    name: str, number: Number, request: Request, length: Annotated[int, Needs(requested_length)]
) -> Number:
    assert length == len(await request.body())
    if number.value == 410:
        raise EpisodeClosedError("it is over")
    if number.value == 499:
        raise HTTPException(499, "gone")
    return Number(value=2 * number.value + len(name))


@router.post("/maybe", summary="Return a number", tags=["numbers"])
async def maybe(number: Number | None = None) -> Number:
    return number or Number(value=-1)


@router.get("/after", summary="Return a header", tags=["numbers"])
async def after(last_event_id: LastEventId | None = None) -> Response:
    return PlainTextResponse(f"after {last_event_id}")


class Limits(BaseModel):
    limit: int = 10


@router.get("/page", summary="Return a limit", tags=["numbers"])
async def page(limits: Limits) -> Number:
    return Number(value=limits.limit)


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


async def test_only_the_method_of_a_route_is_answered(http: httpx2.AsyncClient) -> None:
    answer = await http.head("/after")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_a_query_is_a_model(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/page?limit=3")).json() == {"value": 3}
    assert (await http.get("/page")).json() == {"value": 10}
    status, message = refusal(await http.get("/page?limit=x"))
    assert status == 400
    assert message.startswith("query.limit: Input should be a valid integer")


def test_an_argument_that_no_request_has_is_refused() -> None:
    async def strange(number: int) -> Number:
        return Number(value=number)

    with pytest.raises(TypeError, match="endpoint of /strange takes number, which no request has"):
        router.get("/strange", summary="Never", tags=[])(strange)


def test_the_document_describes_the_routes_by_their_signatures() -> None:
    document = openapi_document(router.routes)
    operation = document["paths"]["/double/{name}"]["post"]
    number = {"application/json": {"schema": {"$ref": "#/components/schemas/Number"}}}
    assert operation["requestBody"] == {"content": number, "required": True}
    assert operation["responses"]["200"]["content"] == number
    assert (operation["summary"], operation["tags"]) == ("Double a number", ["numbers"])
    (name,) = operation["parameters"]
    assert (name["name"], name["in"], name["required"]) == ("name", "path", True)
    (header,) = document["paths"]["/after"]["get"]["parameters"]
    assert header["schema"] == {"minimum": 0, "title": "Last-Event-Id", "type": "integer"}
    assert (header["in"], header["required"]) == ("header", False)
    (limit,) = document["paths"]["/page"]["get"]["parameters"]
    assert (limit["name"], limit["in"], limit["required"]) == ("limit", "query", False)
    assert limit["schema"]["default"] == 10
    assert "required" not in document["paths"]["/maybe"]["post"]["requestBody"]
