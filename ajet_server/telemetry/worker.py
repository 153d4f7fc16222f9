"""What a worker exports: a span for each completion that its engine samples."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from ajet_core.interfaces import GenerateChunk, GenerateRequest
from ajet_core.protocol import TraceParent
from ajet_installation.settings import TelemetrySettings
from ajet_server.telemetry.environment import read_terms
from ajet_server.telemetry.exporter import Exporter
from ajet_server.telemetry.spans import SERVER, Attribute, SpanData, error_kind, new_span_id

_CLOSE_SECONDS = 2.0


class WorkerTelemetry:
    """Exports the spans of a worker.

    :param clock: Unix time in nanoseconds.
    """

    def __init__(self, exporter: Exporter, clock: Callable[[], int] = time.time_ns) -> None:
        self._exporter = exporter
        self._clock = clock

    @classmethod
    def of(cls, collector: str) -> WorkerTelemetry:
        """Return the telemetry of a worker.

        :param collector: as `BootPlan.collector`.
        :raises ConfigError: a variable of the environment has a value that cannot be used.
        """
        settings = TelemetrySettings(enabled=True, endpoint=collector or None)
        return cls(Exporter(read_terms(settings, "worker")))

    def open(self) -> None:
        """Start to export."""
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._exporter.open()

    def close(self) -> None:
        """Export what is waiting, within seconds."""
        self._exporter.close(_CLOSE_SECONDS)

    def generation(self, request: GenerateRequest) -> GenerationSpan | None:
        """Begin the span of a completion; None if its call is not sampled."""
        parent = TraceParent.read(request.traceparent)
        if parent is None or not parent.sampled:
            return None
        return GenerationSpan(request, parent, self._exporter, self._clock)


class GenerationSpan:
    """A completion that an engine is sampling; a context manager that ends with it.

    :ivar request: the request for the engine, whose model server continues this span.
    """

    def __init__(
        self,
        request: GenerateRequest,
        parent: TraceParent,
        exporter: Exporter,
        clock: Callable[[], int],
    ) -> None:
        self._parent = parent
        self._exporter = exporter
        self._clock = clock
        self._context = TraceParent(parent.trace_id, new_span_id())
        self._started = clock()
        self._first = self._tokens = 0
        self._cached: int | None = None
        self._ended = 0
        self._error = ""
        self.request = replace(request, traceparent=str(self._context))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self._error = error_kind(error)
        self._ended = self._clock()
        self._exporter.put_span(self.data())

    def take(self, chunk: GenerateChunk) -> None:
        """Note what the engine sampled."""
        self._first = self._first or self._clock()
        self._tokens += len(chunk.token_ids)
        if chunk.cached_tokens is not None:
            self._cached = chunk.cached_tokens

    def data(self) -> SpanData:
        """Return the finished span."""
        more: list[tuple[str, Attribute]] = [
            ("ajet.request.id", self.request.request_id),
            ("ajet.prompt_tokens", len(self.request.prompt_ids)),
            ("ajet.sampled_tokens", self._tokens),
        ]
        if self._cached is not None:
            more.append(("ajet.cached_tokens", self._cached))
        if self._first:
            elapsed = (self._first - self._started) / 1e9
            more.append(("ajet.seconds_to_first_tokens", elapsed))
        return SpanData(
            "generate",
            SERVER,
            self._context,
            self._parent.span_id,
            self._started,
            self._ended,
            attributes=tuple(more),
            error=self._error,
        )
