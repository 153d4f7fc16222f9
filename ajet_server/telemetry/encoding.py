"""Encode spans, metrics and log records as the messages of OTLP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from prometheus_client import Metric as Family

from ajet_core import __version__
from ajet_core.protocol import TraceParent
from ajet_server.telemetry.spans import Attribute, Attributes, SpanData, SpanShape

SCHEMA_URL = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
"""The version of the GenAI conventions that names of spans and attributes follow."""

_TEMPLATES = 256
_SCOPE = "agentjet"
# The fields of OTLP's messages that hold spans. Those that hold log records have the same numbers,
# and so have the resource, the scope and the schema beside them.
_RESOURCES = ExportTraceServiceRequest.RESOURCE_SPANS_FIELD_NUMBER
_SCOPES = ResourceSpans.SCOPE_SPANS_FIELD_NUMBER
_RECORDS = ScopeSpans.SPANS_FIELD_NUMBER
# The encoding of protobuf: the type of a field that is a message, and 7 bits of a number.
_LENGTH_DELIMITED = 2
_LOW_BITS = 0x7F
_SAMPLED_FLAG = 1
# What an integer of OTLP can be.
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1
# OTLP's numbers of severities; Python's levels are multiples of 10.
_SEVERITIES = {10: 5, 20: 9, 30: 13, 40: 17, 50: 21}


@dataclass(frozen=True, slots=True)
class LogData:
    """A log record.

    :param at: Unix time in nanoseconds.
    :param level: as in ``logging``.
    :param context: the span in which it was logged.
    """

    at: int
    level: int
    logger: str
    message: str
    attributes: Attributes = ()
    context: TraceParent | None = None


Encoded = tuple[str, bytes]
"""An instrumentation scope's name, and a record of it as a field of the message that has them."""


class _SpanTemplate:
    """Encodes spans of one shape.

    What they share is encoded once. What differs is set in a message that is used again: making or
    copying messages takes more time than all else. Encoded messages of one type that follow each
    other are one message with the fields of all.
    """

    def __init__(self, shape: SpanShape) -> None:
        self._shared = Span(
            name=_text(shape.name),
            kind=cast("Span.SpanKind.ValueType", shape.kind),
            flags=_SAMPLED_FLAG,
            attributes=[_pair(*one) for one in shape.fixed],
        ).SerializeToString()
        self._span = Span(attributes=[KeyValue(key=_text(name)) for name in shape.names])
        self._values = [pair.value for pair in self._span.attributes]

    def encode(self, data: SpanData) -> bytes:
        """Return an encoded span."""
        span, context = self._span, data.context
        span.trace_id = context.trace_id
        span.span_id = context.span_id
        span.parent_span_id = data.parent
        span.start_time_unix_nano = data.start
        span.end_time_unix_nano = data.end
        for target, value in zip(self._values, data.values, strict=True):
            _set(target, value)
        encoded: bytes = span.SerializeToString() + self._shared
        if data.links or data.events or data.error:
            encoded += _rest(data).SerializeToString()
        return encoded


class Encoder:
    """Encodes the records of one process; only one thread at a time may encode spans.

    :param resource: attributes of the process.
    """

    def __init__(self, resource: Attributes) -> None:
        self._resource = Resource(attributes=[_pair(*one) for one in resource])
        self._templates: dict[SpanShape, _SpanTemplate] = {}

    def span(self, data: SpanData) -> Encoded:
        """Encode a span."""
        template = self._templates.get(data.shape)
        if template is None:
            template = _SpanTemplate(data.shape)
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            self._templates[data.shape] = template
        return _SCOPE, b"".join(_field(_RECORDS, template.encode(data)))

    @staticmethod
    def log(record: LogData) -> Encoded:
        """Encode a log record."""
        field = b"".join(_field(_RECORDS, _log_record(record).SerializeToString()))
        return _text(record.logger), field

    def request(self, records: Iterable[Encoded], schema_url: str = "") -> bytes:
        """Return the request that exports records, all of which are spans or all log records."""
        by_scope: dict[str, list[bytes]] = {}
        for name, field in records:
            by_scope.setdefault(name, []).append(field)
        resource = [
            ResourceSpans(resource=self._resource, schema_url=schema_url).SerializeToString()
        ]
        for name, fields in by_scope.items():
            scope = ScopeSpans(scope=_scope(name), schema_url=schema_url)
            resource += _field(_SCOPES, b"".join((scope.SerializeToString(), *fields)))
        return b"".join(_field(_RESOURCES, b"".join(resource)))

    def metrics(
        self, families: Callable[[], Iterable[Family]], at: int
    ) -> tuple[bytes, Exception | None]:
        """Return the request that exports metrics of Prometheus, and why some are not in it.

        :param families: returns them.
        :param at: Unix time in nanoseconds.
        """
        request = ExportMetricsServiceRequest()
        resource = request.resource_metrics.add(resource=self._resource)
        scope = resource.scope_metrics.add(scope=_scope(_SCOPE))
        problem: Exception | None = None
        try:
            for family in families():
                if family.samples:
                    scope.metrics.append(_metric(family, at))
        except Exception as error:  # noqa: BLE001 - an engine's, which come last
            problem = error
        return request.SerializeToString(), problem


def _scope(name: str) -> InstrumentationScope:
    return InstrumentationScope(name=name, version=__version__)


def _field(number: int, message: bytes) -> tuple[bytes, bytes]:
    """Return an encoded message as a field of another one: its tag with its length, and itself."""
    head = bytearray([number << 3 | _LENGTH_DELIMITED])
    length = len(message)
    while length > _LOW_BITS:
        head.append(length & _LOW_BITS | _LOW_BITS + 1)
        length >>= 7
    head.append(length)
    return bytes(head), message


def _rest(data: SpanData) -> Span:
    """Return what few spans have."""
    rest = Span()
    for link in data.links:
        rest.links.add(trace_id=link.trace_id, span_id=link.span_id, flags=int(link.sampled))
    for event in data.events:
        pairs = [_pair(*one) for one in event.attributes]
        rest.events.add(name=_text(event.name), time_unix_nano=event.at, attributes=pairs)
    if data.error:
        rest.status.code = Status.STATUS_CODE_ERROR
        rest.attributes.append(_pair("error.type", data.error))
    return rest


def _log_record(record: LogData) -> LogRecord:
    context = record.context
    level = record.level // 10 * 10
    severity = _SEVERITIES.get(level, 1 if level < 10 else 21)
    return LogRecord(
        time_unix_nano=record.at,
        observed_time_unix_nano=record.at,
        severity_number=cast("SeverityNumber.ValueType", severity),
        severity_text=_text(logging.getLevelName(record.level)),
        body=AnyValue(string_value=_text(record.message)),
        attributes=[_pair(*one) for one in record.attributes],
        trace_id=b"" if context is None else context.trace_id,
        span_id=b"" if context is None else context.span_id,
        flags=0 if context is None else int(context.sampled),
    )


def _metric(family: Family, at: int) -> Metric:
    metric = Metric(name=_text(family.name), description=_text(family.documentation))
    if family.type == "histogram":
        _fill_histogram(metric, family, at)
        return metric
    # When counting began is unknown: totals of a run outlive the process.
    counts = family.type == "counter"
    if counts:
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = (
            AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
    points = metric.sum.data_points if counts else metric.gauge.data_points
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        labels = [_pair(*label) for label in sample.labels.items()]
        points.add(time_unix_nano=at, as_double=sample.value, attributes=labels)
    return metric


def _fill_histogram(metric: Metric, family: Family, at: int) -> None:
    """Add the points of a histogram, whose buckets Prometheus counts cumulatively."""
    metric.histogram.aggregation_temporality = (
        AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    )
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(sorted(labels.items()))
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            buckets.setdefault(key, []).append((bound, sample.value))
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    for key, counted in buckets.items():
        counted.sort()
        totals = [int(total) for _, total in counted]
        metric.histogram.data_points.add(
            time_unix_nano=at,
            attributes=[_pair(*label) for label in key],
            count=totals[-1],
            sum=sums.get(key, 0.0),
            explicit_bounds=[bound for bound, _ in counted[:-1]],
            bucket_counts=[b - a for a, b in zip([0, *totals], totals, strict=False)],
        )


def _pair(name: str, value: Attribute) -> KeyValue:
    pair = KeyValue(key=_text(name))
    _set(pair.value, value)
    return pair


def _text(value: str) -> str:
    """Return a text that can be encoded: half of a surrogate pair cannot."""
    return value if value.isascii() else value.encode(errors="replace").decode()


def _set(target: AnyValue, value: Attribute) -> None:
    if isinstance(value, str):
        target.string_value = value if value.isascii() else _text(value)
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = max(_LEAST_INT, min(value, _MOST_INT))
    elif isinstance(value, float):
        target.double_value = value
    else:
        _set_list(target, value)


def _set_list(target: AnyValue, values: Sequence[str]) -> None:
    del target.array_value.values[:]
    target.array_value.SetInParent()
    for value in values:
        _set(target.array_value.values.add(), value)
