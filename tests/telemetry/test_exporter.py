"""The thread that exports, against a receiver on a socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from ajet_core.protocol import TraceParent
from ajet_installation.settings import TelemetrySettings
from ajet_server.telemetry.encoding import LogData
from ajet_server.telemetry.environment import ExportTerms, read_terms
from ajet_server.telemetry.exporter import Exporter
from ajet_server.telemetry.spans import INTERNAL, SpanData
from tests.support.otlp import Received, attributes, receiving

pytestmark = pytest.mark.processes


@pytest.fixture
def receiver() -> Iterator[tuple[str, Received]]:
    with receiving() as (url, received):
        yield url, received


def terms(url: str, **env: str) -> ExportTerms:
    env = {"OTEL_BSP_SCHEDULE_DELAY": "10", **env}
    return read_terms(TelemetrySettings(enabled=True, endpoint=url), "server", env)


def span(name: str, **changes: Any) -> SpanData:
    context = TraceParent(b"1" * 16, b"2" * 8)
    return SpanData(name, INTERNAL, context, b"", 1, 2, **changes)


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
    assert exporter.lost == 2
    exporter.open()
    received.wait_for("span", 3)
    wait_until(lambda: bool(caplog.records))
    exporter.put_span(span("later"))
    received.wait_for("later")
    exporter.close(10)
    (report,) = caplog.records
    assert report.message.startswith("2 spans or log records did not fit into the queue of 3")
    assert [one.name for one in received.named("span")] == ["span 0", "span 1", "span 2"]


class Counting(httpx.BaseTransport):
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

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        status = self.statuses.pop(0) if self.statuses else 200
        if not status:
            raise httpx.ConnectError("nothing listens")
        return httpx.Response(status, text="why")


def exporting(
    transport: httpx.BaseTransport, url: str = "http://collector", **env: str
) -> Exporter:
    """An exporter that pauses no second between its tries."""
    exporter = Exporter(terms(url, **env), connect=lambda _: httpx.Client(transport=transport))
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

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        key = request.headers["x-key"]
        if self.requests == 1:
            return httpx.Response(401, text=f"the key {key} is unknown")
        if self.requests == 2:
            return httpx.Response(200)
        raise httpx.LocalProtocolError(f"Illegal header value b'{key}'")


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

    class Hanging(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            hanging.set()
            released.wait()
            return httpx.Response(200)

    exporter = Exporter(terms("http://x"), connect=lambda _: httpx.Client(transport=Hanging()))
    exporter.put_span(span("one"))
    exporter.open()
    assert hanging.wait(30)
    exporter.put_span(span("two"))
    exporter.close(0.05)
    released.set()


def test_a_span_that_cannot_be_made_does_not_end_the_export(
    receiver: tuple[str, Received], caplog: pytest.LogCaptureFixture
) -> None:
    url, received = receiver
    exporter = Exporter(terms(url))
    exporter.open()

    class Broken:
        def data(self) -> SpanData:
            raise RuntimeError("broken")

    exporter.put_span(Broken())
    wait_until(lambda: exporter.lost == 1)
    exporter.put_span(span("one"))
    received.wait_for("one")
    exporter.close(10)
    assert "cannot export traces" in caplog.text


def test_attributes_of_each_type_arrive(receiver: tuple[str, Received]) -> None:
    url, received = receiver
    wanted = {"text": "a\u00e9", "half": "a\ud800", "number": 3, "share": 0.5, "yes": True}
    exporter = Exporter(terms(url))
    exporter.open()
    fixed = tuple({**wanted, "list": ("a", "b"), "empty": ()}.items())
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
