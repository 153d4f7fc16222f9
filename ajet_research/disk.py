"""The size of a study on its disk, and a reserve for the row that records a full disk."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ajet_core.files import write_whole

RESERVE = "reserve"
_BYTES = 2**16


def used_mebibytes(directory: Path, *, unlock: bool = False) -> float:
    """Return what the content of a directory takes on the disk, without what cannot be read.

    :param unlock: make directories readable that are not, so that nothing can be hidden in them.
    """
    total = 0
    folders = [directory]
    while folders:
        folder = folders.pop()
        # What was there a moment ago may be gone by now, and a server of files may not answer.
        with suppress(OSError):
            for entry in _entries(folder, unlock=unlock):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    total += max(status.st_size, 512 * getattr(status, "st_blocks", 0))
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry))
    return total / 2**20


def _entries(folder: Path, *, unlock: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        if not unlock:
            raise
    folder.chmod(0o700)
    with os.scandir(folder) as entries:
        return list(entries)


class DiskReserve:
    """A small file that is emptied when the disk is full, so that the ledger can record that.

    An empty file means that the full disk is not recorded yet, also for the next leader: a file can
    be emptied, or removed, without free space.

    :param directory: of the study.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE

    def fill(self) -> bool:
        """Write the file if there is space; return whether a full disk is not recorded yet."""
        unrecorded = self._path.exists() and not self._path.stat().st_size
        if not unrecorded:
            self._write()
        return unrecorded

    def release(self) -> None:
        """Empty the file, because the disk is full."""
        with suppress(OSError):
            self._path.open("wb").close()

    def recorded(self) -> None:
        """Write the file again, if there is space: the ledger has the full disk."""
        self._path.unlink(missing_ok=True)
        self._write()

    def remove(self) -> None:
        """Remove the file: the study is finished."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path.exists():
            return
        # A part of the file would look like all of it, and an empty one like a full disk. Random
        # bytes take blocks of the disk on file systems that compress, too.
        with suppress(OSError):
            write_whole(self._path, secrets.token_bytes(_BYTES))
