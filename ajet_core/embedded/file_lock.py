"""One process at a time may have a run's files open."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ajet_core.errors import StoreError


class FileLock:
    """An exclusive lock on a file. The kernel releases it when its process dies, however it dies.

    :param path: the lock file; it stays behind, as removing it would race with the next process.
    :param what: what it protects, for errors.
    """

    def __init__(self, path: Path, what: str = "store") -> None:
        self._path = path
        self._what = what
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock at once.

        :raises StoreError: another process has it, or the file cannot be made.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open the lock file {self._path}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StoreError(
                f"the {self._what} in {self._path.parent} is open in another server (process {holder}): stop "
                "that server, or use another run_dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; without effect if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
