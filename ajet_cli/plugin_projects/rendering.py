"""Projects are rendered by copier; those of plugins are updated when their template has changed.

copier updates a project by rendering it twice, with the version of the template that it was made
from and with the new one, and applying the difference. It therefore needs a git repository with all
versions as tags, at an address that is the same on every machine. The wheel contains the current
template and, in ``past``, an archive of each released one. `write_bundle` makes a git bundle of
them in the user's cache, whose path relative to the home directory is `SOURCE` everywhere. So
``copier update`` works offline, and a project can be updated on a machine that never had the older
agentjet.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.version import Version

from ajet_core import __version__
from ajet_core.errors import ConfigError
from ajet_core.plugin.kinds import BY_NAME

HERE = Path(__file__).parent
TEMPLATE = HERE / "template"
AGENT_TEMPLATE = HERE / "template_agent"
PAST = HERE / "past"
SOURCE = "~/.cache/agentjet/plugin-template.bundle"
ANSWERS = ".copier-answers.yml"
KINDS: tuple[str, ...] = (*BY_NAME, "observer")

Release = Mapping[str, bytes]
"""The files of one version of the template, by path."""


def read_template(directory: Path) -> Release:
    """Return the files of a template in a directory, without those that pip compiled."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def read_archive(path: Path) -> Release:
    """Return the files of a released template."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in sorted(archive.namelist())}


def write_archive(path: Path, release: Release) -> None:
    """Write the files of a template; the same files give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in sorted(release.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


def find_releases() -> dict[str, Release]:
    """Return all versions of the template, by number, the current one last.

    In a release it equals the archive of its number (``scripts/release.py`` checks that). Changes
    to the version in preparation do not reach projects that an earlier state of it made.
    """
    archives = sorted(PAST.glob("*.zip"), key=lambda path: Version(path.stem))
    releases = {path.stem: read_archive(path) for path in archives if path.stem != __version__}
    return {**releases, __version__: read_template(TEMPLATE)}


def write_bundle(path: Path, releases: Mapping[str, Release]) -> None:
    """Write a git bundle with a tag for each version, replacing `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        bundle = Path(directory) / path.name
        _git(directory, "init", "--quiet", "--bare", "--initial-branch=main", "repository")
        repository = str(Path(directory) / "repository")
        _git(repository, "fast-import", "--quiet", data=b"".join(_history(releases)))
        _git(repository, "bundle", "create", "--quiet", str(bundle), "--all")
        bundle.replace(path)


def _history(releases: Mapping[str, Release]) -> Iterator[bytes]:
    """Yield the input of ``git fast-import``: a commit and a tag for each version."""
    for version, release in releases.items():
        yield b"commit refs/heads/main\ncommitter agentjet <agentjet> 0 +0000\n"
        yield _data(version.encode())
        yield b"deleteall\n"
        for name, data in release.items():
            yield f"M 100644 inline {name}\n".encode() + _data(data)
        yield f"reset refs/tags/{version}\nfrom refs/heads/main\n\n".encode()


def _data(data: bytes) -> bytes:
    return b"data %d\n%s\n" % (len(data), data)


def _git(directory: str, *arguments: str, data: bytes = b"") -> None:
    # A hook of git that calls us sets variables that name another repository.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", directory, *arguments]
    done = subprocess.run(command, input=data, env=variables, capture_output=True, check=False)  # noqa: S603
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"`{' '.join(command)}` failed: {message}")


def create_project(directory: Path, answers: Mapping[str, Any], *, ask: bool) -> None:
    """Render the template into a new directory.

    :param answers: answers to questions of ``copier.yml``.
    :param ask: ask for the other answers in the terminal; otherwise their defaults are used.
    :raises ConfigError: copier or git is missing, the directory exists, or an answer is invalid.
    """
    _refuse_existing(directory)
    _need_git()
    _need_copier()
    _render(
        SOURCE,
        directory,
        {"year": datetime.now(UTC).year, **answers},
        version=_refresh_bundle(),
        defaults=_author(),
        ask=ask,
    )


def create_agent_project(directory: Path, name: str) -> None:
    """Render the template of an agent's project into a new directory.

    The project is the user's from then on: later versions of the template do not change it.

    :raises ConfigError: copier is missing, or the directory exists.
    """
    _refuse_existing(directory)
    _need_copier()
    _render(str(AGENT_TEMPLATE), directory, {"name": name})


def _refuse_existing(directory: Path) -> None:
    if directory.exists():
        raise ConfigError(f"{directory} exists already: choose another --directory, or remove it")


def _render(
    source: str,
    directory: Path,
    answers: Mapping[str, Any],
    *,
    version: str | None = None,
    defaults: Mapping[str, str] | None = None,
    ask: bool = False,
) -> None:
    import copier
    from copier.errors import CopierError

    try:
        copier.run_copy(
            source,
            directory,
            data=dict(answers),
            user_defaults=dict(defaults or {}),
            vcs_ref=version,
            defaults=not ask,
            quiet=True,
        )
    except (CopierError, OSError, ValueError) as error:
        raise ConfigError(f"cannot create {directory}: {error}") from error


def update_project(directory: Path) -> list[str]:
    """Apply the changes of the template since a project was made from it, or updated.

    :return: paths of files with conflicts, which contain conflict markers.
    :raises ConfigError: copier or git is missing, the project was not made by this template, is not
        in a git repository without uncommitted changes, or was made by a later version.
    """
    _need_git()
    _need_copier()
    import copier
    import yaml
    from copier.errors import CopierError

    try:
        answers = yaml.safe_load((directory / ANSWERS).read_text(encoding="utf-8"))
        source, since = str(answers["_src_path"]), str(answers["_commit"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(
            f"cannot read {directory / ANSWERS}, which `ajet plugin new` writes: {error!r}"
        ) from error
    if source != SOURCE:
        raise ConfigError(
            f"{directory} was made from the template {source}: update it with `copier update`"
        )
    version = _refresh_bundle()
    if since not in find_releases():
        raise ConfigError(
            f"{directory} was made by version {since} of the template, which this agentjet "
            f"({__version__}) does not contain: upgrade agentjet"
        )
    try:
        copier.run_update(
            directory,
            vcs_ref=version,
            defaults=True,
            skip_answered=True,
            overwrite=True,
            quiet=True,
        )
    except (CopierError, ValueError) as error:
        raise ConfigError(f"cannot update {directory}: {error}") from error
    command = ["git", "diff", "--name-only", "--diff-filter=U", "--relative"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)  # noqa: S603
    return sorted(set(done.stdout.splitlines()))


def read_answers(path: Path) -> dict[str, Any]:
    """Read answers from a TOML file.

    :raises ConfigError: it cannot be read, or has a key that is not a question.
    """
    try:
        answers = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    questions = {"distribution", "description", "author", "email", "license", "python"}
    if unknown := sorted(answers.keys() - questions):
        raise ConfigError(
            f"{path}: {unknown[0]!r} is not a question; these are: {', '.join(sorted(questions))}"
        )
    return answers


def _need_git() -> None:
    if shutil.which("git") is None:
        raise ConfigError("git is missing, which brings changes of the template: install it")


def _need_copier() -> None:
    try:
        import copier  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            "copier is missing, which renders projects: pip install 'agentjet[plugin-dev]>=0.1'"
        ) from error


def _refresh_bundle() -> str:
    """Write the bundle to `SOURCE`, and return the current version of the template."""
    releases = find_releases()
    write_bundle(Path(SOURCE).expanduser(), releases)
    return list(releases)[-1]


def _author() -> dict[str, str]:
    """Return the author that git knows, otherwise the name of the user."""
    author = {}
    for question, key in (("author", "user.name"), ("email", "user.email")):
        done = subprocess.run(  # noqa: S603
            ["git", "config", "--get", key],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        author[question] = done.stdout.strip()
    return {**author, "author": author["author"] or getpass.getuser()}
