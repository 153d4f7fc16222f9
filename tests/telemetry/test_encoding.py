"""Encoded spans are the messages of OTLP, whatever is in them and in whatever order they come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("opentelemetry.proto")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from ajet_core.protocol import TraceParent
from ajet_server.telemetry.encoding import SCHEMA_URL, Encoder
from ajet_server.telemetry.spans import Attribute, SpanData, SpanEvent, SpanShape

VALUES = st.one_of(
    st.text(max_size=300),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(st.text(max_size=5), max_size=3).map(tuple),
)
PAIRS = st.lists(st.tuples(st.sampled_from("abcdef"), VALUES), max_size=4).map(tuple)
CONTEXTS = st.builds(
    TraceParent,
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=8, max_size=8),
    st.booleans(),
)


@st.composite
def spans_of_some_shapes(draw: st.DrawFn) -> list[SpanData]:
    """Spans, several of which have the same shape."""
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=3))
    spans: list[SpanData] = []
    for shape in draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=6)):
        values = draw(st.tuples(*[VALUES] * len(shape.names)))
        spans.append(
            draw(st.builds(SpanData, shape=st.just(shape), values=st.just(values), **REST))
        )
    return spans


SHAPES = st.builds(
    SpanShape,
    name=st.text(max_size=200),
    kind=st.sampled_from([1, 2]),
    fixed=PAIRS,
    names=st.lists(st.sampled_from("abcdef"), max_size=4).map(tuple),
)
REST: dict[str, Any] = {
    "context": CONTEXTS,
    "parent": st.sampled_from([b"", b"12345678"]),
    "start": st.integers(0, 2**64 - 1),
    "end": st.integers(0, 2**64 - 1),
    "links": st.lists(CONTEXTS, max_size=2).map(tuple),
    "events": st.lists(
        st.builds(SpanEvent, st.text(max_size=5), st.integers(0, 2**64 - 1), PAIRS), max_size=2
    ).map(tuple),
    "error": st.sampled_from(["", "EngineError"]),
}


def written(text: str) -> str:
    return text.encode(errors="replace").decode()


def read(value: AnyValue) -> Attribute:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return tuple(one.string_value for one in value.array_value.values)
    found: Attribute = getattr(value, kind)
    return found


def expected(value: Attribute) -> Attribute:
    if isinstance(value, str):
        return written(value)
    return tuple(map(written, value)) if isinstance(value, tuple) else value


@pytest.mark.slow
@given(spans_of_some_shapes())
def test_a_request_has_what_the_spans_have(spans: list[SpanData]) -> None:
    encoder = Encoder((("service.name", "test"),))
    # Messages are used again, by spans of the same shape too.
    body = encoder.request([encoder.span(span) for span in (*spans, *spans)], SCHEMA_URL)
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert resource.resource.attributes[0].value.string_value == "test"
    (scope,) = resource.scope_spans
    assert (scope.scope.name, scope.schema_url, resource.schema_url) == (
        "agentjet",
        SCHEMA_URL,
        SCHEMA_URL,
    )
    assert len(scope.spans) == 2 * len(spans)
    for span, data in zip(scope.spans, [*spans, *spans], strict=True):
        assert (span.name, span.kind) == (written(data.shape.name), data.shape.kind)
        assert (span.trace_id, span.span_id, span.parent_span_id) == (
            data.context.trace_id,
            data.context.span_id,
            data.parent,
        )
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (data.start, data.end)
        pairs = [*zip(data.shape.names, data.values, strict=True), *data.shape.fixed]
        pairs += [("error.type", data.error)] if data.error else []
        assert [(pair.key, read(pair.value)) for pair in span.attributes] == [
            (name, expected(value)) for name, value in pairs
        ]
        assert [(link.trace_id, bool(link.flags)) for link in span.links] == [
            (link.trace_id, link.sampled) for link in data.links
        ]
        assert [(event.name, event.time_unix_nano) for event in span.events] == [
            (written(event.name), event.at) for event in data.events
        ]
        assert (span.status.code == 2) == bool(data.error)


def test_a_span_that_cannot_be_encoded_spoils_no_other() -> None:
    def span(value: object) -> SpanData:
        context = TraceParent(b"t" * 16, b"s" * 8)
        return SpanData(shape, context, b"", 1, 2, ("first", value))  # type: ignore[arg-type]

    shape = SpanShape("x", 1, names=("a", "b"))
    encoder = Encoder(())
    before = encoder.span(span(1))
    with pytest.raises(TypeError):
        encoder.span(span(object()))
    body = encoder.request([before, encoder.span(span(2))])
    spans = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert [one.attributes[1].value.int_value for one in spans] == [1, 2]
