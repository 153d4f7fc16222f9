"""Every extra that can be typed is installed, or resolved, by a check."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# Its range is that of the environment's recipe; what pip makes of it for a GPU has not been looked at yet.
UNCHECKED = {"sglang-cuda"}


def test_every_extra_is_in_a_check_or_known_not_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    installed = importlib.import_module("check_extras").COMBINATIONS
    resolved = importlib.import_module("check_resolver").LINES
    checked = {extra for combination in installed for extra in combination.extras}
    checked |= {extra for line in resolved for extra in Requirement(line).extras}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert checked | UNCHECKED == set(project["optional-dependencies"])
    assert not checked & UNCHECKED
