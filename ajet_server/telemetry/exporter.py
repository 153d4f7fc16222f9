"""A thread that sends spans, metrics and log records to a collector, from bounded queues."""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import httpx2
from prometheus_client import Metric

from ajet_server.telemetry.encoding import SCHEMA_URL, Encoded, Encoder, LogData
from ajet_server.telemetry.environment import ExportTerms, Signal, Target
from ajet_server.telemetry.spans import SpanMaker

LOGGER = "ajet.telemetry"
_log = logging.getLogger(LOGGER)

# As the protocol says; everything else that is refused is refused for good.
_REPEATED = frozenset({429, 502, 503, 504})
_TRIES = 5
_SHOWN = 200
# Shorter words of a header, such as the scheme, are none.
_SHORTEST_SECRET = 8
# Bytes of the records of a kind that wait, and of a request. With messages, a record may take
# megabytes. Collectors refuse requests of more than 20 MiB unless told otherwise.
_MOST_BYTES = 64 * 2**20
_FULL_BYTES = 8 * 2**20
_AT_ONCE = 16


class _RecordQueue:
    """Encoded records that wait, within bounds; threads may share it.

    :param most: number of records that it takes.
    :param batch: number of records of a request.
    """

    def __init__(self, most: int, batch: int) -> None:
        self._most = most
        self._batch = batch
        self._lock = threading.Lock()
        self._records: deque[Encoded] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_full(self) -> bool:
        """Whether a request can be filled."""
        return len(self._records) >= self._batch or self._bytes >= _FULL_BYTES

    def put(self, records: Iterable[Encoded]) -> None:
        """Add records; drop those that would exceed the bounds."""
        with self._lock:
            for record in records:
                size = len(record[1])
                if len(self._records) >= self._most or self._bytes + size > _MOST_BYTES:
                    self.dropped += 1
                else:
                    self._records.append(record)
                    self._bytes += size

    def take(self) -> Sequence[Encoded]:
        """Remove the records of one request, the oldest first."""
        taken: list[Encoded] = []
        size = 0
        with self._lock:
            while self._records and len(taken) < self._batch and size < _FULL_BYTES:
                record = self._records.popleft()
                taken.append(record)
                size += len(record[1])
            self._bytes -= size
        return taken


class Exporter:
    """Sends what is put into it, and drops what does not fit into its queues.

    Nothing here waits for the collector except the thread and, for a limited time, `close`.

    :param connect: makes the connection for a number of seconds per request.
    :param at_once: how many spans are made and encoded in a row, because then the processor has
        code and data at hand. Until then a call's span keeps its request.
    :ivar pause_seconds: pause before a request is repeated for the first time; it doubles.
    """

    def __init__(
        self,
        terms: ExportTerms,
        connect: Callable[[ExportTerms], httpx2.Client] | None = None,
        *,
        at_once: int = _AT_ONCE,
    ) -> None:
        self._terms = terms
        self._connect = connect or _connection
        self._encoder = Encoder(terms.resource)
        self._made: deque[SpanMaker] = deque()
        self._at_once = min(at_once, terms.batch, terms.queue)
        self._encoding = threading.Lock()
        self._spans = _RecordQueue(terms.queue, terms.batch)
        self._logs = _RecordQueue(terms.queue, terms.batch)
        self._metrics: tuple[Callable[[], Iterable[Metric]], int] | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._deadline = float("inf")
        self._failing = False
        self._warned = False
        self._refused = 0
        self.pause_seconds = 1.0

    @property
    def lost(self) -> int:
        """Number of records that were dropped or refused."""
        return self._refused + self._dropped

    @property
    def _dropped(self) -> int:
        return self._spans.dropped + self._logs.dropped

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Send what is waiting, for at most so many seconds."""
        self._deadline = time.monotonic() + seconds
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds)
        if waiting := len(self._made) + len(self._spans) + len(self._logs):
            _log.warning("%d spans and log records were not sent", waiting)

    def put_span(self, make: SpanMaker) -> None:
        """Export a span.

        :param make: returns it; called soon, by this thread or the exporter's.
        """
        self._made.append(make)
        if len(self._made) >= self._at_once:
            self._encode_spans()
            self._wake_if_full(self._spans)

    def put_log(self, record: LogData) -> None:
        """Export a log record."""
        try:
            encoded = self._encoder.log(record)
        except Exception as error:  # noqa: BLE001 - a defect must not end what is logged
            self._left_out("logs", [error])
            return
        self._logs.put([encoded])
        self._wake_if_full(self._logs)

    def put_metrics(self, families: Callable[[], Iterable[Metric]], at: int) -> None:
        """Export metrics; those that were not sent before are outdated.

        :param families: called by the thread.
        :param at: Unix time in nanoseconds.
        """
        self._metrics = families, at
        self._wake.set()

    def _wake_if_full(self, queue: _RecordQueue) -> None:
        if queue.is_full and not self._wake.is_set():
            self._wake.set()

    def _encode_spans(self) -> None:
        encoded: list[Encoded] = []
        errors: list[Exception] = []
        # The encoder uses its messages again.
        with self._encoding:
            while self._made:
                make = self._made.popleft()
                try:
                    encoded.append(self._encoder.span(make()))
                except Exception as error:  # noqa: BLE001 - the others are exported
                    errors.append(error)
        self._spans.put(encoded)
        self._left_out("traces", errors)

    def _left_out(self, signal: Signal, errors: Sequence[Exception]) -> None:
        """Report the errors of records that cannot be encoded."""
        if errors:
            self._refused += len(errors)
            _log.error("cannot export %d %s", len(errors), signal, exc_info=errors[0])

    def _run(self) -> None:
        with self._connect(self._terms) as http:
            due = time.monotonic() + self._terms.delay
            while not self._closing.is_set():
                if not (self._spans.is_full or self._logs.is_full):
                    self._wake.wait(max(0.0, due - time.monotonic()))
                self._wake.clear()
                is_due = time.monotonic() >= due
                self._export(http, rest=is_due)
                if is_due:
                    due = time.monotonic() + self._terms.delay
            self._export(http, rest=True)

    def _export(self, http: httpx2.Client, *, rest: bool) -> None:
        """Send the metrics and, of the records that wait, those that fill requests.

        :param rest: send also the others. What comes meanwhile waits for more to come.
        """
        if (metrics := self._metrics) is not None:
            self._metrics = None
            body, problem = self._encoder.metrics(*metrics)
            if problem is not None:
                _log.error("cannot export all metrics", exc_info=problem)
            self._send(http, "metrics", body, 0)
        if rest:
            self._encode_spans()
        self._export_records(http, "traces", self._spans, SCHEMA_URL, rest=rest)
        self._export_records(http, "logs", self._logs, rest=rest)

    def _export_records(
        self,
        http: httpx2.Client,
        signal: Signal,
        queue: _RecordQueue,
        schema_url: str = "",
        *,
        rest: bool,
    ) -> None:
        waiting = len(queue)
        while waiting > 0 and (rest or queue.is_full) and time.monotonic() <= self._deadline:
            records = queue.take()
            waiting -= len(records)
            self._send(http, signal, self._encoder.request(records, schema_url), len(records))
            self._report_dropped()

    def _send(self, http: httpx2.Client, signal: Signal, body: bytes, count: int) -> None:
        """Send one request, repeating it where that may help.

        :param count: number of records that are lost if it fails.
        """
        target = self._terms.targets.get(signal)
        if target is None:
            return
        try:
            problem = self._post(http, target, body)
        except Exception as error:  # noqa: BLE001 - a defect must not end the export of the rest
            _log.exception("cannot export %s", signal)
            problem = type(error).__name__
        if problem:
            self._refused += count
            self._report(signal, target, problem)
        elif self._failing:
            self._failing = False
            _log.info("%s takes telemetry again; %d records were lost", target.place, self.lost)

    def _post(self, http: httpx2.Client, target: Target, body: bytes) -> str:
        """Return why the collector did not take a request, "" if it did."""
        headers = {**target.headers, "content-type": "application/x-protobuf"}
        if self._terms.gzip:
            body = gzip.compress(body)
            headers["content-encoding"] = "gzip"
        problem = ""
        for attempt in range(_TRIES):
            try:
                answer = http.post(target.url, content=body, headers=headers)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                problem = type(error).__name__
                # This one quotes headers, and the other one the URL.
                if not isinstance(error, httpx2.LocalProtocolError | httpx2.InvalidURL):
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
                "%d spans or log records did not fit into the queue of %d and %d MiB and are lost, "
                "and so may be more: lower telemetry.sample_ratio, or raise "
                "OTEL_BSP_MAX_QUEUE_SIZE",
                self._dropped,
                self._terms.queue,
                _MOST_BYTES // 2**20,
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


def _connection(terms: ExportTerms) -> httpx2.Client:
    verify = True if terms.tls is None else terms.tls
    return httpx2.Client(timeout=terms.timeout, verify=verify)


def _without(headers: Mapping[str, str], text: str) -> str:
    """Return what a collector says without the keys that it may quote."""
    for value in headers.values():
        for word in value.split():
            if len(word) >= _SHORTEST_SECRET:
                text = text.replace(word, "***")
    return text
