"""The directory of an environment: exclusive access, and recovery after killed processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ajet_core.errors import BackendEnvironmentError
from ajet_core.files import lock_file
from ajet_installation.environment import UNFINISHED, Environment


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """Lock the directory, and yield the lock's open descriptor.

    :raises BackendEnvironmentError: another process has the lock, or the disk cannot be written.
    """
    import fcntl  # missing on Windows, where `ajet doctor` imports this module

    lock = directory.with_name(f".{directory.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(lock)
    except BlockingIOError as error:
        raise BackendEnvironmentError(
            f"process {error} is already creating {directory}: wait for it, or choose "
            "another --path"
        ) from error
    except OSError as error:
        raise BackendEnvironmentError(
            f"cannot create anything in {lock.parent}: {error}"
        ) from error
    try:
        yield descriptor
    except OSError as error:
        raise BackendEnvironmentError(f"cannot create {directory}: {error}") from error
    finally:
        # Closing is not enough: a child process that outlives this one would still hold the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def recover(directory: Path) -> Environment | None:
    """Clean up after killed processes, and return the finished environment if there is one."""
    before = _before(directory)
    there = Environment.read(directory)
    if there is not None:
        # The process that created it may have been killed before this.
        (directory / UNFINISHED).unlink(missing_ok=True)
        _remove(before, directory)
        return there
    unfinished = (directory / UNFINISHED).exists()
    if unfinished or not directory.exists() or not any(directory.iterdir()):
        _remove(directory, directory)
        if before.exists():
            before.rename(directory)
    return Environment.read(directory)


@contextmanager
def in_place_of(directory: Path) -> Iterator[None]:
    """Create an empty directory; if the block fails, restore the previous one."""
    before = _before(directory)
    if directory.exists():
        directory.rename(before)
    try:
        directory.mkdir()
        (directory / UNFINISHED).touch()
        yield
    except BaseException:
        _remove(directory, directory)
        with suppress(FileNotFoundError):
            before.rename(directory)
        raise
    _remove(before, directory)


def _before(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.before")


def _remove(directory: Path, place: Path) -> None:
    """Remove a directory of `place`; an interrupted removal leaves nothing under its name."""
    gone = place.with_name(f".{place.name}.removed")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
