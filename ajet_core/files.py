"""Files: atomic writes, exclusive locks and safe reads."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Any

import pydantic_core

from ajet_core.errors import UnreadableFileError

__all__ = ["lock_file", "read_bytes", "read_json", "sync", "write_whole"]

_MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Limit for files that are read completely: larger than any configuration or weight index."""


def read_bytes(path: Path, limit: int = _MAX_TEXT_BYTES) -> bytes:
    """Read a regular file.

    :param limit: maximum size in bytes.
    :raises FileNotFoundError: there is no such file.
    :raises UnreadableFileError: the file cannot be read, is not a regular file, or is too large.
    """
    try:
        # Opening a pipe might wait forever for its other end. Windows has no such flag.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadableFileError(f"{path} is not a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, UnreadableFileError):
        raise
    # ValueError: the path is not valid, for example because it contains a null character.
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {path}: {error}") from error
    if len(content) > limit:
        raise UnreadableFileError(
            f"{path} is larger than {limit} bytes and cannot be the file that its name suggests"
        )
    return content


def read_json(path: Path, limit: int = _MAX_TEXT_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file.

    Nesting is limited to 200 levels, text to valid UTF-8; the last value of a repeated key counts.

    :raises FileNotFoundError: there is no such file.
    :raises UnreadableFileError: the file cannot be read or does not contain a JSON object.
    """
    content = read_bytes(path, limit)
    try:
        value = pydantic_core.from_json(content)
    except ValueError as error:
        raise UnreadableFileError(
            f"{path} is not valid JSON ({error}): restore it from a backup or create it again"
        ) from error
    if not isinstance(value, dict):
        raise UnreadableFileError(
            f"{path} does not contain a JSON object: restore it from a backup or create it again"
        )
    return value


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write a file atomically: readers and crashes leave either the old content or the new one.

    :param mode: permissions of the file, regardless of the umask.
    :raises OSError: the file could not be written; the old content is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            temporary.chmod(mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or the names in a directory, to disk; does nothing on Windows."""
    if os.name != "nt":  # which opens no directories, and flushes only what is open for writing
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock_file(path: Path) -> int:
    """Take the exclusive lock of a file without waiting, and return its open descriptor.

    The kernel releases it when the last process that holds the descriptor ends, even by a crash.
    Close the descriptor to release it before.

    :param path: the lock file. It is never removed, because that would race with the next process.
    :return: a descriptor that holds the lock while it is open.
    :raises BlockingIOError: a process holds the lock, or this one does. The message is only its id,
        or "unknown": raise an error that says what the lock protects, such as a `StoreError`.
    """
    import fcntl  # missing on Windows, where only clients run

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise BlockingIOError(holder) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor
