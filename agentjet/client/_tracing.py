"""Spans of the program's own OpenTelemetry, if the program uses it; nothing is imported here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ajet_core.protocol import TRACE_HEADER, TraceParent


def trace_headers() -> dict[str, str]:
    """Return the header that names the current span, none if there is no span."""
    trace = sys.modules.get("opentelemetry.trace")
    context = None if trace is None else trace.get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return {}
    ids = context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
    return {TRACE_HEADER: str(TraceParent(*ids, sampled=context.trace_flags.sampled))}


@contextlib.contextmanager
def rollout_span(episode_id: str) -> Iterator[None]:
    """Make a span for what an agent does in an episode, within the episode's trace.

    Its parent is the root span, which the server exports. It is linked to the current span.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield
        return
    root = TraceParent.of_episode(episode_id)
    parent = trace.SpanContext(
        int.from_bytes(root.trace_id, "big"),
        int.from_bytes(root.span_id, "big"),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    around = trace.get_current_span().get_span_context()
    with trace.get_tracer("agentjet").start_as_current_span(
        "rollout",
        context=trace.set_span_in_context(trace.NonRecordingSpan(parent)),
        links=[trace.Link(around)] if around.is_valid else [],
        attributes={"gen_ai.conversation.id": episode_id},
    ):
        yield


def trace_context() -> Any:
    """Return OpenTelemetry's context of this thread, for `use_trace_context` in another one."""
    context = sys.modules.get("opentelemetry.context")
    return None if context is None else context.get_current()


def use_trace_context(of_thread: Any) -> None:
    """Let this thread continue with the context of another one, until it ends."""
    context = sys.modules.get("opentelemetry.context")
    if context is not None and of_thread is not None:
        context.attach(of_thread)
