"""`scripts/release.py` and the changelog, in a small repository with this one's settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[1]
COPIED = (
    "CHANGELOG.md",
    "ajet_core/__init__.py",
    "changelog.d/README.md",
    "docs/openapi.json",
    "pyproject.toml",
    "scripts/check_wheels.py",
    "scripts/release.py",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("plugins/*/pyproject.toml")),
)
VERSION = "99.0.0"
ENTRY = "Something new,\nin two lines.\n"


def execute(repository: Path, *command: str) -> subprocess.CompletedProcess[str]:
    # Settings of git's user could ask for signatures.
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        command, cwd=repository, env=env, capture_output=True, text=True, check=False
    )


def git(repository: Path, *arguments: str) -> str:
    done = execute(repository, "git", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(repository: Path) -> None:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "A change")


def release(repository: Path, *options: str) -> subprocess.CompletedProcess[str]:
    # -B, so that what the script imports leaves nothing in the tree.
    return execute(repository, sys.executable, "-B", "scripts/release.py", *options)


def change(repository: Path, file: str, pattern: str, replacement: str) -> None:
    path = repository / file
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"))
    assert count == 1
    path.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository after the steps of RELEASING.md that come before the tag."""
    repository = tmp_path_factory.mktemp("prepared")
    for file in COPIED:
        (repository / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, repository / file)
    change(repository, "ajet_core/__init__.py", '__version__ = ".+"', f'__version__ = "{VERSION}"')
    change(repository, "docs/openapi.json", r'"version": "[\d.]+"', f'"version": "{VERSION}"')
    template = repository / "ajet_cli" / "plugin_projects" / "template"
    template.mkdir(parents=True)
    (template / "copier.yml").write_text("kind: engine\n", encoding="utf-8")
    assert release(repository, "--keep-template").returncode == 0
    (repository / "changelog.d" / "+some-words.added.md").write_text(ENTRY, encoding="utf-8")
    git(repository, "init", "--quiet")
    git(repository, "config", "user.name", "Someone")
    git(repository, "config", "user.email", "someone@localhost")
    commit(repository)
    built = execute(repository, sys.executable, "-m", "towncrier", "build", "--yes")
    assert built.returncode == 0, built.stdout + built.stderr
    commit(repository)
    return repository


@pytest.fixture
def repository(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared, tmp_path / "repository")


def test_the_fragments_of_this_tree_make_a_section() -> None:
    built = execute(ROOT, sys.executable, "-m", "towncrier", "build", "--draft")
    assert built.returncode == 0, built.stderr


def test_fragments_become_the_newest_section(repository: Path) -> None:
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    assert re.fullmatch(
        rf"## \[{VERSION}\] - \d{{4}}-\d\d-\d\d\n\n"
        r"### Added\n\n- Something new,\n  in two lines\.\n\s*",
        sections[1],
    )
    assert [path.name for path in (repository / "changelog.d").iterdir()] == ["README.md"]


def test_a_dry_run_shows_the_tag_and_sets_none(repository: Path) -> None:
    done = release(repository, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"git tag --annotate v{VERSION}" in done.stdout
    assert git(repository, "tag") == ""


def test_a_release_is_an_annotated_tag(repository: Path) -> None:
    done = release(repository)
    assert done.returncode == 0, done.stderr
    assert git(repository, "cat-file", "-t", f"v{VERSION}") == "tag\n"


def set_tag(repository: Path) -> None:
    git(repository, "tag", f"v{VERSION}")


def leave_a_fragment(repository: Path) -> None:
    (repository / "changelog.d" / "+late.fixed.md").write_text(ENTRY, encoding="utf-8")


def undate(repository: Path) -> None:
    change(repository, "CHANGELOG.md", rf"(\[{VERSION}\]) - .+", r"\1 - unreleased")


def empty_the_section(repository: Path) -> None:
    change(repository, "CHANGELOG.md", r"- Something new,\n", "")


def remove_the_section(repository: Path) -> None:
    change(repository, "CHANGELOG.md", rf"\[{VERSION}\]", "[98.0.0]")


def keep_the_old_document(repository: Path) -> None:
    change(repository, "docs/openapi.json", f'"version": "{VERSION}"', '"version": "98.0.0"')


def give_a_plugin_its_own_version(repository: Path) -> None:
    file = "plugins/backend_torch/pyproject.toml"
    change(repository, file, r"\.\./\.\./ajet_core/", "src/ajet_backend_torch/")


def change_the_template(repository: Path) -> None:
    file = "ajet_cli/plugin_projects/template/copier.yml"
    change(repository, file, "engine", "trainer")


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        (set_tag, f"the tag v{VERSION} already exists"),
        (leave_a_fragment, r"changelog\.d: \+late\.fixed\.md is not in CHANGELOG\.md"),
        (undate, f"{VERSION} has no date, but 'unreleased'"),
        (empty_the_section, f"{VERSION} has no entries"),
        (remove_the_section, f"there are 0 sections of {VERSION}"),
        (keep_the_old_document, r"docs/openapi\.json is of version 98\.0\.0: run make generate"),
        (change_the_template, rf"past/{re.escape(VERSION)}\.zip is not the template of plugins"),
        (give_a_plugin_its_own_version, r"plugins/backend_torch/pyproject\.toml: the version"),
    ],
)
def test_what_has_to_be_done_before_a_release_is_said(
    obstacle: Callable[[Path], None], message: str, repository: Path
) -> None:
    obstacle(repository)
    if git(repository, "status", "--porcelain"):
        commit(repository)
    done = release(repository)
    assert done.returncode == 1
    (problem,) = done.stderr.splitlines()[1:]
    assert re.match(f"- .*{message}", problem)


def test_a_tree_with_changes_is_not_released(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("", encoding="utf-8")
    done = release(repository)
    assert done.returncode == 1
    assert "- not committed: CHANGELOG.md" in done.stderr.splitlines()
