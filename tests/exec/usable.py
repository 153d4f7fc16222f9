"""What this machine lets tests use: the default sandbox, containers, and small disks."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exec.container_image import IMAGE, make_image


@functools.cache
def no_bubblewrap() -> str:
    """Why it cannot be used; "" if it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian: apt-get install bubblewrap)"
    box = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    tried = subprocess.run([*box, "true"], check=False, capture_output=True, text=True)
    return f"this machine makes no sandboxes: {tried.stderr}" if tried.returncode else ""


@functools.cache
def no_containers(client: str) -> str:
    """Why a container program cannot be used; "" if it can, and has the image of the tests."""
    if shutil.which(client) is None:
        package = {"docker": "docker.io"}.get(client, client)
        return f"{client} is not installed (Debian: apt-get install {package})"
    answer = subprocess.run([client, "info"], check=False, capture_output=True, text=True)
    if answer.returncode:
        return f"{client} does not answer: {answer.stderr.strip()}"
    try:
        make_image(client)
    except (OSError, RuntimeError) as error:
        return f"the image for {client} cannot be made: {error}"
    limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
    box = [client, "run", "--rm", "--init", "--network=none", *limits, IMAGE, "/bin/true"]
    tried = subprocess.run(box, check=False, capture_output=True, text=True)
    return f"{client} starts no containers here: {tried.stderr}" if tried.returncode else ""


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
