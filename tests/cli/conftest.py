"""A working directory without settings of the machine the tests run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # There may be real environments beside the one of the tests.
    monkeypatch.setattr("ajet_installation.environment.BESIDE", None)
    for name in [name for name in os.environ if name.upper().startswith("AJET_")]:
        monkeypatch.delenv(name)
