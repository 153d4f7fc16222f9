"""The demo's tiny model learns GridWalk, which is task directories of Harbor here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from grid_walks import write_walks
from rolling import source

from ajet_testing.sources.learning import assert_source_learns, walk_names


async def test_walks_are_verified(tmp_path: Path) -> None:
    """A solution gets 1, an agent that does nothing gets 0."""
    names = walk_names(seed=0)[:3]
    write_walks(tmp_path, names)
    async with source(tmp_path) as opened:
        tasks = opened.tasks("train")
        assert [task.id for task in tasks] == sorted(names)
        for task in tasks:
            solved, nothing = [await opened.probe(task, one) for one in ("reference", "nop")]
            assert solved is not None
            assert nothing is not None
            assert (solved.reward, nothing.reward) == (1.0, 0.0)


@pytest.mark.learns
@pytest.mark.timeout(1200)
def test_the_success_of_trials_rises(tmp_path: Path) -> None:
    """From about 0.2 to 0.9, by `ajet train`."""
    shutil.copy(Path(__file__).parent / "grid_agent.py", tmp_path)
    write_walks(tmp_path / "walks", walk_names(seed=0))
    assert_source_learns("harbor:walks?agent=grid_agent:GridAgent&max_episodes=16", tmp_path)
