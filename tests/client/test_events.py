"""The event stream: parsing, and staying connected."""

from __future__ import annotations

import json

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentjet.client._sse import SseParser
from ajet_core.errors import AjetError, AuthError, ServerUnreachableError
from tests.support.clients import Clock, MakeFace, Script, error


def event(id_: int) -> str:
    body = json.dumps({"id": id_, "time": 1.5, "type": "step", "data": {"step": id_}})
    return f"id: {id_}\nevent: step\ndata: {body}\n\n"


def stream(*events: str) -> httpx2.Response:
    return httpx2.Response(200, text="".join(events), headers={"content-type": "text/event-stream"})


async def test_events_come_in_order_and_comments_do_not(make: MakeFace) -> None:
    script = Script().on(
        "GET /v1/events", stream(": connected\n\n", event(1), ": hm\n\n", event(2))
    )
    events = await make(script).events(2)
    assert [(e.id, e.type, e.data) for e in events] == [
        (1, "step", {"step": 1}),
        (2, "step", {"step": 2}),
    ]
    assert script.requests[0].headers["accept"] == "text/event-stream"
    assert "last-event-id" not in script.requests[0].headers


async def test_since_is_the_last_event_already_seen(make: MakeFace) -> None:
    script = Script().on("GET /v1/events", stream(event(8)))
    await make(script).events(1, since=7)
    assert script.requests[0].headers["last-event-id"] == "7"


async def test_it_connects_again_where_it_was(make: MakeFace, clock: Clock) -> None:
    script = Script().on(
        "GET /v1/events",
        stream(event(1), event(2)),
        httpx2.ReadError("reset"),
        httpx2.Response(502, text="proxy"),
        stream(event(3)),
    )
    events = await make(script).events(3)
    assert [e.id for e in events] == [1, 2, 3]
    assert [r.headers.get("last-event-id") for r in script.requests] == [None, "2", "2", "2"]
    assert len(clock.sleeps) == 3


async def test_half_an_event_at_the_end_is_dropped(make: MakeFace) -> None:
    script = Script().on("GET /v1/events", stream(event(1), event(2)[:-20]), stream(event(2)))
    assert [e.id for e in await make(script).events(2)] == [1, 2]


async def test_it_gives_up_when_the_server_is_gone(make: MakeFace, clock: Clock) -> None:
    script = Script().on("GET /v1/events", stream(event(1)), httpx2.ConnectError("refused"))
    with pytest.raises(ServerUnreachableError, match="lost the event stream"):
        await make(script, retries=2).events(2)
    assert len(clock.sleeps) == 2


async def test_a_refusal_is_the_servers_error(make: MakeFace) -> None:
    script = Script().on("GET /v1/events", (401, error("invalid_api_key", "who are you")))
    with pytest.raises(AuthError, match="who are you"):
        await make(script).events(1)


async def test_what_is_no_event_is_told(make: MakeFace) -> None:
    script = Script().on("GET /v1/events", stream("data: hello\n\n"))
    with pytest.raises(AjetError, match="is this an agentjet server"):
        await make(script).events(1)


@given(st.lists(st.integers(1, 40), max_size=60), st.sampled_from(["\n", "\r\n"]))
def test_it_does_not_matter_how_the_stream_is_cut(cuts: list[int], newline: str) -> None:
    whole = (": ping\n\nid: 1\ndata: grüße\ndata:zwei\n\nevent: x\n\ndata: {}\n\n").replace(
        "\n", newline
    )
    rest = whole.encode()
    parser = SseParser()
    found: list[str] = []
    for cut in cuts:
        found += parser.feed(rest[:cut])
        rest = rest[cut:]
    found += parser.feed(rest)
    assert found == ["grüße\nzwei", "{}"]


def test_an_endless_line_is_refused() -> None:
    parser = SseParser()
    with pytest.raises(AjetError, match="16 MiB"):
        parser.feed(b"x" * (1 << 24) + b"x")
