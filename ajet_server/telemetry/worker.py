"""What a worker exports: a span for each completion that its engine samples."""

from __future__ import annotations

import functools
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
from ajet_server.telemetry.spans import (
    SERVER,
    Attribute,
    SpanData,
    error_kind,
    new_span_id,
    span_shape,
)

_CLOSE_SECONDS = 2.0
_NAMES = ("ajet.request.id", "ajet.prompt_tokens", "ajet.sampled_tokens")


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
        for library in ("httpx", "httpx2"):
            logging.getLogger(library).setLevel(logging.WARNING)
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
        request = self.request
        make = functools.partial(
            _generation_span,
            self._context,
            self._parent.span_id,
            request.request_id,
            len(request.prompt_ids),
            self._tokens,
            self._cached,
            self._started,
            self._first,
            self._ended,
            self._error,
        )
        self._exporter.put_span(make)

    def take(self, chunk: GenerateChunk) -> None:
        """Note what the engine sampled."""
        self._first = self._first or self._clock()
        self._tokens += len(chunk.token_ids)
        if chunk.cached_tokens is not None:
            self._cached = chunk.cached_tokens


def _generation_span(  # noqa: PLR0917 - what was noted of a completion
    context: TraceParent,
    parent: bytes,
    request_id: str,
    prompt_tokens: int,
    tokens: int,
    cached: int | None,
    started: int,
    first: int,
    ended: int,
    error: str,
) -> SpanData:
    names: tuple[str, ...] = _NAMES
    values: list[Attribute] = [request_id, prompt_tokens, tokens]
    if cached is not None:
        names += ("ajet.cached_tokens",)
        values.append(cached)
    if first:
        names += ("ajet.seconds_to_first_tokens",)
        values.append((first - started) / 1e9)
    shape = span_shape("generate", SERVER, (), names)
    return SpanData(shape, context, parent, started, ended, values, error=error)
