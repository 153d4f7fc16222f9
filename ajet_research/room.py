"""What a study takes on its disk, and room kept for the row which says that the disk was full."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ajet_core.files import write_whole

RESERVE = "reserve"
_BYTES = 2**16


def used_mebibytes(directory: Path) -> float:
    """Return what the content of a directory takes on the disk."""
    total = 0
    folders = [directory]
    while folders:
        # What was there a moment ago may be gone by now.
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    total += max(status.st_size, 512 * getattr(status, "st_blocks", 0))
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry))
    return total / 2**20


class KeptRoom:
    """A file that gives its room away when the disk is full.

    It is empty while a full disk waits to be written down, also for the next leader: a file can be
    made empty, or removed, without any room.

    :param directory: of the study.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / RESERVE

    def keep(self) -> bool:
        """Keep room, if there is any; return whether a full disk waits to be written down."""
        waits = self._path.exists() and not self._path.stat().st_size
        if not waits:
            self._fill()
        return waits

    def give(self) -> None:
        """Give the room away, as the disk is full."""
        with suppress(OSError):
            self._path.open("wb").close()

    def written_down(self) -> None:
        """Take note that the ledger has the full disk; keep room again if there is any."""
        self._path.unlink(missing_ok=True)
        self._fill()

    def forget(self) -> None:
        """Remove the file: the study is finished."""
        self._path.unlink(missing_ok=True)

    def _fill(self) -> None:
        if self._path.exists():
            return
        # A part of the room would look like all of it, and an empty file like a full disk. Blocks
        # of the disk are taken on file systems that compress, too.
        with suppress(OSError):
            write_whole(self._path, secrets.token_bytes(_BYTES))
