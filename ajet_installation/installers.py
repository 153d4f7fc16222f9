"""What installs packages in an environment: pip, or uv, which does the same in a tenth of the time.

Whoever has configured pip (an index of the house, a directory of wheels, builds of torch for a CPU) means every
installer. uv reads no configuration of pip's, so it is told it here; where something in it has no counterpart, it is
left to pip.
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
# About how pip talks, or what uv does anyhow.
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
# Lists, whose parts pip separates by white space, with the variable of uv and what separates its parts.
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
# What uv takes any number of.
_OPTIONS: Mapping[str, str] = {"find-links": "--find-links", "constraint": "--constraint"}
_SWITCHES: Mapping[str, str] = {"no-index": "--no-index", "pre": "--prerelease=allow"}
_NO = frozenset({"", "0", "off", "false", "n", "no"})


@dataclass(frozen=True, slots=True)
class Installer:
    """How packages are installed.

    :param command: installs what is appended to it, once it has been told for which interpreter.
    :param target: the option that tells it, before the interpreter's path; none if it runs in it.
    :param variables: set for it.
    :param why: why it was taken, where one would have expected another.
    """

    name: InstallerName
    command: tuple[str, ...]
    target: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    def install(self, python: Path) -> list[str]:
        """The command that installs for an interpreter what is appended to it."""
        if self.target is None:
            return [str(python), *self.command]
        return [*self.command, self.target, str(python)]


PIP = Installer(
    "pip",
    ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
)


def find_installer(name: InstallerName | None, python: Path) -> Installer:
    """Uv if it is here and can do as pip is configured, else pip; or the one that is named.

    :param python: the environment's interpreter, which has pip.
    :raises ConfigError: uv is wanted and is not here, or something in pip's configuration cannot be said to it.
    :raises BackendEnvironmentError: pip does not tell its configuration.
    """
    if name == "pip":
        return PIP
    uv = _uv()
    if uv is None:
        if name == "uv":
            raise ConfigError("there is no uv: install it (`pip install uv`), or leave it to pip")
        return PIP
    configured = pip_configuration(python)
    if "extra-index-url" in configured and "index-url" not in configured:
        configured["index-url"] = _default_index(python)
    options, variables, left = uv_settings(configured, os.environ)
    if left:
        why = f"uv cannot be told what pip is configured with: {', '.join(left)}"
        if name == "uv":
            raise ConfigError(f"{why}; leave it to pip")
        return replace(PIP, why=why)
    return Installer("uv", (uv, "pip", "install", "--no-progress", *options), "--python", variables)


def pip_configuration(python: Path) -> dict[str, str]:
    """Pip's settings, from its files and from variables, by name without its section.

    :raises BackendEnvironmentError: pip does not tell them.
    """
    return configuration_from(_pip(python, "config", "list"))


def configuration_from(listed: str) -> dict[str, str]:
    """What ``pip config list`` printed: the variable before the command's section before the global one."""
    ranks = {":env:": 0, "install": 1, "global": 2}
    found: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, equals, value = line.partition("=")
        section, dot, name = key.partition(".")
        if not (equals and dot) or section not in ranks:
            continue
        setting = (ranks[section], str(ast.literal_eval(value)))
        found[name] = min(found.get(name, setting), setting, key=lambda it: it[0])
    return {name: value for name, (_, value) in found.items()}


def uv_settings(
    configured: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[list[str], dict[str, str], list[str]]:
    """Options and variables that have uv do as pip is configured, and the names of what has no counterpart.

    What may hold a password, as an index's address may, is no option: commands are written to a log. What uv itself has been told in ``environ`` stands; if that is where packages are, pip's word for it is left aside.
    """
    told = any(environ.get(name) for name in _UV_INDEXES)
    options: list[str] = []
    variables: dict[str, str] = {}
    left: list[str] = []
    indexes = [configured.get("index-url", ""), *configured.get("extra-index-url", "").split()]
    if not told and any(indexes):
        # Of one version uv looks only at what the first index has; pip looks at all. The extra ones may have less.
        variables["UV_INDEX"], variables["UV_DEFAULT_INDEX"] = " ".join(indexes[:-1]), indexes[-1]
    for name, value in configured.items():
        if name in _IGNORED or name in _URLS or (told and name == "find-links"):
            continue
        if name in _OPTIONS and "@" not in value:
            # Variables would not count beside the same options of a command.
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
    if not told and (_URLS | {"find-links"}) & configured.keys():
        # pip takes the best version that any of its indexes has.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    unset = {name: value for name, value in variables.items() if value and not environ.get(name)}
    return options, unset, left


def _default_index(python: Path) -> str:
    """Where pip takes packages from if it is configured with no ``index-url``, which only its help says."""
    found = re.search(
        r"--index-url <url>.*?\(default\s+([^\s)]+)\)", _pip(python, "install", "--help"), re.DOTALL
    )
    if found is None:
        raise BackendEnvironmentError(f"the pip of {python} does not tell its default index")
    return found[1]


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
            f"{python} does not tell how pip is configured: {error}"
        ) from error


def _uv() -> str | None:
    """Uv of this environment before one on the path."""
    try:
        return str(import_module("uv").find_uv_bin())
    except (ImportError, OSError):
        return shutil.which("uv")
