"""An environment on disk, and how it is found again."""

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
"""The directory with the virtual environment that this process runs in, if it runs in one."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python to run a worker in.

    :param variables: environment variables it needs.
    :param programs: the directory of programs that belong to it.
    :param remedy: the command that makes it anew, "" if ajet has not made it.
    """

    python: str
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: str | None = None
    remedy: str = ""

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What a process in it gets: `inherited`, which wins over what the recipe says, its programs first."""
        given = {**self.variables, **inherited}
        if self.programs is not None:
            path = inherited.get("PATH", os.defpath)
            given["PATH"] = f"{self.programs}{os.pathsep}{path}"
        return given


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """What is written down of an environment when it is ready.

    :param digest: of the recipe it was made by.
    :param packages: version by name of all that was installed, agentjet's own distributions left out.
    :param provides: as in the recipe.
    :param plugins: distributions of agentjet's plugins in it.
    :param note: why there are none.
    :param seconds: that it took to make.
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
        """The environment in `directory`; None if there is none, or it was not finished."""
        try:
            record = _record.validate_python(read_json(directory / RECORD))
            return cls(directory.absolute(), record)
        except (OSError, ValueError):
            return None

    def write(self) -> None:
        """Declare it finished."""
        content = json.dumps(asdict(self.record), indent=1).encode()
        write_whole(self.directory / RECORD, content, mode=0o644)

    @property
    def name(self) -> str:
        """The backend it was made for."""
        return self.record.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def plugin_directory(self) -> Path:
        """Its plugins on their own, without what they need: the server reads their hooks from there."""
        return self.directory / PLUGINS

    @property
    def interpreter(self) -> Interpreter:
        """How to run a worker in it."""
        return Interpreter(
            str(self.python),
            self.record.variables,
            str(self.directory / "bin"),
            self.create_command(force=True),
        )

    @classmethod
    def of_python(cls, python: str) -> Environment | None:
        """The environment that an interpreter is of; None if ajet has not made it."""
        # Not resolved: the link in an environment is what makes it that environment's interpreter.
        return cls.read(Path(python).absolute().parent.parent)

    def installed(self) -> dict[str, str]:
        """Version by name of what is installed in it now."""
        return installed_in(self.directory)

    def create_command(self, *, force: bool = False) -> str:
        """The command that makes it anew."""
        return create_command(self.name, self.record.device, self.directory, force=force)


def create_command(
    name: str, device: Device | None, directory: Path | None = None, *, force: bool = False
) -> str:
    """The command that makes an environment.

    :param device: None for what the machine has.
    """
    words = ["ajet", "env", "create", name, *([f"--{device}"] if device is not None else [])]
    if directory is not None and directory != default_directory(name):
        words += ["--path", str(directory)]
    return shlex.join([*words, "--force"] if force else words)


def default_directory(name: str) -> Path:
    """Where an environment is made if nothing else is said."""
    return Path.cwd() / DIRECTORY / name


def installed_in(directory: Path) -> dict[str, str]:
    """Version by normalised name of the distributions in a virtual environment, those of agentjet left out."""
    found = {}
    for distribution in distributions(path=[str(path) for path in site_packages(directory)]):
        name = canonicalize_name(distribution.name or "unknown")
        if name not in {"pip", "agentjet"} and not name.startswith("agentjet-"):
            found[str(name)] = distribution.version
    return dict(sorted(found.items()))


def site_packages(directory: Path) -> list[Path]:
    """Where a virtual environment has its packages."""
    return sorted(directory.glob("lib/python3.*/site-packages"))


def environment_roots(settings: Settings) -> list[Path]:
    """The directories that environments are looked for in, in this order.

    The setting `workers.environments` alone if it is set; else ``.venvs`` of the working directory, of each directory
    above the run directory, and beside the virtual environment that this process runs in.
    """
    if settings.workers.environments is not None:
        return [settings.workers.environments.absolute()]
    return implied_roots(settings.server.run_dir)


def implied_roots(run_dir: Path) -> list[Path]:
    """Where environments are looked for if no setting says it."""
    places = [Path.cwd(), *run_dir.absolute().parents]
    if BESIDE is not None:
        places.append(BESIDE)
    return list(dict.fromkeys(place / DIRECTORY for place in places))


def find_environments(settings: Settings) -> dict[str, Environment]:
    """The environments there are, by name; of several with one name the nearest.

    What another user made is not run, unless the setting `workers.environments` names it.
    """
    return environments_in(
        environment_roots(settings), trusted=settings.workers.environments is not None
    )


def environments_in(roots: Iterable[Path], *, trusted: bool = False) -> dict[str, Environment]:
    """As `find_environments`.

    :param trusted: also those that another user made.
    """
    found: dict[str, Environment] = {}
    for root in roots:
        for environment in _read_all(root):
            # Who owns the directory above can put another one in its place.
            ours = trusted or (_is_ours(root) and _is_ours(environment.directory))
            if ours and environment.directory.name == environment.name:
                found.setdefault(environment.name, environment)
    return found


def _read_all(root: Path) -> Iterator[Environment]:
    try:
        directories = sorted(root.iterdir())
    except OSError:
        return
    for directory in directories:
        if (environment := Environment.read(directory)) is not None:
            yield environment


def _is_ours(directory: Path) -> bool:
    return directory.stat().st_uid in {os.getuid(), 0}


def is_unfinished(directory: Path) -> bool:
    """Whether the making of an environment goes on there, or was killed."""
    return (directory / UNFINISHED).exists() and Environment.read(directory) is None


def python_version() -> str:
    """Of this interpreter, as records have it."""
    return ".".join(map(str, sys.version_info[:3]))
