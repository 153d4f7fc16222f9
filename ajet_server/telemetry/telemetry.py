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
from ajet_server.telemetry.exporter import LOGGER, Exporter
from ajet_server.telemetry.log_handler import ExportHandler, without_keys
from ajet_server.telemetry.spans import (
    CURRENT,
    INTERNAL,
    SERVER,
    Attribute,
    SpanData,
    SpanEvent,
    error_kind,
    is_chosen,
    new_span_id,
)

_log = logging.getLogger(LOGGER)

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

_root = functools.lru_cache(maxsize=4096)(TraceParent.of_episode)


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
        self._ratio = ratio
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
        return cls(
            Exporter(terms),
            ratio=terms.ratio,
            content=settings.content,
            metrics_every=terms.metrics_every,
        )

    def open(self) -> None:
        """Start to export; the process must not fork afterwards."""
        # It would log each request.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._exporter.open()
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Export what is waiting, within a few seconds."""
        logging.getLogger().removeHandler(self._handler)
        self._exporter.close(_CLOSE_SECONDS)

    def call(self, episode_id: str, headers: Mapping[str, str]) -> CallSpan:
        """Begin the span of a model call.

        :param headers: of the request. A span of the episode's trace in them is the call's parent;
            one of another trace is linked, so that an episode remains one trace.
        """
        root = _root(episode_id)
        parent, link = root.span_id, None
        if (header := headers.get(TRACE_HEADER)) is not None:
            incoming = TraceParent.read(header)
            if incoming is not None and incoming.trace_id == root.trace_id:
                parent = incoming.span_id
            else:
                link = incoming
        sampled = is_chosen(root.trace_id, self._ratio)
        context = TraceParent(root.trace_id, new_span_id(), sampled)
        return CallSpan(episode_id, context, parent, link, self._finish, self._clock, self._content)

    def _finish(self, span: CallSpan) -> None:
        if not span.context.sampled:
            return
        try:
            # Not later: the request and its calls take more memory than what is exported of them.
            data = span.data()
        except Exception:  # noqa: BLE001 - a defect must not end the call
            _log.exception("cannot export a call of episode %s", span.episode_id)
            return
        self._export(data)

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
                        "claim",
                        SERVER,
                        TraceParent(incoming.trace_id, new_span_id()),
                        incoming.span_id,
                        started,
                        self._clock(),
                        links=tuple(map(_root, granted)),
                        error=error,
                    )
                )

    def episode_finished(self, record: EpisodeRecord) -> None:
        """Export the root span of an episode's trace."""
        root = _root(record.episode_id)
        if not is_chosen(root.trace_id, self._ratio):
            return
        end = self._clock() if record.finished_at is None else round(record.finished_at * _NANO)
        more: list[tuple[str, Attribute]] = [
            ("gen_ai.conversation.id", record.episode_id),
        ]
        if self._content:
            # The id of a task that is a text is the text.
            more += [("ajet.task.id", record.task_id), ("ajet.group", record.group)]
        events: list[SpanEvent] = []
        if record.reward is not None:
            more.append(("ajet.reward", record.reward))
            scores = {"reward": record.reward, **record.components}
            events = [_score(name, float(score), end) for name, score in scores.items()]
        if record.reason:
            more.append(("ajet.reason", without_keys(record.reason)))
        self._export(
            SpanData(
                "invoke_agent",
                INTERNAL,
                root,
                b"",
                round(record.created_at * _NANO),
                end,
                (
                    ("gen_ai.operation.name", "invoke_agent"),
                    PROVIDER,
                    ("ajet.episode.kind", record.kind),
                    ("ajet.episode.state", record.state),
                    ("ajet.tag", record.tag),
                    ("ajet.policy_version", record.claim_version),
                ),
                tuple(more),
                events=tuple(events),
                error=record.cause if record.state == "aborted" else "",
            )
        )

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
        roots = map(_root, batch.episode_ids)
        self._export(
            SpanData(
                "training_step",
                INTERNAL,
                span.context,
                b"",
                started,
                end,
                attributes=(
                    ("ajet.step", batch.step),
                    ("ajet.batch.id", batch.batch_id),
                    ("ajet.batch.episodes", len(batch.episode_ids)),
                    *((f"ajet.{name}", metrics[name]) for name in _STEP_METRICS if name in metrics),
                ),
                links=tuple(root for root in roots if is_chosen(root.trace_id, self._ratio)),
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
            self._export(SpanData(name, INTERNAL, context, span.context.span_id, at, until))
            at = until

    def status(self, status: ServerStatus, engine: str) -> None:
        """Export the numbers of ``GET /metrics``.

        :param engine: the engine's metrics in Prometheus text format.
        """

        def numbers() -> Iterable[Metric]:
            return chain(families(status), text_string_to_metric_families(engine))

        self._exporter.put_metrics(numbers, self._clock())

    def _export(self, span: SpanData) -> None:
        self._exporter.put_span(span)


def _score(name: str, value: float, at: int) -> SpanEvent:
    return SpanEvent(
        "gen_ai.evaluation.result",
        at,
        (("gen_ai.evaluation.name", name), ("gen_ai.evaluation.score.value", value)),
    )
