"""Files that are there as a whole or not at all, also after a crash; files that one process has at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Give `path` this content: readers see the old file or the new one, and after a crash one of them is there.

    :param mode: permissions of the file, whatever the umask.
    :raises OSError: it could not be written; what was there is untouched.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> int:
    """Take the exclusive lock of a file at once, and give its open descriptor.

    The kernel releases the lock when the last process that has the descriptor is gone, however it ends.

    :param path: the lock file; it stays behind, as removing it would race with the next process.
    :raises BlockingIOError: another process has the lock; the message is its id.
    :raises OSError: the file cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise BlockingIOError(holder) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor
