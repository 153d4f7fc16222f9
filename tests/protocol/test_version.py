"""Version negotiation."""

from __future__ import annotations

import pytest

from ajet_core.protocol import negotiate
from ajet_core.protocol.version import parse_version


@pytest.mark.parametrize(
    ("theirs", "ours", "common"),
    [
        (["1.0"], ["1.0"], "1.0"),
        (["1.3"], ["1.0"], "1.0"),
        (["1.0", "2.1"], ["2.0", "1.4"], "2.0"),
        (["1.2"], ["1.2", "2.0"], "1.2"),
        (["2.0"], ["1.9"], None),
        ([], ["1.0"], None),
        (["1.9", "1.10"], ["1.11"], "1.10"),
    ],
)
def test_the_highest_common_version_is_spoken(
    theirs: list[str], ours: list[str], common: str | None
) -> None:
    assert negotiate(theirs, ours) == common


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "1.0.0", "v1.0", "1.-1", "١.٠", "one.two"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a protocol version"):
        parse_version(text)
