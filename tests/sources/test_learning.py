"""The demo's tiny model learns GridWalk, which is a program for rows here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ajet_testing.sources.learning import assert_source_learns, walk_names

pytestmark = pytest.mark.processes


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.timeout(1200)
def test_the_success_of_a_program_for_rows_rises(tmp_path: Path) -> None:
    """From about 0.2 to 0.9, by `ajet train`."""
    pytest.importorskip("ajet_backend_torch")
    shutil.copy(Path(__file__).parent / "grid_program.py", tmp_path)
    # The name is a field too, since rows that differ in their id alone are duplicates.
    lines = [json.dumps({"id": name, "walk": name}) for name in walk_names(seed=0)]
    (tmp_path / "walks.jsonl").write_text("\n".join(lines))
    assert_source_learns("walks.jsonl?program=grid_program:walk&judge=grid_program:judge", tmp_path)
