"""Diagnosis of the installation, with commands that fix problems."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, metadata
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ajet_core import __version__
from ajet_core.plugin import PluginInfo, PluginManager
from ajet_core.plugin.targets import CORE_DISTRIBUTION, install_hint
from ajet_installation.conflicts import find_conflicts
from ajet_installation.environment import (
    PLUGINS,
    Environment,
    create_command,
    environment_roots,
    find_environments,
    is_unfinished,
    python_version,
    site_packages,
)
from ajet_installation.interpreters import (
    PREFIX,
    installed_here,
    is_installed_here,
    why_not_here,
)
from ajet_installation.mending import Mending, pip_line
from ajet_installation.recipes import Device, Recipe, recipe_of_plugin, recipes
from ajet_installation.requirements import Packages, by_name, unmet, version_of
from ajet_installation.settings import Settings

State = Literal["ok", "absent", "wrong"]
_SECONDS = 60
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check.

    :param state: ``ok``; ``absent``: not installed, which is not an error; ``wrong``: installed but
        not working.
    :param remedy: the command that fixes it, or installs what is absent; "" if there is none.
    """

    what: str
    version: str
    state: State
    detail: str
    remedy: str = ""


def examine(settings: Settings, plugins: PluginManager, device: Device) -> list[Diagnosis]:
    """Check Python, agentjet, every plugin and every environment.

    :param device: the device for which environments would be created.
    """
    environments = find_environments(settings)
    packages = installed_here()
    here = Environment.read(Path(sys.prefix))
    conflicts = find_conflicts(packages, here.record.packages if here is not None else {})
    mending = Mending(packages, conflicts, environments, device)
    findings = [_python(), _core(mending)]
    infos = [info for info in plugins.plugins(load=True) if info.distribution != CORE_DISTRIBUTION]
    of_plugins = {info.distribution: _plugin(info, mending, settings) for info in infos}
    findings += of_plugins.values()
    findings += [
        Diagnosis(
            f"conflict over {one.package}", one.found, "wrong", str(one), mending.of_conflict(one)
        )
        for one in conflicts
    ]
    for recipe in recipes().values():
        environment = environments.get(recipe.name)
        if environment is not None:
            findings.append(_environment(recipe, environment))
            continue
        half = [
            r / recipe.name for r in environment_roots(settings) if is_unfinished(r / recipe.name)
        ]
        plugin_info = of_plugins.get(recipe.plugin)
        findings.append(
            _no_environment(
                recipe, half, plugin_info is not None and plugin_info.state == "ok", device
            )
        )
    return findings


def _python() -> Diagnosis:
    version = python_version()
    try:
        wanted = (metadata(CORE_DISTRIBUTION).get_all("Requires-Python") or [""])[0]
    except PackageNotFoundError:
        wanted = ""
    if wanted and not SpecifierSet(wanted).contains(version):
        return Diagnosis("Python", version, "wrong", f"agentjet requires Python {wanted}")
    return Diagnosis("Python", version, "ok", sys.executable)


def _core(mending: Mending) -> Diagnosis:
    packages = mending.packages
    name = canonicalize_name(CORE_DISTRIBUTION)
    if name not in packages:
        return Diagnosis("agentjet", "", "wrong", "its metadata is missing", "pip install agentjet")
    version = packages[name].version
    if problems := unmet(name, packages, deep=True):
        lines = "; ".join(map(str, problems[:_SHOWN]))
        return Diagnosis("agentjet", version, "wrong", lines, mending.of_unmet(problems))
    extras, missing = _extras(packages)
    detail = f"with {', '.join(extras)}" if extras else "for clients"
    if missing:
        detail += f"; without {', '.join(missing)}"
    remedy = f"pip install '{CORE_DISTRIBUTION}[server]'" if "server" in missing else ""
    return Diagnosis("agentjet", version, "ok", detail, remedy)


def _extras(packages: Packages) -> tuple[list[str], list[str]]:
    """Return the extras of agentjet that are complete here, and the others."""
    there: list[str] = []
    missing: list[str] = []
    for extra in sorted(metadata(CORE_DISTRIBUTION).get_all("Provides-Extra") or []):
        problems = unmet(CORE_DISTRIBUTION, packages, extras=[extra])
        (missing if problems else there).append(extra)
    return there, missing


def _plugin(info: PluginInfo, mending: Mending, settings: Settings) -> Diagnosis:
    what = f"plugin {info.name}"
    version = f"{info.distribution} {info.version}"
    if info.blocked:
        return Diagnosis(what, version, "absent", info.problem)
    having = [e for e in mending.environments.values() if info.distribution in e.record.plugins]
    if info.problem:
        remedy = f"pip install --upgrade {info.distribution}"
        if having and not is_installed_here(info.distribution):
            remedy = having[0].create_command(force=True)
        return Diagnosis(what, version, "wrong", info.problem, remedy)
    return Diagnosis(what, version, *_where_it_runs(info, having, mending, settings))


def _where_it_runs(
    info: PluginInfo, having: list[Environment], mending: Mending, settings: Settings
) -> tuple[State, str, str]:
    """Return the state of a plugin that can be loaded, the detail and the remedy.

    :param its: environments that have the plugin.
    """
    if (setting := _python_setting(info, settings)) is not None:
        return _runs_with(*setting, mending)
    why = why_not_here(info.distribution, mending.packages)
    if why and having:
        return "ok", f"runs in {having[0].directory}: {why}", ""
    if (unmet_here := _unmet_here(info, mending)) is not None:
        return "wrong", *unmet_here
    if (servers := _servers_setting(info, settings)) is not None:
        return "ok", servers, ""
    if not why:
        return "ok", *_runs_here(info, mending)
    return _without_backend(info, why, mending.device)


def _runs_here(info: PluginInfo, mending: Mending) -> tuple[str, str]:
    """Return the detail of a plugin that runs here, and what installs the tested versions."""
    recipe = recipe_of_plugin(info.distribution)
    versions = {str(name): version_of(one) for name, one in mending.packages.items()}
    tested = recipe.newer_than_tested(versions) if recipe is not None else {}
    if not tested:
        return "runs here", ""
    newer = [
        f"{name} {versions[canonicalize_name(name)]} (tested with {version})"
        for name, version in tested.items()
    ]
    remedy = pip_line([f"{name}=={version}" for name, version in tested.items()])
    return f"runs here; newer than tested: {', '.join(newer)}", remedy


def _without_backend(info: PluginInfo, why: str, device: Device) -> tuple[State, str, str]:
    remedy = _remedy(info.distribution, device)
    engines = [name for kind, name in _components(info) if kind == "engine"]
    if not engines or not is_installed_here(info.distribution):
        return "wrong", why, remedy
    detail = (
        f"{why}, so this machine starts no model servers; with servers.{engines[0]}.urls it uses "
        "those that run elsewhere"
    )
    return "absent", detail, remedy


def _components(info: PluginInfo) -> list[tuple[str, str]]:
    """Return kind and name of each component of a plugin."""
    parts = (component.partition(":") for component in info.components)
    return [(kind, name) for kind, _, name in parts]


def _python_setting(info: PluginInfo, settings: Settings) -> tuple[str, str] | None:
    """Return the setting that names the interpreter of a plugin's components, and its value."""
    chosen = settings.workers.python
    for kind, name in _components(info):
        for component in (f"{kind}:{name}", name):
            if component in chosen:
                return f"workers.python.{component}", chosen[component]
    return None


def _runs_with(setting: str, python: str, mending: Mending) -> tuple[State, str, str]:
    name = python.removeprefix(PREFIX)
    if python == name:
        if shutil.which(python) is None:
            return "wrong", f"{setting} names {python}, which cannot be run", ""
        return "ok", f"runs with {python} ({setting})", ""
    if name not in mending.environments:
        remedy = create_command(name, mending.device)
        return "wrong", f"{setting} names {python}, which does not exist", remedy
    return "ok", f"runs in {mending.environments[name].directory} ({setting})", ""


def _servers_setting(info: PluginInfo, settings: Settings) -> str | None:
    """Return what the settings say about the model servers of a plugin's engines."""
    for kind, name in _components(info):
        said = settings.servers.get(name) if kind == "engine" else None
        if said is None:
            continue
        if said.urls:
            return f"its model servers run elsewhere: {', '.join(said.urls)} (servers.{name}.urls)"
        if said.python is not None:
            return f"its model servers run with {said.python} (servers.{name}.python)"
    return None


def _unmet_here(info: PluginInfo, mending: Mending) -> tuple[str, str] | None:
    """Return the unmet requirements of a plugin that is installed here, and what fixes them."""
    packages = mending.packages
    recipe = recipe_of_plugin(info.distribution)
    provides = recipe.cpu.provides if recipe is not None else {}
    if canonicalize_name(info.distribution) not in packages:
        return None
    problems = unmet(info.distribution, packages, provides=provides)
    if any(problem.found is None for problem in problems):
        remedy = _remedy(info.distribution, mending.device)
    elif problems := unmet(info.distribution, packages, provides=provides, deep=True):
        remedy = mending.of_unmet(problems)
    return ("; ".join(map(str, problems[:_SHOWN])), remedy) if problems else None


def _remedy(distribution: str, device: Device) -> str:
    recipe = recipe_of_plugin(distribution)
    if recipe is None:
        return install_hint(distribution)
    return create_command(recipe.name, device)


def _no_environment(recipe: Recipe, half: list[Path], works: bool, device: Device) -> Diagnosis:
    what = f"environment {recipe.name}"
    if half:
        detail = (
            f"{half[0]} is incomplete: it is still being created, or its creation was interrupted"
        )
        return Diagnosis(what, "", "wrong", detail, create_command(recipe.name, device, half[0]))
    detail = "not needed: the plugin runs without it" if works else "not made"
    remedy = "" if works else create_command(recipe.name, device)
    return Diagnosis(what, "", "absent", detail, remedy)


def _environment(recipe: Recipe, environment: Environment) -> Diagnosis:
    what = f"environment {recipe.name}"
    record = environment.record
    version = f"{record.device}, Python {record.python}"
    if problem := _broken(environment):
        return Diagnosis(what, version, "wrong", problem, environment.create_command(force=True))
    if record.digest != recipe.digest(record.device):
        return Diagnosis(
            what,
            version,
            "ok",
            f"{environment.directory}, created from the recipe of agentjet "
            f"{record.agentjet}; this version has a newer recipe",
            environment.create_command(force=True),
        )
    if not record.plugins:
        return Diagnosis(
            what,
            version,
            "ok",
            f"{environment.directory}; {record.note}",
            environment.create_command(),
        )
    return Diagnosis(what, version, "ok", str(environment.directory))


_LOOK = """
import json, platform
try:
    from ajet_core import __version__
except ImportError:
    __version__ = None
print(json.dumps([platform.python_version(), __version__]))
"""


def _broken(environment: Environment) -> str:
    """Return what has changed since everything could be imported, "" if nothing has."""
    record = environment.record
    try:
        done = subprocess.run(  # noqa: S603
            [str(environment.python), "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        python, agentjet = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"its Python does not run: {error}"
    if python != record.python:
        return f"its Python is {python}, but was {record.python} when it was created"
    if record.plugins and agentjet != __version__:
        has = "no agentjet that can be imported" if agentjet is None else f"agentjet {agentjet}"
        return f"it has {has}, but this is agentjet {__version__}"
    return _changed(environment)


def _changed(environment: Environment) -> str:
    record, now = environment.record, environment.installed()
    changed = [
        f"{name} was {before} and is {now.get(name, 'gone')}"
        for name, before in record.packages.items()
        if now.get(name) != before
    ]
    if record.plugins and not environment.plugin_directory.is_dir():
        changed.append(f"{PLUGINS} is missing")
    if not changed:
        return ""
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    packages = by_name(distributions(path=[str(p) for p in site_packages(environment.directory)]))
    conflicts = "".join(f"; {one}" for one in find_conflicts(packages, record.packages)[:_SHOWN])
    return f"changed since it was created: {', '.join(changed[:_SHOWN])}{more}{conflicts}"
