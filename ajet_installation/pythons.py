"""Search for an interpreter to create an environment with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from ajet_core.errors import ConfigError
from ajet_installation.environment import python_version

_SECONDS = 20
_MINORS = (11, 12, 13)


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter and its version, as in ``3.11.7``."""

    path: str
    version: str


def find_python(wanted: str, given: str | None = None) -> Python:
    """Return an interpreter with a version in `wanted`: this one if it fits, else one on the path.

    :param given: only consider this one.
    :raises ConfigError: there is none.
    """
    looked_at = []
    for candidate in [given] if given is not None else _candidates():
        version = _version(candidate)
        if version is None:
            continue
        if SpecifierSet(wanted).contains(version):
            return Python(candidate, version)
        looked_at.append(f"{candidate} is {version}")
    why = "; ".join(looked_at) or ("it does not run" if given is not None else "none was found")
    raise ConfigError(
        f"Python {wanted} is required ({why}): choose an interpreter with --python",
        param="python",
    )


def _candidates() -> Iterator[str]:
    yield sys.executable
    yield from _on_path(f"python3.{minor}" for minor in _MINORS)


def _on_path(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if (path := shutil.which(name)) is not None:
            yield path


def _version(path: str) -> str | None:
    """Return the version, or None if it does not run, such as shims of version managers."""
    if path == sys.executable:
        return python_version()
    command = [path, "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
