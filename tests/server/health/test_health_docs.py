"""The table of docs/health.md is that of the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.protocol import FailureConfig
from ajet_server.health import CHECKS, Check

PAGE = Path(__file__).parents[3] / "docs" / "health.md"
ROWS = {
    cells[1].strip(" `"): cells
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if (cells := line.split("|"))[0] == "" and len(cells) > 5 and "`" in cells[1]
}


def test_every_check_has_a_row_and_every_row_a_check() -> None:
    assert set(ROWS) == {check.kind for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.kind)
def test_a_row_tells_limits_and_pauses_as_they_are(check: Check) -> None:
    _, _, _, settings, pauses, _, _ = ROWS[check.kind]
    defaults = FailureConfig()
    for limit in check.limits:
        assert f"`{limit}` {getattr(defaults, limit):g}" in settings
    assert pauses.strip().startswith("yes") == (check.kind in defaults.pause_on)
    if check.kind in defaults.pause_on:
        assert ("before the step" in pauses) == check.before
