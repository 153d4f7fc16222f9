"""A clean working directory, and what environments are made from without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_installation.environment import PLUGINS, python_version
from ajet_installation.pythons import Python

from .making import wheel


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    # Environments put their plugins on it. Those of real ones may be there already: other tests in
    # this process find the checkout's own.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).name != PLUGINS])
    # There may be real ones beside the environment of the tests.
    monkeypatch.setattr("ajet_installation.environment.BESIDE", None)
    for name in [name for name in os.environ if name.upper().startswith(("AJET_", "PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.endswith("_hooks"):
            del sys.modules[name]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels, which is all that installers know of."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    wheel(directory, "tiny", "1.0", {"tiny.py": "import os\nMODE = os.environ['TINY_MODE']\n"})
    wheel(directory, "tiny", "2.0", {"tiny.py": "raise ImportError('too new')\n"})
    wheel(directory, "sick", "1.0", {"sick.py": "raise ImportError('no such driver')\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    # uv takes a wheel of a directory for the one that it saw at this path before, also when the
    # file is another: temporary directories of earlier runs had the same names.
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return directory


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "venv"
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    return directory


@pytest.fixture
def python(_template: Path, tmp_path: Path) -> Python:
    """An interpreter that makes real environments at once, by copying one."""
    script = tmp_path / "quick-python"
    script.write_text(f'#!/bin/sh\nexec cp -R "{_template}/." "$3"\n')
    script.chmod(0o755)
    return Python(str(script), python_version())
