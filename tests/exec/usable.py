"""What this machine lets tests use: the default sandbox, and small disks."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@functools.cache
def no_bubblewrap() -> str:
    """Why it cannot be used; "" if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian: apt-get install bubblewrap)"
    box = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    tried = subprocess.run([*box, "true"], check=False, capture_output=True, text=True)
    return f"this machine makes no sandboxes: {tried.stderr}" if tried.returncode else ""


@contextlib.contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """A file system of its own, as only root can mount it."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user or machine mounts no file systems")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
