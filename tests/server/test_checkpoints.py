"""Checkpoints are whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ajet_core.errors import StoreError, TrainerError
from ajet_server.store.checkpoints import CheckpointFolder, Position

HERE = Position("run", "batch-7")


async def save(directory: Path) -> None:
    (directory / "weights.bin").write_bytes(b"w" * 100)
    (directory / "optimizer").mkdir()
    (directory / "optimizer" / "state.bin").write_bytes(b"o" * 10)


async def test_the_newest_is_found_and_old_ones_are_pruned(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    assert folder.latest("run") is None
    for step in (5, 10, 15):
        await folder.write(step, HERE, save)
    latest = folder.latest("run")
    assert latest is not None
    assert latest.step == 15
    assert (latest.directory / "optimizer" / "state.bin").read_bytes() == b"o" * 10
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000010", "step-000015"]


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest"])
async def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    folder = CheckpointFolder(tmp_path)
    await folder.write(1, HERE, save)
    newest = (await folder.write(2, HERE, save)).directory
    if damage == "truncate":
        (newest / "weights.bin").write_bytes(b"w" * 99)
    elif damage == "remove":
        (newest / "optimizer" / "state.bin").unlink()
    else:
        (newest / "checkpoint.json").write_text('{"step": 2')
    latest = folder.latest("run")
    assert latest is not None
    assert latest.step == 1


async def test_a_failing_save_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    await folder.write(1, HERE, save)

    async def full(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(b"w")
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="No space left"):
        await folder.write(2, HERE, full)
    latest = folder.latest("run")
    assert latest is not None
    assert latest.step == 1
    await folder.write(2, HERE, save)
    retried = folder.latest("run")
    assert retried is not None
    assert retried.step == 2


async def test_a_checkpoint_of_the_same_step_replaces_the_old_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    await folder.write(1, HERE, save)

    async def other(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(b"new")

    await folder.write(1, HERE, other)
    latest = folder.latest("run")
    assert latest is not None
    assert (latest.directory / "weights.bin").read_bytes() == b"new"


async def test_a_checkpoint_says_where_its_run_stood_and_serves_no_other(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    written = await folder.write(4, HERE, save)
    manifest = json.loads((written.directory / "checkpoint.json").read_text())
    assert (manifest["step"], manifest["run_id"], manifest["batch_id"]) == (4, "run", "batch-7")
    assert folder.latest("another run") is None


async def test_a_name_is_on_disk_after_what_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut leaves is decided by the order of syncs and renames."""
    done: list[tuple[str, str]] = []
    real_sync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        done.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real_sync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        done.append(("rename", str(path)))
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    await CheckpointFolder(tmp_path).write(1, HERE, save)
    root = str(tmp_path / "checkpoints")
    aside = f"{root}/.writing-step-000001"
    order = [done.index(("sync", str(tmp_path)))]
    inside = [
        ("sync", f"{aside}/{name}")
        for name in ("weights.bin", "optimizer/state.bin", "checkpoint.json")
    ]
    order += [max(done.index(event) for event in inside)]
    order += [done.index(("sync", f"{aside}/optimizer")), done.index(("sync", aside))]
    order += [done.index(("rename", aside)), done.index(("sync", root))]
    assert order == sorted(order)


async def test_what_a_killed_process_left_is_tidied_up(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    root = tmp_path / "checkpoints"
    folder.recover()
    await folder.write(1, HERE, save)
    await folder.write(2, HERE, save)
    # Killed between the two renames of a replacement, and while it wrote another one.
    (root / "step-000002").rename(root / ".replaced-step-000002")
    for half in (".writing-step-000003", "..writing-step-000003.partial"):
        (root / half).mkdir()
    folder.recover()
    latest = folder.latest("run")
    assert latest is not None
    assert latest.step == 2
    assert sorted(p.name for p in root.iterdir()) == ["step-000001", "step-000002"]


async def test_a_failed_save_leaves_no_rubbish(tmp_path: Path) -> None:
    async def fails(directory: Path) -> None:
        (directory / "weights.bin").write_bytes(b"w")
        raise TrainerError("the disk is full")

    with pytest.raises(TrainerError):
        await CheckpointFolder(tmp_path).write(1, HERE, fails)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("every", [1, 2, 3, 7])
async def test_there_is_always_one_from_before_what_is_trusted(tmp_path: Path, every: int) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in range(every, 40, every):
        await folder.write(step, HERE, save, trusted_step=step - 5)
        kept = folder.steps()
        assert len(kept) <= 4
        # Younger than two times the distance and what lies between two checkpoints.
        assert step - 5 < 2 * every or any(step - 10 - 2 * every <= s <= step - 5 for s in kept)
