"""The thread that exports, against a receiver on a socket."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from ajet_core.protocol import TraceParent
from ajet_installation.settings import TelemetrySettings
from ajet_server.telemetry.encoding import SCHEMA_URL, Encoder, LogData
from ajet_server.telemetry.environment import ExportTerms, read_terms
from ajet_server.telemetry.exporter import Exporter
from ajet_server.telemetry.spans import (
    INTERNAL,
    Attributes,
    SpanData,
    SpanEvent,
    SpanMaker,
    SpanShape,
)
from tests.support.otlp import Received, attributes, receiving

pytestmark = pytest.mark.processes


@pytest.fixture
def receiver() -> Iterator[tuple[str, Received]]:
    with receiving() as (url, received):
        yield url, received


def terms(url: str, **env: str) -> ExportTerms:
    env = {"OTEL_BSP_SCHEDULE_DELAY": "10", **env}
    return read_terms(TelemetrySettings(enabled=True, endpoint=url), "server", env)


def span(
    name: str, attributes: Attributes = (), fixed: Attributes = (), **changes: Any
) -> SpanMaker:
    shape = SpanShape(name, INTERNAL, fixed, tuple(name for name, _ in attributes))
    context = TraceParent(b"1" * 16, b"2" * 8)
    values = [value for _, value in attributes]
    return lambda: SpanData(shape, context, b"", 1, 2, values, **changes)


def test_headers_and_compression_are_those_of_the_environment(
    receiver: tuple[str, Received],
) -> None:
    url, received = receiver
    exporter = Exporter(
        terms(
            url,
            OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
            OTEL_EXPORTER_OTLP_HEADERS="x-collector-key=abc",
        )
    )
    exporter.open()
    exporter.put_span(span("one"))
    received.wait_for("one")
    exporter.close(10)
    (headers,) = received.headers
    assert headers["x-collector-key"] == "abc"
    assert headers["content-encoding"] == "gzip"
    assert headers["content-type"] == "application/x-protobuf"


def test_closing_sends_what_is_waiting(receiver: tuple[str, Received]) -> None:
    url, received = receiver
    exporter = Exporter(terms(url, OTEL_BSP_SCHEDULE_DELAY="600000"))
    exporter.open()
    for number in range(5):
        exporter.put_span(span(f"span {number}"))
    exporter.put_log(LogData(1, 30, "ajet", "a message"))
    exporter.close(10)
    assert len(received.named("span")) == 5
    assert [one.body.string_value for one in received.logs] == ["a message"]


def test_what_does_not_fit_into_the_queue_is_dropped_and_reported_once(
    receiver: tuple[str, Received], caplog: pytest.LogCaptureFixture
) -> None:
    url, received = receiver
    exporter = Exporter(terms(url, OTEL_BSP_MAX_QUEUE_SIZE="3"))
    for number in range(5):
        exporter.put_span(span(f"span {number}"))
    exporter.open()
    received.wait_for("span", 3)
    wait_until(lambda: bool(caplog.records))
    exporter.put_span(span("later"))
    received.wait_for("later")
    exporter.close(10)
    assert exporter.lost == 2
    (report,) = caplog.records
    assert report.message.startswith("2 spans or log records did not fit into the queue of 3")
    assert [one.name for one in received.named("span")] == ["span 0", "span 1", "span 2"]


class Counting(httpx2.BaseTransport):
    """Counts requests."""

    def __init__(self) -> None:
        self.requests = 0

    def has_had(self, requests: int) -> bool:
        return self.requests >= requests


class Failing(Counting):
    """Answers with these statuses first, and with 200 afterwards; raises for 0."""

    def __init__(self, *statuses: int) -> None:
        super().__init__()
        self.statuses = list(statuses)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        status = self.statuses.pop(0) if self.statuses else 200
        if not status:
            raise httpx2.ConnectError("nothing listens")
        return httpx2.Response(status, text="why")


def exporting(
    transport: httpx2.BaseTransport, url: str = "http://collector", **env: str
) -> Exporter:
    """An exporter that pauses no second between its tries."""
    exporter = Exporter(terms(url, **env), connect=lambda _: httpx2.Client(transport=transport))
    exporter.pause_seconds = 0.0
    return exporter


@pytest.mark.parametrize("status", [0, 429, 503])
def test_a_collector_that_is_away_for_a_moment_loses_nothing(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    transport = Failing(status, status)
    exporter = exporting(transport)
    exporter.put_span(span("one"))
    exporter.open()
    wait_until(lambda: transport.requests == 3)
    exporter.close(10)
    assert exporter.lost == 0
    assert not caplog.records


def test_what_the_collector_refuses_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    transport = Failing(400)
    exporter = exporting(transport)
    exporter.put_span(span("one"))
    exporter.open()
    exporter.close(10)
    assert (exporter.lost, transport.requests) == (1, 1)
    assert "400 why" in caplog.text


def test_failures_are_reported_once_and_so_is_their_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    transport = Failing(*[0] * 7)
    exporter = exporting(transport)
    exporter.open()
    for wanted in (5, 6, 7, 8):
        exporter.put_span(span("one"))
        wait_until(partial(transport.has_had, wanted))
    exporter.close(10)
    messages = [one.message for one in caplog.records if one.name == "ajet.telemetry"]
    assert len(messages) == 2
    assert messages[0].startswith("cannot send traces to http://collector/v1/traces: ConnectError")
    assert messages[1].endswith("takes telemetry again; 3 records were lost")


class Quoting(Counting):
    """Quotes the key of the request in an answer, and later in an error."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        key = request.headers["x-key"]
        if self.requests == 1:
            return httpx2.Response(401, text=f"the key {key} is unknown")
        if self.requests == 2:
            return httpx2.Response(200)
        raise httpx2.LocalProtocolError(f"Illegal header value b'{key}'")


def test_no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    transport = Quoting()
    exporter = exporting(
        transport,
        "http://user:pa55w0rd@collector:1/base?token=t0ken",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=%20SECRETKEY%0A",
    )
    exporter.open()
    for wanted in (1, 2, 3):
        exporter.put_span(span("one"))
        wait_until(partial(transport.has_had, wanted))
    exporter.close(10)
    said = [one.getMessage() for one in caplog.records if one.name == "ajet.telemetry"]
    assert [one.split(": ")[0] for one in said] == [
        "cannot send traces to http://collector:1/base",
        "http://collector:1/base takes telemetry again; 1 records were lost",
        "cannot send traces to http://collector:1/base",
    ]
    assert "401 the key *** is unknown" in said[0]
    assert "LocalProtocolError" in said[2]
    for secret in ("SECRETKEY", "pa55w0rd", "t0ken"):
        assert secret not in "".join(said)


def test_a_collector_that_hangs_does_not_hold_up_the_end() -> None:
    hanging, released = threading.Event(), threading.Event()

    class Hanging(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            hanging.set()
            released.wait()
            return httpx2.Response(200)

    exporter = Exporter(terms("http://x"), connect=lambda _: httpx2.Client(transport=Hanging()))
    exporter.put_span(span("one"))
    exporter.open()
    assert hanging.wait(30)
    exporter.put_span(span("two"))
    exporter.close(0.05)
    released.set()


def test_only_what_cannot_be_encoded_is_lost(
    receiver: tuple[str, Received], caplog: pytest.LogCaptureFixture
) -> None:
    url, received = receiver
    exporter = Exporter(terms(url))
    exporter.put_span(span("one"))
    broken: Any = (("x", object()),)
    exporter.put_span(span("broken", attributes=broken))
    exporter.put_span(span("two"))
    exporter.put_log(LogData(1, 30, "ajet", "before"))
    exporter.put_log(LogData(-1, 30, "ajet", "a time before 1970"))
    exporter.put_log(LogData(1, 30, "ajet", "after"))
    exporter.open()
    exporter.close(10)
    assert sorted(one.name for _, one in received.spans) == ["one", "two"]
    assert [one.body.string_value for one in received.logs] == ["before", "after"]
    assert exporter.lost == 2
    assert "cannot export 1 traces" in caplog.text
    assert "cannot export 1 logs" in caplog.text


def test_an_engine_whose_metrics_are_unreadable_does_not_hide_those_of_the_server(
    receiver: tuple[str, Received], caplog: pytest.LogCaptureFixture
) -> None:
    url, received = receiver
    registry = CollectorRegistry()
    Counter("requests", "how many", registry=registry).inc()
    exporter = Exporter(terms(url))
    exporter.open()
    exporter.put_metrics(
        lambda: chain(registry.collect(), text_string_to_metric_families("a{ b\n")), 7
    )
    received.wait_until(lambda: received.metrics)
    exporter.close(10)
    assert [one.name for one in received.metrics] == ["requests"]
    assert "cannot export all metrics" in caplog.text


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans())
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=20)
VALUES = st.one_of(TEXTS, NUMBERS, st.lists(TEXTS, max_size=3).map(tuple))


@settings(deadline=None)
@given(TEXTS, st.lists(st.tuples(TEXTS, VALUES), max_size=4).map(tuple))
def test_any_texts_and_numbers_can_be_encoded(name: str, values: Attributes) -> None:
    encoder = Encoder((("service.name", "a"),))
    event = SpanEvent(name, 1, values)
    for _ in range(2):
        made = span(name, attributes=values, fixed=values, events=(event,))()
        body = encoder.request([encoder.span(made)], SCHEMA_URL)
        (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
        for pair, (_, value) in zip(sent.attributes, values, strict=False):
            if isinstance(value, int) and not isinstance(value, bool):
                assert pair.value.int_value == max(-(2**63), min(value, 2**63 - 1))
    body = encoder.request([encoder.log(LogData(1, 30, name, name, values))])
    (scope,) = ExportLogsServiceRequest.FromString(body).resource_logs[0].scope_logs
    assert scope.log_records[0].body.string_value == scope.scope.name


def test_records_that_wait_are_bounded_in_bytes(
    receiver: tuple[str, Received], caplog: pytest.LogCaptureFixture
) -> None:
    url, received = receiver
    exporter = Exporter(terms(url))
    for number in range(80):
        text = ("content", f"{number}" + "x" * 2**20)
        exporter.put_span(span(f"span {number}", (text,)))
    assert exporter.lost == 80 - 63
    exporter.open()
    exporter.close(30)
    assert len(received.named("span")) == 63
    assert "did not fit into the queue of 2048 and 64 MiB" in caplog.text
    # Collectors refuse larger ones.
    assert max(map(len, received.bodies)) < 20 * 2**20


class Busy(httpx2.BaseTransport):
    """Puts further spans while each of the first requests is answered."""

    def __init__(self, requests: int, each: int) -> None:
        self.requests = requests
        self.each = each
        self.exporter: Exporter
        self.sizes: list[int] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        traces = ExportTraceServiceRequest.FromString(request.content)
        self.sizes.append(len(traces.resource_spans[0].scope_spans[0].spans))
        if len(self.sizes) < self.requests:
            for _ in range(self.each):
                self.exporter.put_span(span("more"))
        return httpx2.Response(200)


def busy(transport: Busy, **env: str) -> Exporter:
    exporter = exporting(transport, **env)
    transport.exporter = exporter
    return exporter


def test_what_comes_while_a_request_is_sent_waits_for_a_full_one() -> None:
    transport = Busy(6, 1)
    exporter = busy(transport, OTEL_BSP_SCHEDULE_DELAY="600000", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="3")
    for _ in range(12):
        exporter.put_span(span("one"))
    exporter.open()
    wait_until(lambda: len(transport.sizes) >= 5)
    exporter.close(10)
    # 12 at first, and one more for each of five requests; the end sends the rest.
    assert transport.sizes == [3, 3, 3, 3, 3, 2]


def test_a_queue_that_never_empties_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    transport = Busy(10**9, 5)
    exporter = busy(transport, OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    exporter.put_span(span("one"))
    exporter.put_span(span("one"))
    exporter.open()
    wait_until(lambda: bool(caplog.records))
    transport.each = 0
    exporter.close(10)
    (report,) = caplog.records
    assert "did not fit into the queue of 4 and 64 MiB" in report.message


def test_a_span_is_encoded_soon_and_keeps_nothing_afterwards() -> None:
    exporter = Exporter(terms("http://collector"))

    class Call:
        """What a span is made of."""

        make = staticmethod(span("one"))

        def made(self) -> SpanData:
            return self.make()

    kept = []
    for _ in range(40):
        call = Call()
        kept.append(weakref.ref(call))
        exporter.put_span(call.made)
    del call
    assert [one() is None for one in kept] == [True] * 32 + [False] * 8


def test_attributes_of_each_type_arrive(receiver: tuple[str, Received]) -> None:
    url, received = receiver
    wanted = {"text": "a\u00e9", "half": "a\ud800", "number": 3, "share": 0.5, "yes": True}
    exporter = Exporter(terms(url))
    exporter.open()
    fixed: Any = tuple({**wanted, "list": ("a", "b"), "empty": ()}.items())
    exporter.put_span(span("one", fixed=fixed, attributes=(("more", 1),), error="broken"))
    exporter.put_span(span("two", fixed=fixed))
    one, two = received.wait_for("one")[0], received.wait_for("two")[0]
    exporter.close(10)
    all_of_them = {**wanted, "half": "a?", "list": ["a", "b"], "empty": []}
    assert attributes(two) == all_of_them
    assert attributes(one) == {**all_of_them, "more": 1, "error.type": "broken"}


def test_spans_of_one_shape_keep_their_own_values(receiver: tuple[str, Received]) -> None:
    url, received = receiver
    exporter = Exporter(terms(url))
    for number in range(3):
        mine = (("number", number), ("text", f"{number}"), ("list", (f"{number}",)))
        exporter.put_span(span("shape", attributes=mine, fixed=(("same", 1),)))
    exporter.open()
    exporter.close(10)
    assert [attributes(one) for one in received.named("shape")] == [
        {"number": number, "text": f"{number}", "list": [f"{number}"], "same": 1}
        for number in range(3)
    ]


def test_histograms_and_counters_of_an_engine_keep_their_meaning(
    receiver: tuple[str, Received],
) -> None:
    url, received = receiver
    registry = CollectorRegistry()
    histogram = Histogram("seconds", "how long", ["model"], registry=registry, buckets=(1, 2))
    for value in (0.5, 1.5, 1.7, 9):
        histogram.labels("m").observe(value)
    Counter("requests", "how many", registry=registry).inc(4)
    exporter = Exporter(terms(url))
    exporter.open()
    exporter.put_metrics(registry.collect, 7)
    received.wait_until(lambda: len(received.metrics) == 2)
    exporter.close(10)
    metrics = {one.name: one for one in received.metrics}
    (point,) = metrics["seconds"].histogram.data_points
    assert list(point.explicit_bounds) == [1, 2]
    assert list(point.bucket_counts) == [1, 2, 1]
    assert (point.count, point.sum, point.time_unix_nano) == (4, 12.7, 7)
    assert attributes(point) == {"model": "m"}
    assert metrics["requests"].sum.is_monotonic
    assert [one.as_double for one in metrics["requests"].sum.data_points] == [4]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for the exporter's thread."""
    tick = threading.Event()
    for _ in range(3000):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("the exporter did not get there")
