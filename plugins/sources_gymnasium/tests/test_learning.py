"""The demo's tiny model learns GridWalk, which is an environment of Gymnasium here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from grid_walks import SYSTEM

from ajet_testing.sources.learning import assert_source_learns, walk_names


@pytest.mark.learns
@pytest.mark.timeout(1200)
def test_the_success_in_an_environment_rises(tmp_path: Path) -> None:
    """From about 0.2 to 0.9, by `ajet train`."""
    shutil.copy(Path(__file__).parent / "grid_walks.py", tmp_path)
    size = len(walk_names(seed=0))
    # JSON strings are strings of TOML. An answer that is too long must not be in another prompt.
    (tmp_path / "ajet.toml").write_text(
        f"[sources.gymnasium]\nsize = {size}\neval_size = 0\nsystem = {json.dumps(SYSTEM)}\n"
        'invalid_action = "end"\ninvalid_reward = -0.5\n'
    )
    assert_source_learns("gymnasium:grid_walks:GridWalk-v0", tmp_path)
