"""Which versions of the swarm protocol this package speaks, and how two sides agree on one."""

from __future__ import annotations

from collections.abc import Sequence

PROTOCOL_VERSION = "1.2"
PROTOCOL_HEADER = "x-ajet-protocol"
SUPPORTED_VERSIONS: tuple[str, ...] = (PROTOCOL_VERSION,)

DEPRECATED_HEADER = "x-ajet-deprecated"
DEPRECATED: dict[str, str] = {}
"""What the next major version changes or removes: since when it is deprecated, and what to use.

Keys are routes (``POST /v1/episodes``), fields of messages (``ClaimRequest.tag``) and major
versions (``protocol 1``), values such as ``since protocol 1.2: use labels``. A server names what a
request uses of them in the `DEPRECATED_HEADER` of its answer.
"""


def parse_version(text: str) -> tuple[int, int]:
    """``"1.0"`` as (1, 0).

    :raises ValueError: not two decimal numbers joined by a dot.
    """
    major, dot, minor = text.partition(".")
    if not (dot and major.isascii() and minor.isascii() and major.isdigit() and minor.isdigit()):
        raise ValueError(f"not a protocol version: {text!r} (expected MAJOR.MINOR, such as 1.0)")
    return int(major), int(minor)


def negotiate(theirs: Sequence[str], ours: Sequence[str] = SUPPORTED_VERSIONS) -> str | None:
    """Return the version to use: the highest common major, with the lower of the two minors.

    Within a major version a later minor only adds, so the lower minor is understood by both.

    :return: None if there is no common major version.
    """
    best: tuple[int, int] | None = None
    for their_major, their_minor in map(parse_version, theirs):
        for our_major, our_minor in map(parse_version, ours):
            if their_major == our_major:
                common = (our_major, min(their_minor, our_minor))
                best = common if best is None or common > best else best
    return None if best is None else f"{best[0]}.{best[1]}"
