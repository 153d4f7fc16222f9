"""A receiver of OTLP, and a real collector in front of it."""

from __future__ import annotations

import contextlib
import gzip
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import TraceParent
from tests.support.gateway_processes import unused_port


class Received:
    """What a receiver got.

    :ivar spans: each with the attributes of its resource, as dicts.
    :ivar bodies: the bytes of all requests.
    :ivar refuse: status with which requests are refused, 0 to take them.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.metrics: list[Any] = []
        self.logs: list[Any] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.refuse = 0
        self.news = threading.Condition()

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        """Take a request."""
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
            ExportLogsServiceRequest,
        )
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        with self.news:
            self.bodies.append(body)
            self.headers.append(headers)
            if path.endswith("/v1/traces"):
                for traces in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resource = attributes(traces.resource)
                    for scope in traces.scope_spans:
                        self.spans += [(resource, span) for span in scope.spans]
            elif path.endswith("/v1/metrics"):
                for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in metrics.scope_metrics:
                        self.metrics += scope.metrics
            elif path.endswith("/v1/logs"):
                for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                    for scope in logs.scope_logs:
                        self.logs += scope.log_records
            self.news.notify_all()

    def named(self, name: str) -> list[Any]:
        """Return the spans whose name begins with `name`, in order of their start."""
        spans = [span for _, span in self.spans if span.name.startswith(name)]
        return sorted(spans, key=lambda span: span.start_time_unix_nano)

    def wait_for(self, name: str, count: int = 1, seconds: float = 30.0) -> list[Any]:
        """Return at least `count` spans whose name begins with `name`."""
        with self.news:
            if not self.news.wait_for(lambda: len(self.named(name)) >= count, seconds):
                got = sorted({span.name for _, span in self.spans})
                raise AssertionError(f"{len(self.named(name))} spans {name!r}; got {got}")
        return self.named(name)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until what was received satisfies a condition."""
        with self.news:
            assert self.news.wait_for(condition, 30), "it was not received"


def attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a span, a resource, a link or a data point."""
    return {pair.key: _value(pair.value) for pair in owner.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


def context(span: Any) -> TraceParent:
    """Return the trace and the id of a span."""
    return TraceParent(span.trace_id, span.span_id)


@contextlib.contextmanager
def receiving() -> Iterator[tuple[str, Received]]:
    """Listen for OTLP over HTTP; yield the URL and what is received."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            status = received.refuse or 200
            headers = {name.lower(): value for name, value in self.headers.items()}
            if status == 200:
                received.take(self.path, body, headers)
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()
            if status != 200:
                with received.news:
                    received.headers.append(headers)
                    received.news.notify_all()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def collecting(target: str, log: Path) -> Iterator[str]:
    """Run the collector Rotel, which sends on what it receives; yield its URL.

    :param target: URL that it sends to.
    """
    rotel = pytest.importorskip("rotel", reason="the collector is not installed")
    program = Path(rotel.__file__).with_name("rotel-agent")
    grpc, http = unused_port(), unused_port()
    command: list[str | Path] = [
        *(program, "start", "--exporter", "otlp"),
        *("--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"),
        *("--otlp-http-endpoint", f"127.0.0.1:{http}"),
        *("--otlp-exporter-endpoint", target),
        *("--otlp-exporter-protocol", "http"),
        *("--batch-timeout", "100ms"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        _wait_for_port(http, process, log)
        yield f"http://127.0.0.1:{http}"
    finally:
        process.terminate()
        process.wait(30)


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError(f"the collector does not listen: {log.read_text(encoding='utf-8')}")
