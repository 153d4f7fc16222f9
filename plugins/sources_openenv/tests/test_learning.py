"""The demo's tiny model learns GridWalk, which is an environment of OpenEnv with a tool here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_testing.sources.learning import assert_source_learns


@pytest.mark.learns
@pytest.mark.timeout(1200)
def test_the_success_in_an_environment_rises(server: str, tmp_path: Path) -> None:
    """From about 0.2 to 0.9, by `ajet train`."""
    assert_source_learns(f"openenv:{server}/walks?system=Walk to the goal.", tmp_path)
