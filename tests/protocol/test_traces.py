"""The header ``traceparent`` and the trace of an episode."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.protocol import TraceParent

IDS = (st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
# Of the W3C recommendation.
EXAMPLE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@given(IDS[0].filter(any), IDS[1].filter(any), st.booleans())
def test_what_is_written_is_read(trace_id: bytes, span_id: bytes, sampled: bool) -> None:
    parent = TraceParent(trace_id, span_id, sampled)
    assert TraceParent.read(str(parent)) == parent


@pytest.mark.parametrize(
    "header",
    [
        EXAMPLE,
        f" {EXAMPLE}\t",
        EXAMPLE.replace("00-", "cc-", 1),
        EXAMPLE.replace("00-", "cc-", 1) + "-of a later version",
        EXAMPLE[:-2] + "ff",
    ],
)
def test_headers_that_are_honoured(header: str) -> None:
    assert str(TraceParent.read(header)) == EXAMPLE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        EXAMPLE[:-1],
        EXAMPLE + "-00",
        EXAMPLE.upper(),
        EXAMPLE.replace("00-", "ff-", 1),
        "00-" + "0" * 32 + EXAMPLE[35:],
        EXAMPLE[:36] + "0" * 16 + "-01",
        EXAMPLE + "\n" + EXAMPLE,
    ],
)
def test_malformed_headers_name_no_parent(header: str | None) -> None:
    assert TraceParent.read(header) is None


@given(st.text())
def test_no_header_raises(header: str) -> None:
    TraceParent.read(header)


def test_clients_in_other_languages_can_compute_the_trace_of_an_episode() -> None:
    parent = TraceParent.of_episode("ep-1")
    digest = hashlib.sha256(b"agentjet episode ep-1").hexdigest()
    assert str(parent) == f"00-{digest[:32]}-{digest[32:48]}-01"
