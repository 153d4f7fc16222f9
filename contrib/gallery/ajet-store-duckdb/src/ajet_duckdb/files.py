"""The files of a database: who writes it, and how a tool reads it beside its writer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ajet_core.errors import StoreError


class WriterLock:
    """Makes a process the only writer of a database.

    DuckDB has a lock of its own, but it is a POSIX lock: the process loses it as soon as it closes
    any other descriptor of the same file, for example after copying it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        :raises StoreError: another store has it, in this process or in another.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StoreError(f"another server writes to the store ({self._path})") from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextlib.contextmanager
def checkpointing(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of checkpoints: the database is not copied meanwhile.

    :param wait: wait for those who are copying it.
    :return: whether the lock is held; always true with `wait`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def copy_database(source: Path, lock: Path, directory: Path) -> Path:
    """Copy a database that another process may be writing to, and return the copy.

    Between two checkpoints the writer only appends to the write-ahead log. So a copy of the
    database and then of the log has every commit that was acknowledged before. DuckDB ignores an
    incomplete commit at the end of the log.
    """
    with contextlib.ExitStack() as stack:
        # A database without the file of the lock has no writer: it was copied by hand.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        copy = directory / source.name
        shutil.copyfile(source, copy)
        for log in sorted(source.parent.glob(f"{source.name}.wal*")):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(log, directory / log.name)
    return copy


def sync_directory(directory: Path) -> None:
    """Make the names of new files in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
