"""Checkpoints are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet_core.errors import StoreError
from ajet_core.server.checkpoints import CheckpointFolder


async def save(directory: Path) -> None:
    (directory / "weights.bin").write_bytes(b"w" * 100)
    (directory / "optimizer").mkdir()
    (directory / "optimizer" / "state.bin").write_bytes(b"o" * 10)


async def test_the_newest_is_found_and_old_ones_are_pruned(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    assert folder.latest() is None
    for step in (5, 10, 15):
        await folder.write(step, save)
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 15
    assert (latest.directory / "optimizer" / "state.bin").read_bytes() == b"o" * 10
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000010", "step-000015"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest"])
async def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    folder = CheckpointFolder(tmp_path)
    await folder.write(1, save)
    newest = (await folder.write(2, save)).directory
    if damage == "truncate":
        (newest / "weights.bin").write_bytes(b"w" * 99)
    elif damage == "remove":
        (newest / "optimizer" / "state.bin").unlink()
    else:
        (newest / "checkpoint.json").write_text('{"step": 2')
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 1


async def test_a_failing_save_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    await folder.write(1, save)

    async def full(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(b"w")
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="No space left"):
        await folder.write(2, full)
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 1
    await folder.write(2, save)
    retried = folder.latest()
    assert retried is not None
    assert retried.step == 2


async def test_a_checkpoint_of_the_same_step_replaces_the_old_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    await folder.write(1, save)

    async def other(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(b"new")

    await folder.write(1, other)
    latest = folder.latest()
    assert latest is not None
    assert (latest.directory / "weights.bin").read_bytes() == b"new"
