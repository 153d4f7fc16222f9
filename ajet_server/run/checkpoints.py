"""Checkpoints on disk: written aside, synced, renamed; verified before they are trusted."""

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
    """Where a run stood when a checkpoint was made; what comes after it is in the store.

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
    """What `checkpoint.json` holds."""

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
        """The steps that have a checkpoint, in order; whether one is intact is seen when it is read."""
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
        """Make the checkpoint of `step`; `save` fills the directory it is given.

        :param trusted_step: the newest checkpoint up to this step is kept too, and the one that will take its place.
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
            # What is half written would keep the room that the next one needs.
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
            if isinstance(error, OSError):
                raise StoreError(f"cannot write checkpoint {target}: {error}") from error
            raise
        return Checkpoint(step, target, position)

    def latest(self, run_id: str) -> Checkpoint | None:
        """The run's newest checkpoint whose files are all what they were; others are passed over."""
        for directory in sorted(self._root.glob("step-*"), reverse=True):
            if (found := self._verified(directory, run_id)) is not None:
                return found
        return None

    def at(self, step: int, run_id: str) -> Checkpoint | None:
        """The run's checkpoint of `step`, if its files are all what they were."""
        return self._verified(self._root / f"step-{step:06d}", run_id)

    def forget_after(self, step: int) -> None:
        """Delete the checkpoints of later steps."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self._root / f"step-{later:06d}")
        if self._root.is_dir():
            sync(self._root)

    def recover(self) -> None:
        """Clean up after a process that was killed while it wrote.

        Half-written checkpoints are deleted, and one that was about to be replaced is restored. No other process may be
        writing.
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
        # What is inside first: a name that survives a power cut must not lead to what did not.
        for path in [*files, aside / _MANIFEST]:
            sync(path)
        for path in sorted((p for p in aside.rglob("*") if p.is_dir()), reverse=True):
            sync(path)
        sync(aside)
        # A checkpoint of the same step is from a line of weights that was given up; it stays until the new one is
        # in its place.
        replaced = self._root / f"{_REPLACED}{target.name}"
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        aside.rename(target)
        sync(self._root)
        shutil.rmtree(replaced, ignore_errors=True)

    def _forget(self, trusted_step: int) -> None:
        """Delete the checkpoints that nothing is gone back to."""
        steps = self.steps()
        trusted = bisect_right(steps, trusted_step)
        # The one after the trusted one takes its place in time, even if newer ones come and go with every step.
        kept = {*steps[-_KEEP:], *steps[max(0, trusted - 1) : trusted + 1]}
        for step in set(steps) - kept:
            shutil.rmtree(self._root / f"step-{step:06d}", ignore_errors=True)

    def _verified(self, directory: Path, run_id: str) -> Checkpoint | None:
        try:
            manifest = _Manifest.model_validate(read_json(directory / _MANIFEST))
            files = {str(p.relative_to(directory)) for p in _files(directory)} - {_MANIFEST}
            # Names of the manifest lead nowhere else than to the files that are there.
            if manifest.run_id != run_id or files != manifest.files.keys():
                return None
            if directory.name != f"step-{manifest.step:06d}":
                return None
            if not all(_digest(directory / f) == d for f, d in manifest.files.items()):
                return None
        # Whatever it holds, an earlier checkpoint may be whole.
        except (OSError, ValueError):
            return None
        position = Position(run_id, manifest.batch_id, manifest.credit)
        return Checkpoint(manifest.step, directory, position)
