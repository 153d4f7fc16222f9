"""Files: written as a whole or not at all, locked by one process at a time, and read safely."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import tomllib
from pathlib import Path
from typing import Any

import pydantic_core

from ajet_core.errors import UnreadableFileError

MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Of a file that is read as a whole: larger than any configuration or index of weights."""


def read_bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a regular file.

    :param limit: bytes it may have.
    :raises FileNotFoundError: there is none.
    :raises UnreadableFileError: it cannot be read, is no regular file, or is too large.
    """
    try:
        # Without waiting: a pipe in the file's place might never have another end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableFileError(f"{path} is no regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, UnreadableFileError):
        raise
    # The path itself may be wrong, such as one with a null character.
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"{path} cannot be read: {error}") from error
    if len(content) > limit:
        raise UnreadableFileError(
            f"{path} is larger than {limit} bytes, so it does not hold what its name says"
        )
    return content


def read_json(path: Path, limit: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """The JSON object in a file, whatever the file may hold instead.

    Nesting is limited to 200 levels, text to valid UTF-8; of a name that comes twice the last value counts.

    :raises FileNotFoundError: there is no file.
    :raises UnreadableFileError: it cannot be read, or holds no JSON object.
    """
    content = read_bytes(path, limit)
    try:
        value = pydantic_core.from_json(content)
    except ValueError as error:
        raise UnreadableFileError(
            f"{path} holds no valid JSON ({error}): restore it from a backup or create it again"
        ) from error
    if not isinstance(value, dict):
        raise UnreadableFileError(
            f"{path} holds no JSON object: restore it from a backup or create it again"
        )
    return value


def read_toml(path: Path, limit: int = MAX_TEXT_BYTES) -> dict[str, Any]:
    """The table in a TOML file, whatever the file may hold instead.

    :raises FileNotFoundError: there is no file.
    :raises UnreadableFileError: it cannot be read, or holds no TOML.
    """
    content = read_bytes(path, limit)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableFileError(f"{path}: not valid TOML: {error}") from error


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
