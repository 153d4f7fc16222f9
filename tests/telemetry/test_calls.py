"""What is kept of a call until its span is sent."""

from __future__ import annotations

import gc

import pytest

pytest.importorskip("opentelemetry.proto")

from ajet_core.protocol import TraceParent
from ajet_core.timeline import Call
from ajet_server.gateway.formats.request import ModelRequest
from ajet_server.telemetry.calls import CallSpan
from ajet_server.telemetry.spans import SPAN_BYTES


def finished(request: ModelRequest | None, *calls: Call) -> CallSpan:
    """A call that has ended."""
    times = iter(range(1, 10))
    context = TraceParent(b"1" * 16, b"2" * 8)
    span = CallSpan("e", context, b"3" * 8, None, lambda _: None, lambda: next(times), False)
    with span:
        span.request, span.model = request, "served"
        span.calls += calls
    return span


def call(call_id: str, tokens: int) -> Call:
    return Call(call_id, "e", 0, [1] * 5, [2] * tokens, [0.0] * tokens, [7] * tokens, 1, "stop")


def reachable(start: object) -> list[object]:
    """Return all objects that `start` keeps, but for classes, functions and modules."""
    seen: dict[int, object] = {}
    left = [start]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type) or hasattr(one, "__globals__"):
            continue
        seen[id(one)] = one
        left += gc.get_referents(one)
    return list(seen.values())


def test_neither_the_request_nor_its_calls_are_kept() -> None:
    request = ModelRequest("chatcmpl-", model="asked", max_tokens=64)
    make, _ = finished(request, call("one", 3), call("two", 4)).note()
    assert not [one for one in reachable(make) if isinstance(one, ModelRequest | Call)]
    span = make()
    values = dict(zip(span.shape.names, span.values, strict=True)) | dict(span.shape.fixed)
    assert values["gen_ai.request.model"] == "asked"
    assert values["gen_ai.response.id"] == "one"
    assert values["gen_ai.usage.output_tokens"] == 7
    assert values["gen_ai.response.finish_reasons"] == ("stop", "stop")
    assert values["ajet.policy_version"] == 7


def test_calls_that_differ_only_in_values_share_a_shape() -> None:
    request = ModelRequest("chatcmpl-", model="asked")
    spans = [finished(request, call(name, len(name))).note()[0]() for name in ("a", "bb")]
    assert spans[0].shape is spans[1].shape
    seeded = finished(ModelRequest("chatcmpl-", model="asked", seed=3), call("c", 1)).note()[0]()
    assert seeded.shape is not spans[0].shape
    assert "gen_ai.request.seed" in seeded.shape.names


def test_a_call_whose_request_was_not_read_has_a_span() -> None:
    make, size = finished(None).note()
    assert (make().shape.name, tuple(make().values), size) == ("chat", ("e",), SPAN_BYTES)


def test_a_long_name_of_a_model_counts_among_the_bytes_that_wait() -> None:
    _, size = finished(ModelRequest("chatcmpl-", model="m" * 10**6)).note()
    assert size >= 10**6
