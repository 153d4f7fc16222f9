"""Environments of backends, which `make backends` makes. Tests that need one ask for it here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ajet_core.environments.environment import Environment

ROOT = Path(__file__).parents[1]


def backend_python(name: str) -> str:
    """The interpreter of ``.venvs/NAME``. Without one the test is skipped, and fails where everything has to be run."""
    directory = ROOT / ".venvs" / name
    if Environment.read(directory) is None:
        missing = f"there is no environment {name} in {directory.parent}: make backends, or ajet env create {name}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return str(directory / "bin" / "python")
