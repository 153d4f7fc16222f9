"""The demo's tiny model learns GridWalk, which is an environment of Gymnasium here."""

from __future__ import annotations

from pathlib import Path

import pytest
from walk_settings import write_walks

from ajet_testing.sources.learning import assert_source_learns, walk_names


@pytest.mark.learns
@pytest.mark.timeout(1200)
def test_the_success_in_an_environment_rises(tmp_path: Path) -> None:
    """From about 0.2 to 0.9, by `ajet train`."""
    assert_source_learns(write_walks(tmp_path, walk_names(seed=0)), tmp_path)
