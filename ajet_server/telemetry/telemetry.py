"""What a server or gateway process exports."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ajet_core.interfaces import BatchRecord, EpisodeRecord
from ajet_core.protocol import TRACE_HEADER, ServerStatus, StepSummary, TraceParent
from ajet_installation.settings import TelemetrySettings
from ajet_server.observe.prometheus import families
from ajet_server.telemetry.calls import PROVIDER, CallSpan
from ajet_server.telemetry.environment import read_terms
from ajet_server.telemetry.exporter import Exporter
from ajet_server.telemetry.log_handler import ExportHandler, without_keys
from ajet_server.telemetry.spans import (
    CURRENT,
    INTERNAL,
    SERVER,
    Attribute,
    SpanData,
    SpanEvent,
    SpanShape,
    error_kind,
    is_chosen,
    new_span_id,
    span_shape,
)

_CLOSE_SECONDS = 5.0
_NANO = 1e9
# The parts of a step, in order, with the metrics that have their seconds.
_PARTS = (
    ("prepare", "merge_seconds"),
    ("train", "update_seconds"),
    ("publish_weights", "publish_seconds"),
    ("load_weights", "load_seconds"),
)
_STEP_METRICS = ("reward_mean", "loss", "tokens_trained")

_CLAIM = SpanShape("claim", SERVER)
_ROOTS = 4096


class StepSpan:
    """A training step in progress.

    :ivar summary: set once it has finished.
    """

    def __init__(self, context: TraceParent) -> None:
        self.context = context
        self.summary: StepSummary | None = None


class Telemetry:
    """Turns what happens in a process into spans, metrics and log records.

    All methods return at once and never raise because of the collector.

    :param exporter: sends them.
    :param ratio: share of the episodes whose traces are exported.
    :param content: whether to export messages.
    :param clock: Unix time in nanoseconds.
    """

    def __init__(
        self,
        exporter: Exporter,
        *,
        ratio: float = 1.0,
        content: bool = False,
        metrics_every: float = 60.0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._exporter = exporter
        self._handler = ExportHandler(exporter)
        self._root = functools.lru_cache(_ROOTS)(functools.partial(_root, ratio))
        self._content = content
        self._clock = clock
        self.metrics_every = metrics_every

    @classmethod
    def of(cls, settings: TelemetrySettings, process: str) -> Telemetry:
        """Return the telemetry of a process, as settings and environment say.

        :param process: ``server`` or ``gateway``.
        :raises ConfigError: a variable of the environment has a value that cannot be used.
        """
        terms = read_terms(settings, process)
        # Messages of many calls in a row would stop the event loop.
        exporter = Exporter(terms, at_once=1) if settings.content else Exporter(terms)
        return cls(
            exporter,
            ratio=terms.ratio,
            content=settings.content,
            metrics_every=terms.metrics_every,
        )

    def open(self) -> None:
        """Start to export; the process must not fork afterwards."""
        # It would log each request.
        for library in ("httpx", "httpx2"):
            logging.getLogger(library).setLevel(logging.WARNING)
        self._exporter.open()
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Export what is waiting, within a few seconds."""
        logging.getLogger().removeHandler(self._handler)
        self._exporter.close(_CLOSE_SECONDS)

    def call(self, episode_id: str, headers: Iterable[tuple[bytes, bytes]]) -> CallSpan:
        """Begin the span of a model call.

        :param headers: of the request, as ASGI has them. A span of the episode's trace in them is
            the call's parent; one of another trace is linked, so that an episode remains one trace.
        """
        root = self._root(episode_id)
        put = self._exporter.put_span
        return CallSpan(episode_id, root, headers, put, self._clock, self._content)

    @contextmanager
    def claim(self, headers: Mapping[str, str]) -> Iterator[list[str]]:
        """Export a claim as part of its client's trace, if it has one.

        :return: takes the id of the granted episode, to whose trace the span is linked.
        """
        incoming = TraceParent.read(headers.get(TRACE_HEADER))
        started, granted = self._clock(), list[str]()
        error = ""
        try:
            yield granted
        except BaseException as caught:
            error = error_kind(caught)
            raise
        finally:
            if incoming is not None and incoming.sampled:
                self._export(
                    SpanData(
                        _CLAIM,
                        TraceParent(incoming.trace_id, new_span_id()),
                        incoming.span_id,
                        started,
                        self._clock(),
                        links=tuple(map(self._root, granted)),
                        error=error,
                    )
                )

    def episode_finished(self, record: EpisodeRecord) -> None:
        """Export the root span of an episode's trace."""
        root = self._root(record.episode_id)
        if not root.sampled:
            return
        end = self._clock() if record.finished_at is None else round(record.finished_at * _NANO)
        make = functools.partial(_episode_span, root, record, end, self._content)
        self._exporter.put_span(make)

    @contextmanager
    def step(self, batch: BatchRecord) -> Iterator[StepSpan]:
        """Export a training step, with links to the episodes of its batch."""
        # Steps are trained again after a crash, so their traces do not follow from their number.
        trace_id = new_span_id() + new_span_id()
        span = StepSpan(TraceParent(trace_id, new_span_id()))
        token = CURRENT.set(span.context)
        started, error = self._clock(), ""
        try:
            yield span
        except BaseException as caught:
            error = error_kind(caught)
            raise
        finally:
            CURRENT.reset(token)
            self._export_step(span, batch, started, error)

    def _export_step(self, span: StepSpan, batch: BatchRecord, started: int, error: str) -> None:
        end = self._clock()
        metrics = {} if span.summary is None else span.summary.metrics
        roots = map(self._root, batch.episode_ids)
        more: dict[str, Attribute] = {
            "ajet.step": batch.step,
            "ajet.batch.id": batch.batch_id,
            "ajet.batch.episodes": len(batch.episode_ids),
            **{f"ajet.{name}": metrics[name] for name in _STEP_METRICS if name in metrics},
        }
        self._export(
            SpanData(
                span_shape("training_step", INTERNAL, (), tuple(more)),
                span.context,
                b"",
                started,
                end,
                tuple(more.values()),
                links=tuple(root for root in roots if root.sampled),
                error=error,
            )
        )
        if span.summary is None:
            return
        # The parts follow each other up to the end of the step.
        seconds = [(name, metrics.get(metric, 0.0)) for name, metric in _PARTS]
        at = end - round(sum(one for _, one in seconds) * _NANO)
        for name, one in seconds:
            until = at + round(one * _NANO)
            context = TraceParent(span.context.trace_id, new_span_id())
            shape = span_shape(name, INTERNAL)
            self._export(SpanData(shape, context, span.context.span_id, at, until))
            at = until

    def status(self, status: ServerStatus, engine: str) -> None:
        """Export the numbers of ``GET /metrics``.

        :param engine: the engine's metrics in Prometheus text format.
        """

        def numbers() -> Iterable[Metric]:
            return chain(families(status), text_string_to_metric_families(engine))

        self._exporter.put_metrics(numbers, self._clock())

    def _export(self, span: SpanData) -> None:
        self._exporter.put_span(lambda: span)


def _root(ratio: float, episode_id: str) -> TraceParent:
    """Return the root span of an episode's trace.

    :param ratio: share of the episodes whose traces are exported.
    """
    root = TraceParent.of_episode(episode_id)
    return root._replace(sampled=is_chosen(root.trace_id, ratio))


def _episode_span(root: TraceParent, record: EpisodeRecord, end: int, content: bool) -> SpanData:
    more: dict[str, Attribute] = {
        "gen_ai.conversation.id": record.episode_id,
        "ajet.policy_version": record.claim_version,
    }
    if content:
        # The id of a task that is a text is the text.
        more["ajet.task.id"], more["ajet.group"] = record.task_id, record.group
    events: tuple[SpanEvent, ...] = ()
    if record.reward is not None:
        more["ajet.reward"] = record.reward
        scores = {"reward": record.reward, **record.components}
        events = tuple([_score(name, float(score), end) for name, score in scores.items()])
    if record.reason:
        more["ajet.reason"] = without_keys(record.reason)
    fixed = (
        ("gen_ai.operation.name", "invoke_agent"),
        PROVIDER,
        ("ajet.episode.kind", record.kind),
        ("ajet.episode.state", record.state),
        ("ajet.tag", record.tag),
    )
    start = round(record.created_at * _NANO)
    shape = span_shape("invoke_agent", INTERNAL, fixed, tuple(more))
    error = record.cause if record.state == "aborted" else ""
    return SpanData(shape, root, b"", start, end, tuple(more.values()), events=events, error=error)


def _score(name: str, value: float, at: int) -> SpanEvent:
    return SpanEvent(
        "gen_ai.evaluation.result",
        at,
        (("gen_ai.evaluation.name", name), ("gen_ai.evaluation.score.value", value)),
    )
