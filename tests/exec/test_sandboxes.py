"""The sandboxes pass the suite."""

from __future__ import annotations

import shutil
import subprocess
from typing import ClassVar

import pytest

from ajet_core.interfaces import ComponentSettings, Sandbox
from ajet_exec.boxes.bare import BareSandbox
from ajet_exec.boxes.bubblewrap import BubblewrapSandbox, BubblewrapSettings
from ajet_exec.boxes.containers import ContainerSettings, PodmanSandbox
from ajet_testing.suites.sandbox_suite import LimitName, SandboxSuite
from tests.exec.usable import no_bubblewrap

IMAGE = "localhost/ajet-test:1"
"""A Debian with Python, as ``debootstrap --include=python3-minimal`` makes it."""


def has_image() -> bool:
    if shutil.which("podman") is None:
        return False
    done = subprocess.run(["podman", "image", "exists", IMAGE], check=False, capture_output=True)
    return done.returncode == 0


@pytest.mark.processes
@pytest.mark.skipif(bool(no_bubblewrap()), reason=no_bubblewrap())
class TestBubblewrap(SandboxSuite):
    def make_sandbox(self) -> Sandbox:
        return BubblewrapSandbox(BubblewrapSettings())


@pytest.mark.processes
class TestNone(SandboxSuite):
    limits: ClassVar[frozenset[LimitName]] = frozenset({"memory", "file", "output"})

    def make_sandbox(self) -> Sandbox:
        return BareSandbox(ComponentSettings())


@pytest.mark.processes
@pytest.mark.nightly
class TestPodman(SandboxSuite):
    time_limit: ClassVar[float] = 600.0
    many: ClassVar[int] = 8
    kills: ClassVar[int] = 2

    def make_sandbox(self) -> Sandbox:
        if not has_image():
            pytest.skip(f"there is no podman with the image {IMAGE}")
        return PodmanSandbox(ContainerSettings(image=IMAGE))
