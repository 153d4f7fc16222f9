"""Environments on disk, and how to find them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from pydantic import TypeAdapter

from ajet_core.files import read_json, write_whole
from ajet_installation.recipes import Device
from ajet_installation.settings import Settings

DIRECTORY = ".venvs"
RECORD = "agentjet-environment.json"
UNFINISHED = "agentjet-environment.unfinished"
PLUGINS = "agentjet-plugins"
BESIDE = Path(sys.prefix).parent if sys.prefix != sys.base_prefix else None
"""The directory that contains this process's virtual environment, if there is one."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter for a worker.

    :param variables: environment variables that it needs.
    :param programs: the directory of its programs.
    :param remedy: the command that recreates it, "" if ajet has not created it.
    """

    python: str
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: str | None = None
    remedy: str = ""

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return a process's environment: `inherited` overrides the recipe's variables.

        The directory of programs comes first in ``PATH``.
        """
        given = {**self.variables, **inherited}
        if self.programs is not None:
            path = inherited.get("PATH", os.defpath)
            given["PATH"] = f"{self.programs}{os.pathsep}{path}"
        return given


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """The record written when an environment is finished.

    :param digest: digest of its recipe.
    :param packages: versions of installed packages by name, without agentjet's distributions.
    :param provides: as in the recipe.
    :param plugins: distributions of agentjet's plugins in it.
    :param note: why there are no plugins.
    :param seconds: duration of its creation.
    """

    name: str
    device: Device
    digest: str
    agentjet: str
    python: str
    packages: dict[str, str]
    provides: dict[str, str]
    variables: dict[str, str]
    plugins: list[str]
    note: str
    seconds: float
    bytes: int


_record = TypeAdapter(EnvironmentRecord)


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment."""

    directory: Path
    record: EnvironmentRecord

    @classmethod
    def read(cls, directory: Path) -> Environment | None:
        """Read the environment in `directory`; None if there is none or it is unfinished."""
        try:
            record = _record.validate_python(read_json(directory / RECORD))
            return cls(directory.absolute(), record)
        except (OSError, ValueError):
            return None

    def write(self) -> None:
        """Write the record, which marks the environment as finished."""
        content = json.dumps(asdict(self.record), indent=1).encode()
        write_whole(self.directory / RECORD, content, mode=0o644)

    @property
    def name(self) -> str:
        """The name of its backend."""
        return self.record.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def plugin_directory(self) -> Path:
        """Its plugins without their dependencies, from which the server reads hooks."""
        return self.directory / PLUGINS

    @property
    def interpreter(self) -> Interpreter:
        """The interpreter with which workers run in it."""
        return Interpreter(
            str(self.python),
            self.record.variables,
            str(self.directory / "bin"),
            self.create_command(force=True),
        )

    @classmethod
    def of_python(cls, python: str) -> Environment | None:
        """Return the environment of an interpreter; None if ajet has not created it."""
        # Do not resolve links: the interpreter of an environment is a link.
        return cls.read(Path(python).absolute().parent.parent)

    def installed(self) -> dict[str, str]:
        """Return the current versions of installed packages by name."""
        return installed_in(self.directory)

    def create_command(self, *, force: bool = False) -> str:
        """Return the command that recreates it."""
        return create_command(self.name, self.record.device, self.directory, force=force)


def create_command(
    name: str, device: Device | None, directory: Path | None = None, *, force: bool = False
) -> str:
    """Return the command that creates an environment.

    :param device: None for the device of this machine.
    """
    words = ["ajet", "env", "create", name, *([f"--{device}"] if device is not None else [])]
    if directory is not None and directory != default_directory(name):
        words += ["--path", str(directory)]
    return shlex.join([*words, "--force"] if force else words)


def default_directory(name: str) -> Path:
    """Return the default directory of an environment."""
    return Path.cwd() / DIRECTORY / name


def installed_in(directory: Path) -> dict[str, str]:
    """Return versions by normalised name in a virtual environment, without agentjet's."""
    versions = {}
    for distribution in distributions(path=[str(path) for path in site_packages(directory)]):
        name = canonicalize_name(distribution.name or "unknown")
        if name not in {"pip", "agentjet"} and not name.startswith("agentjet-"):
            versions[str(name)] = distribution.version
    return dict(sorted(versions.items()))


def site_packages(directory: Path) -> list[Path]:
    """Return the site-packages directories of a virtual environment."""
    return sorted(directory.glob("lib/python3.*/site-packages"))


def environment_roots(settings: Settings) -> list[Path]:
    """Return the directories in which environments are searched, in order.

    If the setting `workers.environments` is set, this is the only one; otherwise ``.venvs`` of the
    working directory, of each directory above the run directory, and next to this process's virtual
    environment.
    """
    if settings.workers.environments is not None:
        return [settings.workers.environments.absolute()]
    return implied_roots(settings.server.run_dir)


def implied_roots(run_dir: Path) -> list[Path]:
    """Return the directories in which environments are searched without a setting."""
    places = [Path.cwd(), *run_dir.absolute().parents]
    if BESIDE is not None:
        places.append(BESIDE)
    return list(dict.fromkeys(place / DIRECTORY for place in places))


def find_environments(settings: Settings) -> dict[str, Environment]:
    """Return the existing environments by name; the first of those with the same name.

    Environments of other users are ignored, unless the setting `workers.environments` is set.
    """
    return environments_in(
        environment_roots(settings), trusted=settings.workers.environments is not None
    )


def environments_in(roots: Iterable[Path], *, trusted: bool = False) -> dict[str, Environment]:
    """Return the environments in `roots`, as `find_environments` does.

    :param trusted: also accept environments of other users.
    """
    environments: dict[str, Environment] = {}
    for root in roots:
        for environment in _read_all(root):
            # The owner of the parent directory can replace an environment.
            ours = trusted or (_is_ours(root) and _is_ours(environment.directory))
            if ours and environment.directory.name == environment.name:
                environments.setdefault(environment.name, environment)
    return environments


def _read_all(root: Path) -> Iterator[Environment]:
    try:
        directories = sorted(root.iterdir())
    except OSError:
        return
    for directory in directories:
        if (environment := Environment.read(directory)) is not None:
            yield environment


def _is_ours(directory: Path) -> bool:
    return directory.stat().st_uid in {getattr(os, "getuid", int)(), 0}  # always 0 on Windows


def is_unfinished(directory: Path) -> bool:
    """Return whether an environment is being created there, or its creation was killed."""
    return (directory / UNFINISHED).exists() and Environment.read(directory) is None


def python_version() -> str:
    """Return this interpreter's version in the form used by records."""
    return ".".join(map(str, sys.version_info[:3]))
