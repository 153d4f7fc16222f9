"""Checkpoints on disk: written atomically, synced, and verified before they are loaded."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from ajet_core.errors import StoreError
from ajet_core.files import read_json, sync

_MANIFEST = "checkpoint.json"
_KEEP = 2
_WRITING = ".writing-"
_REPLACED = ".replaced-"


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a run at a checkpoint; everything after it is in the store.

    :param batch_id: the last batch the weights were trained on.
    :param credit: what rounding owes the tags of the mixture, as `Shares.credit`.
    """

    run_id: str
    batch_id: str
    credit: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint of the state after `step` steps."""

    step: int
    directory: Path
    position: Position


class _Manifest(BaseModel):
    """The content of `checkpoint.json`."""

    model_config = ConfigDict(allow_inf_nan=False, strict=True)

    step: NonNegativeInt
    run_id: str
    batch_id: str
    files: dict[str, str]
    credit: dict[str, float] = {}


def _files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class CheckpointFolder:
    """The checkpoints of one run, in ``<run_dir>/checkpoints/step-NNNNNN``."""

    def __init__(self, run_dir: Path) -> None:
        self._root = run_dir / "checkpoints"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order; reading verifies its integrity."""
        numbers = [path.name.removeprefix("step-") for path in self._root.glob("step-*")]
        return sorted(int(number) for number in numbers if number.isdecimal())

    async def write(
        self,
        step: int,
        position: Position,
        save: Callable[[Path], Awaitable[None]],
        *,
        trusted_step: int | None = None,
    ) -> Checkpoint:
        """Write the checkpoint of `step`.

        :param save: fills the directory that it is given.
        :param trusted_step: the newest checkpoint up to this step is also kept, and the one that
            will replace it.
        :raises StoreError: the disk is full or not writable; older checkpoints are untouched.
        """
        aside = self._root / f"{_WRITING}step-{step:06d}"
        target = self._root / f"step-{step:06d}"
        try:
            await asyncio.to_thread(self._clear, aside)
            await save(aside)
            await asyncio.to_thread(self._seal, aside, target, step, position)
            await asyncio.to_thread(self._forget, step if trusted_step is None else trusted_step)
        except BaseException as error:
            # A partial checkpoint would take the space that the next one needs.
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
            if isinstance(error, OSError):
                raise StoreError(f"cannot write checkpoint {target}: {error}") from error
            raise
        return Checkpoint(step, target, position)

    def latest(self, run_id: str) -> Checkpoint | None:
        """Return the run's newest intact checkpoint, None if there is none."""
        for directory in sorted(self._root.glob("step-*"), reverse=True):
            if (checkpoint := self._verified(directory, run_id)) is not None:
                return checkpoint
        return None

    def at(self, step: int, run_id: str) -> Checkpoint | None:
        """Return the run's checkpoint of `step`, None unless it is intact."""
        return self._verified(self._root / f"step-{step:06d}", run_id)

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints of later steps."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self._root / f"step-{later:06d}")
        if self._root.is_dir():
            sync(self._root)

    def recover(self) -> None:
        """Clean up after a process that was killed while writing.

        Delete partial checkpoints, and restore one that was about to be replaced. No other process
        may be writing.
        """
        for old in self._root.glob(f"{_REPLACED}step-*"):
            target = self._root / old.name.removeprefix(_REPLACED)
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.rename(target)
        for aside in [*self._root.glob(f"{_WRITING}step-*"), *self._root.glob(f".{_WRITING}*")]:
            shutil.rmtree(aside, ignore_errors=True)

    def _clear(self, aside: Path) -> None:
        shutil.rmtree(aside, ignore_errors=True)
        if not self._root.is_dir():
            self._root.mkdir(parents=True)
            sync(self._root.parent)
        aside.mkdir()

    def _seal(self, aside: Path, target: Path, step: int, position: Position) -> None:
        files = _files(aside)
        manifest = {
            "step": step,
            **asdict(position),
            "files": {str(p.relative_to(aside)): _digest(p) for p in files},
        }
        (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        # Sync the contents first: after a power cut, no name may refer to missing data.
        for path in [*files, aside / _MANIFEST]:
            sync(path)
        for path in sorted((p for p in aside.rglob("*") if p.is_dir()), reverse=True):
            sync(path)
        sync(aside)
        # An existing checkpoint of the same step belongs to weights that were given up; keep it
        # until the new one is in place.
        replaced = self._root / f"{_REPLACED}{target.name}"
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        aside.rename(target)
        sync(self._root)
        shutil.rmtree(replaced, ignore_errors=True)

    def _forget(self, trusted_step: int) -> None:
        """Delete the checkpoints that the run will not go back to."""
        steps = self.steps()
        trusted = bisect_right(steps, trusted_step)
        # Keep the checkpoint after the trusted one: it replaces that in time, even if newer ones
        # come and go with every step.
        kept = {*steps[-_KEEP:], *steps[max(0, trusted - 1) : trusted + 1]}
        for step in set(steps) - kept:
            shutil.rmtree(self._root / f"step-{step:06d}", ignore_errors=True)

    def _verified(self, directory: Path, run_id: str) -> Checkpoint | None:
        try:
            manifest = _Manifest.model_validate(read_json(directory / _MANIFEST))
            files = {str(p.relative_to(directory)) for p in _files(directory)} - {_MANIFEST}
            # Only names of existing files are accepted, so the manifest cannot name other paths.
            if manifest.run_id != run_id or files != manifest.files.keys():
                return None
            if directory.name != f"step-{manifest.step:06d}":
                return None
            if not all(_digest(directory / f) == d for f, d in manifest.files.items()):
                return None
        # Whatever the error, an earlier checkpoint may be intact.
        except (OSError, ValueError):
            return None
        position = Position(run_id, manifest.batch_id, manifest.credit)
        return Checkpoint(manifest.step, directory, position)
