"""Projects that `ajet plugin new` creates, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from click.testing import CliRunner, Result

from ajet_cli.main import cli

AUTHOR = ("--author", "Ann O'Hara", "--email", "ann@example.org")


def ajet(*arguments: str | Path) -> Result:
    """Run the command ``ajet`` in this process."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def new_project(kind: str, name: str, *options: str) -> Path:
    """Create a project in the working directory."""
    done = ajet("plugin", "new", kind, name, *AUTHOR, *options)
    assert done.exit_code == 0, done.output
    return Path(f"ajet-{name}").absolute()


def run(directory: Path, *command: str | Path, **variables: str) -> str:
    """Run a command, and show its output if it fails."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def git(directory: Path, *arguments: str) -> str:
    """Run git with an author, without the settings of a user."""
    author = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    return run(directory, "git", *author, *arguments, GIT_CONFIG_GLOBAL=os.devnull)


def commit(directory: Path) -> None:
    """Commit everything, into a new repository if there is none."""
    if not (directory / ".git").is_dir():
        git(directory, "init", "--quiet")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", "A change")


def build_wheel(project: Path) -> Path:
    """Build a wheel with the hatchling of this environment, in ``dist``."""
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist")
    run(project, *build, project)
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, site: Path) -> None:
    """Install a pure wheel into a directory, as pip does with ``--target``."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
