"""The trace of an episode, and the header ``traceparent`` of W3C Trace Context."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

TRACE_HEADER = "traceparent"
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)


class TraceParent(NamedTuple):
    """A span that others refer to; `str` is the value of the header.

    :param trace_id: [16] bytes.
    :param span_id: [8] bytes.
    :param sampled: whether the span is exported.
    """

    trace_id: bytes
    span_id: bytes
    sampled: bool = True

    @classmethod
    def read(cls, header: str | None) -> TraceParent | None:
        """Return the parent that a header names; None if there is no header, or it is malformed."""
        match = _PARENT.fullmatch(header.strip()) if header else None
        # Later versions may append fields; version 00 has none.
        if match is None or (match[1] == "00" and match[5]):
            return None
        sampled = bool(int(match[4], 16) & 1)
        return cls(bytes.fromhex(match[2]), bytes.fromhex(match[3]), sampled)

    @classmethod
    def of_episode(cls, episode_id: str) -> TraceParent:
        """Return the root span of an episode's trace, which follows from the episode's id.

        So all processes agree on it, also after a restart, without storing or sending it: the trace
        id is the first 16 bytes, the span id the next 8, of the SHA-256 of ``agentjet episode ID``.
        """
        digest = hashlib.sha256(f"agentjet episode {episode_id}".encode()).digest()
        return cls(digest[:16], digest[16:24])

    def __str__(self) -> str:
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{int(self.sampled):02x}"
