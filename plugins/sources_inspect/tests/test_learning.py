"""The demo's tiny model learns GridWalk, which is an eval of Inspect here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ajet_testing.sources.learning import assert_source_learns, walk_names
from ajet_testing.sources.walk_models import STRICT_TOOLS


@pytest.mark.learns
@pytest.mark.timeout(1200)
def test_the_success_of_an_eval_rises(tmp_path: Path) -> None:
    """From about 0.2 to 0.9, by `ajet train`."""
    shutil.copy(Path(__file__).parent / "grid_task.py", tmp_path)
    count = len(walk_names(seed=0))
    source = f"inspect:grid_task.py?args.count={count}&reward=outcome.reward"
    # Inspect adds OpenAI's strict mode to the tools.
    assert_source_learns(source, tmp_path, STRICT_TOOLS)
