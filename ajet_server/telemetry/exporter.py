"""A thread that sends spans, metrics and log records to a collector, from bounded queues."""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import httpx

from ajet_server.telemetry.encoding import Encoder, LogData
from ajet_server.telemetry.environment import ExportTerms, Signal, Target
from ajet_server.telemetry.spans import ExportedSpan

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")

LOGGER = "ajet.telemetry"
_log = logging.getLogger(LOGGER)

# As the protocol says; everything else that is refused is refused for good.
_REPEATED = frozenset({429, 502, 503, 504})
_TRIES = 5
_SHOWN = 200
# Shorter words of a header, such as the scheme, are none.
_SHORTEST_SECRET = 8


class Exporter:
    """Sends what is put into it, and drops what does not fit into its queues.

    Nothing here waits for the collector except the thread and, for a limited time, `close`.

    :param connect: makes the connection for a number of seconds per request.
    :ivar pause_seconds: pause before a request is repeated for the first time; it doubles.
    :ivar lost: number of records that were dropped or refused.
    """

    def __init__(
        self, terms: ExportTerms, connect: Callable[[ExportTerms], httpx.Client] | None = None
    ) -> None:
        self._terms = terms
        self._connect = connect or _connection
        self._encoder = Encoder(terms.resource)
        self._spans: deque[ExportedSpan] = deque()
        self._logs: deque[LogData] = deque()
        self._metrics: tuple[Callable[[], Iterable[Metric]], int] | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._deadline = float("inf")
        self._failing = False
        self._dropped = 0
        self._warned = False
        self.pause_seconds = 1.0
        self.lost = 0

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Send what is waiting, for at most so many seconds."""
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)
        if waiting := len(self._spans) + len(self._logs):
            _log.warning("%d spans and log records were not sent", waiting)

    def put_span(self, span: ExportedSpan) -> None:
        """Export a span."""
        self._put(self._spans, span)

    def put_log(self, record: LogData) -> None:
        """Export a log record."""
        self._put(self._logs, record)

    def put_metrics(self, families: Callable[[], Iterable[Metric]], at: int) -> None:
        """Export metrics; those that were not sent before are outdated.

        :param families: called by the thread.
        :param at: Unix time in nanoseconds.
        """
        self._metrics = families, at
        self._wake.set()

    def _put(self, queue: deque[T], record: T) -> None:
        waiting = len(queue)
        if waiting >= self._terms.queue:
            self._dropped += 1
            self.lost += 1
            return
        queue.append(record)
        if waiting + 1 == self._terms.batch:
            self._wake.set()

    def _run(self) -> None:
        with self._connect(self._terms) as http:
            while not self._closing.is_set():
                self._wake.wait(self._terms.delay)
                self._wake.clear()
                self._export(http)
                self._report_dropped()
            self._export(http)

    def _export(self, http: httpx.Client) -> None:
        """Send all that is waiting."""
        while self._spans or self._logs or self._metrics is not None:
            if time.monotonic() > self._deadline:
                return
            if spans := _taken(self._spans, self._terms.batch):
                self._send(http, "traces", partial(self._encoder.spans, spans), len(spans))
            if records := _taken(self._logs, self._terms.batch):
                self._send(http, "logs", partial(self._encoder.logs, records), len(records))
            if (metrics := self._metrics) is not None:
                self._metrics = None
                self._send(http, "metrics", partial(self._encode_metrics, *metrics), 0)

    def _encode_metrics(self, families: Callable[[], Iterable[Metric]], at: int) -> bytes:
        return self._encoder.metrics(families(), at)

    def _send(
        self, http: httpx.Client, signal: Signal, encode: Callable[[], bytes], count: int
    ) -> None:
        """Send one request, repeating it where that may help.

        :param count: number of records that are lost if it fails.
        """
        target = self._terms.targets.get(signal)
        if target is None:
            return
        try:
            problem = self._post(http, target, encode())
        except Exception as error:  # noqa: BLE001 - a defect must not end the export of the rest
            _log.exception("cannot export %s", signal)
            problem = str(error)
        if problem:
            self.lost += count
            self._report(signal, target, problem)
        elif self._failing:
            self._failing = False
            _log.info("%s takes telemetry again; %d records were lost", target.place, self.lost)

    def _post(self, http: httpx.Client, target: Target, body: bytes) -> str:
        """Return why the collector did not take a request, "" if it did."""
        headers = {**target.headers, "content-type": "application/x-protobuf"}
        if self._terms.gzip:
            body = gzip.compress(body)
            headers["content-encoding"] = "gzip"
        problem = ""
        for attempt in range(_TRIES):
            try:
                answer = http.post(target.url, content=body, headers=headers)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = type(error).__name__
                # This one quotes headers, and the other one the URL.
                if not isinstance(error, httpx.LocalProtocolError | httpx.InvalidURL):
                    problem += f": {error}"
            else:
                if answer.is_success:
                    return ""
                problem = f"{answer.status_code} {_without(target.headers, answer.text)[:_SHOWN]}"
                if answer.status_code not in _REPEATED:
                    return problem
            # A collector that has been away for long is not worth waiting for.
            if self._failing or attempt == _TRIES - 1:
                break
            if self._closing.wait(self.pause_seconds * 2**attempt):
                break
        return problem

    def _report_dropped(self) -> None:
        """Log once that a collector is too slow."""
        if self._dropped and not (self._failing or self._warned):
            self._warned = True
            _log.warning(
                "%d spans or log records did not fit into the queue of %d and are lost, and so "
                "may be more: lower telemetry.sample_ratio, or raise OTEL_BSP_MAX_QUEUE_SIZE",
                self._dropped,
                self._terms.queue,
            )

    def _report(self, signal: Signal, target: Target, problem: str) -> None:
        """Log the first of several failures."""
        if not self._failing:
            self._failing = True
            _log.warning(
                "cannot send %s to %s: %s. The run is not affected. Telemetry is lost until the "
                "collector takes it again, which is logged",
                signal,
                target.place,
                problem,
            )


def _connection(terms: ExportTerms) -> httpx.Client:
    verify = True if terms.tls is None else terms.tls
    return httpx.Client(timeout=terms.timeout, verify=verify)


def _without(headers: Mapping[str, str], text: str) -> str:
    """Return what a collector says without the keys that it may quote."""
    for value in headers.values():
        for word in value.split():
            if len(word) >= _SHORTEST_SECRET:
                text = text.replace(word, "***")
    return text


def _taken(queue: deque[T], most: int) -> Sequence[T]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]
