"""Environments of backends, which `make backends` makes. Tests that need one ask for it here.

They are in ``.venvs``, or where the setting ``AJET_WORKERS__ENVIRONMENTS`` says: that is how another version of a
backend is tried.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet_installation.environment import DIRECTORY, Environment, EnvironmentRecord, python_version

ROOT = Path(__file__).resolve().parents[1]


def backend_python(name: str) -> str:
    """The interpreter of the environment `name`.

    Without one the test is skipped, and fails where everything has to be run.
    """
    root = os.environ.get("AJET_WORKERS__ENVIRONMENTS")
    directory = (Path(root) if root else ROOT / DIRECTORY) / name
    if Environment.read(directory) is None:
        missing = f"there is no environment {name} in {directory.parent}: make backends, or ajet env create {name}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return str(directory / "bin" / "python")


def environment(root: Path, name: str, **record: Any) -> Environment:
    """An environment that has a record, and this interpreter for its own."""
    values: dict[str, Any] = {
        "name": name,
        "device": "cpu",
        "digest": "0",
        "agentjet": "0.1.0",
        "python": python_version(),
        "packages": {},
        "provides": {},
        "variables": {},
        "plugins": [],
        "note": "",
        "seconds": 1.0,
        "bytes": 1,
    }
    made = Environment(root / name, EnvironmentRecord(**{**values, **record}))
    made.python.parent.mkdir(parents=True)
    made.python.symlink_to(sys.executable)
    made.write()
    return made
