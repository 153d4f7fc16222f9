"""ADK's spans and log records, which contain prompts, are not made in episodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from google.adk.telemetry import tracing
from opentelemetry.trace import NoOpTracer

from agentjet.agents import current_route

_MARK = "__ajet_quiet__"
_lock = threading.Lock()


def silence() -> None:
    """Make no spans and log records in episodes; repeated calls have no effect.

    The tracer itself is changed, because the modules of ADK have references to it.
    """
    with _lock:
        tracer, logger = tracing.tracer, tracing.otel_logger
        if hasattr(tracer, _MARK):
            return
        nothing = NoOpTracer()
        for name in ("start_span", "start_as_current_span"):
            setattr(tracer, name, _unless(getattr(tracer, name), getattr(nothing, name)))
        logger.emit = _unless(logger.emit, lambda *_args, **_options: None)
        setattr(tracer, _MARK, True)


def _unless(call: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one in episodes."""

    def calls(*args: Any, **kwargs: Any) -> Any:
        return (call if current_route() is None else instead)(*args, **kwargs)

    return calls
