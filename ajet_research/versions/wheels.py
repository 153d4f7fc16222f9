"""Where versions come from: wheels of a commit, of a tag, of the working tree, or of a directory.

A version is the text ``NAME@DIGEST``: where its wheels came from, and the hash of their content,
under which they are kept. So the same text is the same code, whatever the working tree becomes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_research.study import digest

KINDS = ("commit", "tag", "tree", "wheel")
_VERSION = re.compile(r"[a-z]+(:[\w.+/-]+)?@[0-9a-f]{12}")
_CORE = "agentjet-*.whl"
_SHORT = 12
_SECONDS = 600.0


def cache_directory() -> Path:
    """Return where wheels and environments are kept: below ``$XDG_CACHE_HOME`` or the default."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "agentjet" / "versions"


def check_version(text: str) -> str:
    """Return a version's text.

    :raises ConfigError: it is not ``NAME@DIGEST``.
    """
    if not _VERSION.fullmatch(text):
        raise ConfigError(
            f"{text!r} is not a version. Its text is NAME@DIGEST, as 'ajet research versions' "
            "writes it for a commit, a tag, the working tree or a directory of wheels."
        )
    return text


def wheels_of(version: str) -> list[Path]:
    """Return the wheels of a version: agentjet's, then those of its plugins.

    :raises ConfigError: they are not kept on this machine.
    """
    directory = cache_directory() / "wheels" / check_version(version).rpartition("@")[2]
    wheels = sorted(directory.glob("*.whl"), key=lambda wheel: (not wheel.match(_CORE), wheel.name))
    if not wheels:
        raise ConfigError(
            f"The wheels of {version} are not in {directory}. Run 'ajet research versions' there, "
            "which builds them."
        )
    return wheels


def core_wheel(version: str) -> Path:
    """Return agentjet's own wheel of a version.

    :raises ConfigError: it is not kept on this machine.
    """
    return wheels_of(version)[0]


def kept_version(source: str, repository: Path, *, plugins: Sequence[str] = ()) -> str:
    """Build the wheels of a version, keep them, and return its text.

    :param source: ``tree``, ``commit:REV``, ``tag:NAME``, ``wheel:DIRECTORY``, or a revision.
    :param repository: a directory of the repository of agentjet.
    :param plugins: folders of `plugins` to build too.
    :raises ConfigError: there is no such version, or it cannot be built.
    """
    kind, colon, rest = source.partition(":")
    if kind not in KINDS or (kind == "tree") == bool(colon):
        if colon or kind in KINDS:
            raise ConfigError(
                f"{source!r} is not a source of a version. Write 'tree', 'commit:REV', "
                "'tag:NAME' or 'wheel:DIRECTORY'."
            )
        kind, rest = "commit", source
    kept = cache_directory() / "wheels"
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept, prefix="building-") as folder:
        built = Path(folder) / "wheels"
        built.mkdir()
        if kind == "wheel":
            name = _copied(Path(rest), built)
        else:
            name = _built(kind, rest, repository, plugins, built)
        hashes = {
            wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()
            for wheel in built.glob("*.whl")
        }
        content = digest(hashes)[:_SHORT]
        if not (kept / content).exists():
            built.rename(kept / content)
    return check_version(f"{name}@{content}")


def commit_of(source: str, repository: Path) -> str:
    """Return the whole hash of a version's commit; with ``+`` for a tree that has changes.

    :return: "" for wheels.
    :raises ConfigError: there is no such commit.
    """
    kind, _, rest = source.partition(":")
    if kind == "wheel":
        return ""
    if kind == "tree":
        changed = _git(repository, "status", "--porcelain").strip()
        return _git(repository, "rev-parse", "HEAD").strip() + ("+" if changed else "")
    revision = f"refs/tags/{rest}" if kind == "tag" else rest or source
    return _git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()


def _copied(directory: Path, built: Path) -> str:
    wheels = sorted(directory.glob("agentjet*.whl"))
    if len(list(directory.glob(_CORE))) != 1:
        raise ConfigError(f"{directory} does not have exactly one wheel {_CORE}.")
    for wheel in wheels:
        shutil.copyfile(wheel, built / wheel.name)
    return f"wheel:{re.sub(r'[^A-Za-z0-9_.+-]', '-', directory.resolve().name)}"


def _built(kind: str, rest: str, repository: Path, plugins: Sequence[str], built: Path) -> str:
    root = Path(_git(repository, "rev-parse", "--show-toplevel").strip())
    if kind == "tree":
        _build_all(root, plugins, built)
        return "tree"
    commit = commit_of(f"{kind}:{rest}", repository)
    # A worktree would remain registered if this process was killed.
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "source.tar"
        _git(root, "archive", f"--output={archive}", commit)
        source = Path(folder) / "source"
        with tarfile.open(archive) as packed:
            packed.extractall(source, filter="data")
        _build_all(source, plugins, built)
    return f"tag:{rest}" if kind == "tag" else f"commit:{commit[:_SHORT]}"


def _build_all(root: Path, plugins: Sequence[str], built: Path) -> None:
    for project in (root, *(root / "plugins" / name for name in plugins)):
        if not (project / "pyproject.toml").is_file():
            raise ConfigError(f"There is no project in {project}.")
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode:
            last = " | ".join(done.stderr.strip().splitlines()[-3:])
            raise ConfigError(
                f"The wheel of {project} cannot be built: {last}. Wheels are built with "
                "hatchling: pip install hatchling"
            )
    if len(list(built.glob(_CORE))) != 1:
        raise ConfigError(f"{root} is not a source tree of agentjet.")


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(repository), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"Cannot ask git about {repository}: {error}") from error
    if done.returncode:
        what = done.stderr.strip() or f"git {' '.join(arguments)} fails"
        raise ConfigError(f"{repository} does not have such a version: {what}")
    return done.stdout
