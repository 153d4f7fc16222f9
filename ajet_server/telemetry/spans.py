"""Finished spans, before they are encoded."""

from __future__ import annotations

import contextvars
import functools
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ajet_core.errors import AjetError
from ajet_core.protocol import TraceParent

Attribute = str | int | float | bool | Sequence[str]
Attributes = tuple[tuple[str, Attribute], ...]

# Numbers of OTLP.
INTERNAL = 1
SERVER = 2

CURRENT: contextvars.ContextVar[TraceParent | None] = contextvars.ContextVar(
    "ajet_span", default=None
)
"""The span that the current task works for, to which its log records belong."""


class SpanEvent(NamedTuple):
    """Something that happened at a time.

    :param at: Unix time in nanoseconds.
    """

    name: str
    at: int
    attributes: Attributes


class SpanShape:
    """What many spans have in common; each instance is encoded once.

    :param kind: `INTERNAL` or `SERVER`.
    :param fixed: attributes that all of them have.
    :param names: those of the attributes whose values differ.
    """

    __slots__ = ("fixed", "kind", "name", "names")

    def __init__(
        self, name: str, kind: int, fixed: Attributes = (), names: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.kind = kind
        self.fixed = fixed
        self.names = names


span_shape = functools.lru_cache(maxsize=256)(SpanShape)
"""Return the shape with these arguments, which must be hashable."""


class SpanData(NamedTuple):
    """A finished span.

    :param parent: [8] id of the span above it in its trace, b"" if it has none.
    :param start: Unix time in nanoseconds.
    :param end: the same.
    :param values: of the attributes that the shape only names, in their order.
    :param error: what kind of error ended it, "" if none did.
    """

    shape: SpanShape
    context: TraceParent
    parent: bytes
    start: int
    end: int
    values: Sequence[Attribute] = ()
    links: tuple[TraceParent, ...] = ()
    events: tuple[SpanEvent, ...] = ()
    error: str = ""


SpanMaker = Callable[[], SpanData]
"""Makes a finished span of what is known of it."""


def error_kind(error: BaseException) -> str:
    """Return the value of the attribute ``error.type``."""
    return error.type if isinstance(error, AjetError) else type(error).__name__


def new_span_id() -> bytes:
    """Return [8] random bytes that are not all zero."""
    return (random.getrandbits(64) or 1).to_bytes(8, "big")


def is_chosen(trace_id: bytes, ratio: float) -> bool:
    """Whether a trace is among the sampled ones, as OpenTelemetry's sampler TraceIdRatioBased."""
    return int.from_bytes(trace_id[8:], "big") < round(ratio * 2**64)
