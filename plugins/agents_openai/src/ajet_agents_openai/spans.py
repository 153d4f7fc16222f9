"""Spans inside episodes: they record whose turn it is, and no processor receives them."""

from __future__ import annotations

import threading
from typing import Any

from agents.tracing import AgentSpanData, Trace, get_trace_provider
from agents.tracing.provider import TraceProvider
from agents.tracing.spans import NoOpSpan, Span

from agentjet.agents import current_route

_MARK = "__ajet_named__"
_lock = threading.Lock()


class NamedSpan(NoOpSpan[Any]):
    """A span that is not recorded.

    :ivar agent: the agent whose turn it is; None outside any turn.
    """

    def __init__(self, span_data: Any, agent: str | None) -> None:
        super().__init__(span_data)
        self.agent = agent


def name_spans() -> None:
    """Make the trace provider create such spans in episodes; repeated calls have no effect."""
    with _lock:
        provider = get_trace_provider()
        if not hasattr(provider, _MARK):
            _watch(provider)


def _watch(provider: TraceProvider) -> None:
    # Patch the provider itself: a replacement could lack what the program configured on it.
    create_trace, create_span = provider.create_trace, provider.create_span

    def creates_trace(name: str, *args: Any, disabled: bool = False, **others: Any) -> Trace:
        quiet = disabled or current_route() is not None
        return create_trace(name, *args, **{**others, "disabled": quiet})

    def creates_span(
        span_data: Any,
        span_id: str | None = None,
        parent: Trace | Span[Any] | None = None,
        disabled: bool = False,
    ) -> Span[Any]:
        if current_route() is None:
            return create_span(span_data, span_id, parent, disabled)
        around = parent if isinstance(parent, NamedSpan) else provider.get_current_span()
        return NamedSpan(span_data, _speaker(span_data, around))

    vars(provider).update({"create_trace": creates_trace, "create_span": creates_span, _MARK: True})


def _speaker(span_data: Any, around: Span[Any] | None) -> str | None:
    if isinstance(span_data, AgentSpanData):
        return span_data.name
    return around.agent if isinstance(around, NamedSpan) else None
