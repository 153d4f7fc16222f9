"""Environments of backends, created by `make backends`, for tests that need one.

They are in ``.venvs``, or in the directory of the setting ``AJET_WORKERS__ENVIRONMENTS``, by which
another version of a backend can be tested.
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
    """Return the interpreter of the environment `name`.

    Without the environment, the test is skipped; in CI it fails.
    """
    root = os.environ.get("AJET_WORKERS__ENVIRONMENTS")
    directory = (Path(root) if root else ROOT / DIRECTORY) / name
    if Environment.read(directory) is None:
        missing = (
            f"there is no environment {name} in {directory.parent}: run make backends, or ajet "
            f"env create {name}"
        )
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return str(directory / "bin" / "python")


def environment(root: Path, name: str, **record: Any) -> Environment:
    """Create an environment that consists of a record and a link to this interpreter."""
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
    created = Environment(root / name, EnvironmentRecord(**{**values, **record}))
    created.python.parent.mkdir(parents=True)
    created.python.symlink_to(sys.executable)
    created.write()
    return created
