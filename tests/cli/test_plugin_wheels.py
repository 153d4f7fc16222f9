"""From nothing to a plugin that passes its suite, in fresh environments, with wheels only."""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path

import pytest

from ajet_cli.plugin_projects.rendering import KINDS
from ajet_core.plugin.kinds import BY_NAME
from tests.cli.plugin_projects import AUTHOR, new_project, run

pytestmark = [pytest.mark.nightly, pytest.mark.processes, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
PIP = ("-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile")


def environment(directory: Path, wheels: Path, *requirements: str) -> Path:
    """Create an environment, and return its folder of programs."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    options = ("--only-binary", ":all:", "--find-links", wheels)
    run(directory, python, *PIP, *options, *requirements)
    return directory / "bin"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of agentjet."""
    wheels = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", wheels)
    run(wheels, *build, ROOT)
    return wheels


@pytest.fixture(scope="module")
def author(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an author of plugins."""
    directory = tmp_path_factory.mktemp("author")
    return environment(directory, wheels, "agentjet[plugin-dev]", "build")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_is_created_built_installed_and_tested(
    kind: str, author: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run(tmp_path, author / "ajet", "plugin", "new", kind, "own", *AUTHOR)
    project = tmp_path / "ajet-own"
    # The author's own build, with a sdist, in an isolated environment.
    run(project, author / "python", "-m", "build")
    (wheel,) = (project / "dist").glob("*.whl")

    programs = environment(tmp_path / "fresh", wheels, f"ajet-own[test] @ {wheel.as_uri()}")
    rows = json.loads(run(tmp_path, programs / "ajet", "plugins", "--json"))
    (row,) = [row for row in rows if row["name"] == "own"]
    assert row["problem"] == ""
    assert row["components"] == ([f"{kind}:own"] if kind in BY_NAME else [])
    assert " passed" in run(project, programs / "python", "-m", "pytest", "-p", "no:cacheprovider")
    run(project, programs / "ajet", "plugin", "check")


def test_the_code_is_typed_and_in_good_style(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    projects = [new_project(kind, f"my-{kind}") for kind in KINDS]
    for project in projects:
        run(project / "src", sys.executable, "-m", "mypy", "--strict", ".")
    style = ("--config", "line-length=100", "--no-cache")
    run(tmp_path, sys.executable, "-m", "ruff", "format", *style, "--check", *projects)
    lint = (sys.executable, "-m", "ruff", "check", *style)
    run(tmp_path, *lint, "--select", "E,F,UP,B,RUF", *projects)
    run(
        tmp_path,
        *lint,
        "--select",
        "D1",
        "--ignore",
        "D107",
        *(project / "src" for project in projects),
    )
