"""`docs/dependencies.md` gives a reason for every runtime dependency, and for nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ajet_installation.recipes import recipes

ROOT = Path(__file__).parents[1]
PROJECTS = (".", *(f"plugins/{path.name}" for path in sorted((ROOT / "plugins").iterdir())))


def declared(project: str) -> set[str]:
    table = tomllib.loads((ROOT / project / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = table.get("optional-dependencies", {}).values()
    lines = [*table["dependencies"], *(line for extra in extras for line in extra)]
    names = {Requirement(line).name for line in lines}
    return {name for name in names if not name.startswith("agentjet")}


def documented() -> set[str]:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE))


def needed() -> set[str]:
    return {name for project in PROJECTS for name in declared(project)}


def test_every_runtime_dependency_is_explained() -> None:
    assert documented() == needed()


def pinned() -> set[str]:
    """In the development environment, or in one that is made for a backend."""
    files = sorted((ROOT / "constraints").glob("*.txt"))
    names: set[str] = set()
    for known in recipes().values():
        files.append(known.directory / str(known.cpu.constraints))
        names |= known.cpu.provides.keys()
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return names | {line.partition("==")[0].lower() for line in lines if "==" in line}


@pytest.mark.parametrize("name", sorted(needed()))
def test_every_runtime_dependency_has_a_pinned_version(name: str) -> None:
    assert name in pinned()
