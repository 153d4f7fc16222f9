"""The span that is made of a call."""

from __future__ import annotations

import pytest

pytest.importorskip("opentelemetry.proto")

from ajet_core.protocol import TraceParent
from ajet_core.timeline import Call
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.telemetry.calls import CallSpan
from ajet_server.telemetry.spans import Attribute, SpanData, SpanMaker

ROOT = TraceParent(b"1" * 16, b"2" * 8)


def finished(
    request: ModelRequest | None, *calls: Call, header: str = "", root: TraceParent = ROOT
) -> SpanData | None:
    """The span of a call that took a second, None if it is not exported."""
    put: list[SpanMaker] = []
    times = iter((3 * 10**9, 4 * 10**9))
    headers = [(b"host", b"a"), (b"traceparent", header.encode())]
    span = CallSpan("e", root, headers, put.append, lambda: next(times), False)
    with span:
        span.request, span.model = request, "served"
        span.calls += calls
    return put[0]() if put else None


def of(request: ModelRequest | None, *calls: Call, header: str = "") -> SpanData:
    span = finished(request, *calls, header=header)
    assert span is not None
    return span


def values(span: SpanData) -> dict[str, Attribute]:
    return dict(zip(span.shape.names, span.values, strict=True)) | dict(span.shape.fixed)


def call(call_id: str, tokens: int) -> Call:
    ids, versions = [2] * tokens, [7] * tokens
    return Call(call_id, "e", 0, [1] * 5, ids, [0.0] * tokens, versions, 1, "stop", created_at=3.25)


def test_a_span_counts_the_tokens_of_all_choices() -> None:
    request = ModelRequest("chatcmpl-", model="asked", max_tokens=64)
    found = values(of(request, call("one", 3), call("two", 4)))
    assert found["gen_ai.request.model"] == "asked"
    assert found["gen_ai.response.id"] == "one"
    assert found["gen_ai.usage.output_tokens"] == 7
    assert found["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert found["ajet.policy_version"] == 7
    assert found["ajet.seconds_to_engine"] == 0.25


def test_the_name_of_a_model_that_a_request_chooses_is_shortened() -> None:
    span = of(ModelRequest("chatcmpl-", model="m" * 10_000_000))
    assert span.shape.name == "chat " + "m" * 256
    assert values(span)["gen_ai.request.model"] == "m" * 256


def test_calls_that_differ_only_in_values_share_a_shape() -> None:
    request = ModelRequest("chatcmpl-", model="asked")
    one, two = (of(request, call(name, len(name))) for name in ("a", "bb"))
    assert one.shape is two.shape
    seeded = of(ModelRequest("chatcmpl-", model="asked", seed=3), call("c", 1))
    assert seeded.shape is not one.shape
    assert "gen_ai.request.seed" in seeded.shape.names


def test_a_call_whose_request_was_not_read_has_a_span() -> None:
    span = of(None)
    assert (span.shape.name, tuple(span.values), span.start, span.end) == (
        "chat",
        ("e",),
        3 * 10**9,
        4 * 10**9,
    )


@pytest.mark.parametrize(
    ("header", "parent", "links"),
    [
        (TraceParent(ROOT.trace_id, b"3" * 8), b"3" * 8, ()),
        (TraceParent(b"4" * 16, b"3" * 8), ROOT.span_id, (TraceParent(b"4" * 16, b"3" * 8),)),
        ("00-zz-zz-01", ROOT.span_id, ()),
    ],
)
def test_the_span_of_the_caller_is_the_parent_in_its_trace_and_a_link_in_others(
    header: object, parent: bytes, links: tuple[TraceParent, ...]
) -> None:
    span = of(None, header=str(header))
    assert (span.parent, span.links) == (parent, links)


def test_a_call_of_an_episode_that_is_not_sampled_has_no_span() -> None:
    assert finished(None, root=ROOT._replace(sampled=False)) is None
