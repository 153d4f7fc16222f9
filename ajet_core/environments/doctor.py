"""What is installed, what is wrong with it, and the line that mends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distributions, metadata
from itertools import combinations
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name

from ajet_core.environments.environment import (
    PLUGINS,
    Environment,
    create_command,
    find_environments,
    python_version,
)
from ajet_core.environments.interpreters import why_not_here
from ajet_core.environments.recipes import Device, Recipe, recipe_of_plugin, recipes
from ajet_core.environments.requirements import by_name, compatible, unmet
from ajet_core.plugin import PluginInfo, PluginManager
from ajet_core.plugin.targets import CORE_DISTRIBUTION, install_hint
from ajet_core.settings import Settings

State = Literal["ok", "absent", "wrong"]
_SECONDS = 60
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing.

    :param state: ``ok``; ``absent``: it is not installed, which is no fault; ``wrong``: it is there and does not work.
    :param remedy: the command that mends it, "" if there is nothing to mend.
    """

    what: str
    version: str
    state: State
    detail: str
    remedy: str = ""


def examine(settings: Settings, plugins: PluginManager, device: Device) -> list[Finding]:
    """Look at Python, agentjet, every plugin and every environment.

    :param device: what environments would be made for.
    """
    environments = find_environments(settings)
    packages = by_name(distributions())
    findings = [_python(), _core(packages)]
    infos = [info for info in plugins.plugins(load=True) if info.distribution != CORE_DISTRIBUTION]
    findings += [_plugin(info, packages, environments, device) for info in infos]
    plugged = {info.distribution for info in infos}
    for recipe in recipes().values():
        findings.append(_environment(recipe, environments.get(recipe.name), plugged, device))
    return findings


def cannot_share(chosen: Iterable[Recipe], device: Device) -> list[str]:
    """Why backends cannot be installed in one environment, for each pair that cannot."""
    reasons = []
    for first, second in combinations(chosen, 2):
        one, other = first.build(device).needs, second.build(device).needs
        clashes = [
            f"{first.name} needs {package} {one[package]} and {second.name} {other[package]}"
            for package in sorted(set(one) & set(other))
            if not compatible(one[package], other[package])
        ]
        if clashes:
            reasons.append(
                f"agentjet[{first.name},{second.name}] cannot be installed together: {'; '.join(clashes)}. "
                f"Make an environment for each: ajet env create {first.name}, ajet env create {second.name}"
            )
    return reasons


def _python() -> Finding:
    version = python_version()
    try:
        wanted = (metadata(CORE_DISTRIBUTION).get_all("Requires-Python") or [""])[0]
    except PackageNotFoundError:
        wanted = ""
    if wanted and not SpecifierSet(wanted).contains(version):
        return Finding("Python", version, "wrong", f"agentjet needs Python {wanted}")
    return Finding("Python", version, "ok", sys.executable)


def _core(packages: dict[NormalizedName, Distribution]) -> Finding:
    name = canonicalize_name(CORE_DISTRIBUTION)
    if name not in packages:
        return Finding("agentjet", "", "wrong", "its metadata is not there", "pip install agentjet")
    version = packages[name].version
    if problems := unmet(name, packages, deep=True):
        lines = "; ".join(map(str, problems[:_SHOWN]))
        return Finding("agentjet", version, "wrong", lines, _pip_line(p.wanted for p in problems))
    extras, missing = _extras(packages)
    detail = f"with {', '.join(extras)}" if extras else "for clients"
    if missing:
        detail += f"; without {', '.join(missing)}"
    remedy = f"pip install '{CORE_DISTRIBUTION}[server]'" if "server" in missing else ""
    return Finding("agentjet", version, "ok", detail, remedy)


def _extras(packages: dict[NormalizedName, Distribution]) -> tuple[list[str], list[str]]:
    """The extras of agentjet that are complete here, and the others."""
    there: list[str] = []
    missing: list[str] = []
    for extra in sorted(metadata(CORE_DISTRIBUTION).get_all("Provides-Extra") or []):
        problems = unmet(CORE_DISTRIBUTION, packages, extras=[extra])
        (missing if problems else there).append(extra)
    return there, missing


def _plugin(
    info: PluginInfo,
    packages: dict[NormalizedName, Distribution],
    environments: dict[str, Environment],
    device: Device,
) -> Finding:
    what = f"plugin {info.name}"
    version = f"{info.distribution} {info.version}"
    if info.blocked:
        return Finding(what, version, "absent", info.problem)
    if info.problem:
        remedy = f"pip install --upgrade {info.distribution}"
        return Finding(what, version, "wrong", info.problem, remedy)
    why = why_not_here(info.distribution)
    if not why:
        return _plugin_here(info, what, version, packages)
    its = [e for e in environments.values() if info.distribution in e.record.plugins]
    if its:
        return Finding(what, version, "ok", f"runs in {its[0].directory}: {why}")
    return Finding(what, version, "wrong", why, _remedy(info.distribution, device))


def _plugin_here(
    info: PluginInfo, what: str, version: str, packages: dict[NormalizedName, Distribution]
) -> Finding:
    recipe = recipe_of_plugin(info.distribution)
    provides = recipe.cpu.provides if recipe is not None else {}
    if canonicalize_name(info.distribution) not in packages:
        return Finding(what, version, "ok", "runs here")
    problems = unmet(info.distribution, packages, provides=provides, deep=True)
    if problems:
        lines = "; ".join(map(str, problems[:_SHOWN]))
        return Finding(what, version, "wrong", lines, _pip_line(p.wanted for p in problems))
    return Finding(what, version, "ok", "runs here")


def _remedy(distribution: str, device: Device) -> str:
    recipe = recipe_of_plugin(distribution)
    if recipe is None:
        return install_hint(distribution)
    return create_command(recipe.name, device)


def _environment(
    recipe: Recipe, environment: Environment | None, plugged: set[str], device: Device
) -> Finding:
    what = f"environment {recipe.name}"
    if environment is None:
        here = recipe.plugin in plugged and not why_not_here(recipe.plugin)
        detail = "not needed: the plugin runs here" if here else "not made"
        remedy = "" if here else create_command(recipe.name, device)
        return Finding(what, "", "absent", detail, remedy)
    record = environment.record
    version = f"{record.device}, Python {record.python}"
    if problem := _broken(environment):
        return Finding(what, version, "wrong", problem, environment.create_command(force=True))
    if record.digest != recipe.digest(record.device):
        return Finding(
            what,
            version,
            "ok",
            f"{environment.directory}, by the recipe of agentjet {record.agentjet}; this one has a newer recipe",
            environment.create_command(force=True),
        )
    if not record.plugins:
        return Finding(
            what,
            version,
            "ok",
            f"{environment.directory}; {record.note}",
            environment.create_command(),
        )
    return Finding(what, version, "ok", str(environment.directory))


def _broken(environment: Environment) -> str:
    """What has changed since all of it could be imported."""
    command = [str(environment.python), "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"its Python does not run: {error}"
    if (version := done.stdout.strip()) != environment.record.python:
        return f"its Python was {environment.record.python} and is {version}"
    now = environment.installed()
    changed = [
        f"{name} was {before} and is {now.get(name, 'gone')}"
        for name, before in environment.record.packages.items()
        if now.get(name) != before
    ]
    if environment.record.plugins and not environment.plugin_directory.is_dir():
        changed.append(f"{PLUGINS} is gone")
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return f"changed since it was made: {', '.join(changed[:_SHOWN])}{more}" if changed else ""


def _pip_line(wanted: Iterable[str]) -> str:
    return "pip install " + " ".join(f"'{requirement}'" for requirement in dict.fromkeys(wanted))
