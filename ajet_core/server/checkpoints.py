"""Checkpoints on disk: written aside, synced, renamed; verified before they are trusted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import StoreError

_MANIFEST = "checkpoint.json"
_KEEP = 2


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint of the state after `step` steps."""

    step: int
    directory: Path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class CheckpointFolder:
    """The checkpoints of one run, in ``<run_dir>/checkpoints/step-NNNNNN``."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / "checkpoints"

    async def write(self, step: int, save: Callable[[Path], Awaitable[None]]) -> Checkpoint:
        """Make the checkpoint of `step`; `save` fills the directory it is given.

        :raises StoreError: the disk is full or not writable; older checkpoints are untouched.
        """
        aside = self._root / f".writing-step-{step:06d}"
        target = self._root / f"step-{step:06d}"
        try:
            await asyncio.to_thread(self._clear, aside)
            await save(aside)
            await asyncio.to_thread(self._seal, aside, target, step)
        except OSError as error:
            raise StoreError(f"cannot write checkpoint {target}: {error}") from error
        return Checkpoint(step, target)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint whose files are all what they were; damaged ones are passed over."""
        for directory in sorted(self._root.glob("step-*"), reverse=True):
            if (step := self._verified_step(directory)) is not None:
                return Checkpoint(step, directory)
        return None

    def _clear(self, aside: Path) -> None:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)

    def _seal(self, aside: Path, target: Path, step: int) -> None:
        files = sorted(p for p in aside.rglob("*") if p.is_file())
        manifest = {
            "step": step,
            "files": {str(p.relative_to(aside)): _digest(p) for p in files},
        }
        (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in [*files, aside / _MANIFEST, aside]:
            _sync(path)
        # A checkpoint of the same step is from a line of weights that was given up.
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
        _sync(self._root)
        for old in sorted(self._root.glob("step-*"))[:-_KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def _verified_step(self, directory: Path) -> int | None:
        try:
            manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
            intact = all(_digest(directory / f) == d for f, d in manifest["files"].items())
            return int(manifest["step"]) if intact else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
