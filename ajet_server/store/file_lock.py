"""A file lock, so that only one process at a time has a run's files open."""

from __future__ import annotations

import os
from pathlib import Path

from ajet_core.errors import StoreError
from ajet_core.files import lock_file


class FileLock:
    """An exclusive lock on a file. The kernel releases it when its process dies.

    :param path: the lock file; it is never removed, because that would race with the next process.
    :param what: what the lock protects, for error messages.
    """

    def __init__(self, path: Path, what: str = "store") -> None:
        self._path = path
        self._what = what
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Acquire the lock without waiting.

        :raises StoreError: another process holds it, or the file cannot be created.
        """
        try:
            descriptor = lock_file(self._path)
        except BlockingIOError as error:
            raise StoreError(
                f"the {self._what} in {self._path.parent} is open in another server (process "
                f"{error}): stop that server, or use another run_dir"
            ) from error
        except OSError as error:
            raise StoreError(f"cannot open the lock file {self._path}: {error}") from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
