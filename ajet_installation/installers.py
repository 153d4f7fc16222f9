"""Package installers: pip, or uv, which does the same in a tenth of the time.

A configuration of pip (a company index, a directory of wheels, CPU builds of torch) is meant for
every installer. uv does not read it, so it is translated to uv's options here; if a setting has no
counterpart, pip is used.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from ajet_core.errors import BackendEnvironmentError, ConfigError

InstallerName = Literal["pip", "uv"]

_SECONDS = 60
# Settings about pip's output, or that are uv's default.
_IGNORED = frozenset(
    {
        *(
            "cache-dir",
            "config-file",
            "disable-pip-version-check",
            "no-cache-dir",
            "no-color",
            "no-input",
        ),
        *(
            "no-python-version-warning",
            "no-warn-script-location",
            "prefer-binary",
            "progress-bar",
            "quiet",
        ),
        *("require-virtualenv", "retries", "root-user-action", "use-pep517", "user", "verbose"),
    }
)
_URLS = frozenset({"index-url", "extra-index-url"})
_UV_INDEXES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
)
# Lists, separated by white space in pip, with the variable of uv and its separator.
_LISTS: Mapping[str, tuple[str, str]] = {
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
_VARIABLES: Mapping[str, str] = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
# Options that uv accepts repeatedly.
_OPTIONS: Mapping[str, str] = {"find-links": "--find-links", "constraint": "--constraint"}
_SWITCHES: Mapping[str, str] = {"no-index": "--no-index", "pre": "--prerelease=allow"}
_NO = frozenset({"", "0", "off", "false", "n", "no"})


@dataclass(frozen=True, slots=True)
class Installer:
    """A command that installs packages.

    :param command: arguments before the packages.
    :param target: the option for the interpreter's path; None if the command runs in that
        interpreter.
    :param variables: environment variables for the command.
    :param why: why it was chosen instead of the expected one.
    """

    name: InstallerName
    command: tuple[str, ...]
    target: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    def install(self, python: Path) -> list[str]:
        """Return the command for an interpreter, to which packages are appended."""
        if self.target is None:
            return [str(python), *self.command]
        return [*self.command, self.target, str(python)]

    def refresh(self, *distributions: str) -> list[str]:
        """Return options that ignore cached wheels of distributions.

        uv takes a wheel from its cache if one of the same name was in that directory before, also
        when the file was built again; pip reads the file.
        """
        if self.name == "pip":
            return []
        return [f"--refresh-package={name}" for name in distributions]


PIP = Installer(
    "pip",
    ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
)


def find_installer(name: InstallerName | None, python: Path) -> Installer:
    """Choose uv if it is installed and supports pip's configuration, else pip; or the named one.

    :param python: the environment's interpreter, which has pip.
    :raises ConfigError: uv is requested but not installed, or does not support pip's configuration.
    :raises BackendEnvironmentError: pip's configuration cannot be read.
    """
    if name == "pip":
        return PIP
    uv = _uv()
    if uv is None:
        if name == "uv":
            raise ConfigError("uv is not installed: install it (`pip install uv`), or use pip")
        return PIP
    configured = pip_configuration(python)
    if "extra-index-url" in configured and "index-url" not in configured:
        configured["index-url"] = _default_index(python)
    options, variables, left = uv_settings(configured, os.environ)
    if left:
        why = f"uv does not support these settings of pip: {', '.join(left)}"
        if name == "uv":
            raise ConfigError(f"{why}; use pip instead")
        return replace(PIP, why=why)
    return Installer("uv", (uv, "pip", "install", "--no-progress", *options), "--python", variables)


def pip_configuration(python: Path) -> dict[str, str]:
    """Return pip's settings from files and variables, by name without section.

    :raises BackendEnvironmentError: they cannot be read.
    """
    return configuration_from(_pip(python, "config", "list"))


def configuration_from(listed: str) -> dict[str, str]:
    """Parse ``pip config list``: variables take precedence over ``install``, then ``global``."""
    ranks = {":env:": 0, "install": 1, "global": 2}
    settings: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot) or section not in ranks:
            continue
        setting = (ranks[section], str(ast.literal_eval(value)))
        settings[name] = min(settings.get(name, setting), setting, key=lambda it: it[0])
    return {name: value for name, (_, value) in settings.items()}


def uv_settings(
    configured: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Translate pip's configuration to uv's options and variables, and list what cannot be.

    Settings that may contain a password, such as the URL of an index, become variables, because
    commands are logged. Settings of uv in ``environ`` take precedence; if they name indexes, pip's
    indexes are ignored.
    """
    indexed = any(environ.get(name) for name in _UV_INDEXES)
    options: list[str] = []
    variables: dict[str, str] = {}
    left: list[str] = []
    indexes = [configured.get("index-url", ""), *configured.get("extra-index-url", "").split()]
    if not indexed and any(indexes):
        # For a version, uv only looks at the first index that has it; pip looks at all. Extra
        # indexes may have fewer files.
        variables["UV_INDEX"], variables["UV_DEFAULT_INDEX"] = " ".join(indexes[:-1]), indexes[-1]
    for name, value in configured.items():
        if name in _IGNORED or name in _URLS or (indexed and name == "find-links"):
            continue
        if name in _OPTIONS and "@" not in value:
            # Variables would be ignored if a command has the same options.
            options += [part for one in value.split() for part in (_OPTIONS[name], one)]
            continue
        if name in _LISTS:
            variable, separator = _LISTS[name]
            variables[variable] = separator.join(value.split())
        elif name in _VARIABLES:
            variables[_VARIABLES[name]] = value
        elif value.lower() not in _NO:
            if name in _SWITCHES:
                options.append(_SWITCHES[name])
            else:
                left.append(name)
    if not indexed and (_URLS | {"find-links"}) & configured.keys():
        # pip takes the best version of all its indexes.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    unset = {name: value for name, value in variables.items() if value and not environ.get(name)}
    return options, unset, left


def _default_index(python: Path) -> str:
    """Return the index that pip uses without ``index-url``, which only its help states."""
    match = re.search(
        r"--index-url <url>.*?\(default\s+([^\s)]+)\)", _pip(python, "install", "--help"), re.DOTALL
    )
    if match is None:
        raise BackendEnvironmentError(f"the pip of {python} does not report its default index")
    return match[1]


def _pip(python: Path, *arguments: str) -> str:
    try:
        return subprocess.run(  # noqa: S603
            [str(python), "-m", "pip", "--disable-pip-version-check", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendEnvironmentError(
            f"{python} does not report the configuration of pip: {error}"
        ) from error


def _uv() -> str | None:
    """Return uv of this environment, else one on the path, else None."""
    try:
        return str(import_module("uv").find_uv_bin())
    except (ImportError, OSError):
        return shutil.which("uv")
