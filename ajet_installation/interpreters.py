"""The choice of interpreters for the workers of components."""

from __future__ import annotations

import functools
import logging
import os
import site
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from ajet_core.errors import ConfigError, UnknownComponentError
from ajet_core.plugin import EngineSpec, PluginManager, TrainerSpec
from ajet_installation.environment import (
    PLUGINS,
    Environment,
    Interpreter,
    create_command,
    find_environments,
)
from ajet_installation.recipes import recipe_of_component, recipe_of_plugin
from ajet_installation.requirements import Packages, by_name, unmet
from ajet_installation.settings import Settings

_log = logging.getLogger("ajet.server")

PREFIX = "env:"
"""Prefix by which the setting `workers.python` names environments."""


def plugin_manager(settings: Settings) -> PluginManager:
    """Create a manager of the plugins installed here or only in environments.

    Of an environment, only the directory with its plugins is added to the path, at the end: its
    other packages are not visible. Environments whose interpreters the setting `workers.python`
    names come first.
    """
    for environment in [*_named_by_path(settings), *find_environments(settings).values()]:
        if environment.plugin_directory.is_dir():
            # Editable installs use .pth files, which are not read for plain entries of sys.path.
            site.addsitedir(str(environment.plugin_directory))
    return PluginManager(blocked=settings.plugins.blocked)


@functools.cache
def local_manager() -> PluginManager:
    """Return a manager of this interpreter's plugins, without blocked ones; created once.

    :raises ConfigError: the settings are invalid.
    """
    return PluginManager(blocked=Settings().plugins.blocked)


@functools.cache
def default_manager() -> PluginManager:
    """Return the plugin manager of this process, according to the settings; created once.

    :raises ConfigError: the settings are invalid.
    """
    return plugin_manager(Settings())


def _named_by_path(settings: Settings) -> list[Environment]:
    pythons = [p for p in settings.workers.python.values() if not p.startswith(PREFIX)]
    environments = (Environment.of_python(python) for python in dict.fromkeys(pythons))
    return [environment for environment in environments if environment is not None]


def find_engine(plugins: PluginManager, name: str) -> EngineSpec:
    """Return the engine registered as `name`.

    :raises UnknownComponentError: there is none; the message says how to create its environment.
    """
    with _telling_the_environment(name):
        return plugins.engine(name)


def find_trainer(plugins: PluginManager, name: str) -> TrainerSpec:
    """Return the trainer registered as `name`, as `find_engine` does."""
    with _telling_the_environment(name):
        return plugins.trainer(name)


@contextmanager
def _telling_the_environment(name: str) -> Iterator[None]:
    try:
        yield
    except UnknownComponentError as error:
        recipe = recipe_of_component(name)
        if recipe is None:
            raise
        raise UnknownComponentError(
            f"{error.message}\n"
            f"{name} runs in its own environment; create it with: "
            f"{create_command(recipe.name, None)}",
            param=error.param,
        ) from error


def choose_interpreters(
    settings: Settings, plugins: PluginManager, **components: EngineSpec | TrainerSpec
) -> dict[str, Interpreter]:
    """Return interpreters by kind, for the kinds that do not run in this one.

    The setting `workers.python` decides. Without it, a component whose plugin lacks dependencies
    here runs in an environment where the plugin is complete.

    :param components: by kind.
    :raises ConfigError: the setting names an environment that does not exist, or an environment's
        Python is missing.
    """
    environments = find_environments(settings)
    interpreters: dict[str, Interpreter] = {}
    for kind, spec in components.items():
        chosen = settings.workers.python
        python = chosen.get(f"{kind}:{spec.name}") or chosen.get(spec.name)
        if python is not None:
            interpreters[kind] = _named(python, environments)
            continue
        environment, why = _environment_of(plugins, spec, environments)
        if environment is not None:
            _log.info(
                "the %s %r runs in the environment %s: %s",
                kind,
                spec.name,
                environment.directory,
                why,
            )
            interpreters[kind] = _usable(environment)
    return interpreters


def _named(python: str, environments: dict[str, Environment]) -> Interpreter:
    if not python.startswith(PREFIX):
        environment = Environment.of_python(python)
        return Interpreter(python) if environment is None else environment.interpreter
    name = python.removeprefix(PREFIX)
    if name not in environments:
        raise ConfigError(
            f"workers.python names the environment {name!r}, which does not exist "
            f"(available: {', '.join(sorted(environments)) or 'none'}): create it with: ajet "
            f"env create {name}",
            param="workers.python",
        )
    return _usable(environments[name])


def _usable(environment: Environment) -> Interpreter:
    # The interpreter is a broken link if the original Python was removed.
    if not os.access(environment.python, os.X_OK):
        raise ConfigError(
            f"the Python of the environment {environment.directory} does not run: recreate "
            f"the environment with: {environment.create_command(force=True)}",
            param="workers.environments",
        )
    return environment.interpreter


def _environment_of(
    plugins: PluginManager, spec: EngineSpec | TrainerSpec, environments: dict[str, Environment]
) -> tuple[Environment | None, str]:
    owner = plugins.owner(spec)
    having = [e for e in environments.values() if owner in e.record.plugins]
    why = why_not_here(owner) if owner is not None and having else ""
    return (having[0], why) if why else (None, "")


def is_installed_here(plugin: str) -> bool:
    """Return whether a plugin is installed in this interpreter, not only in an environment."""
    try:
        return _is_here(distribution(plugin))
    except PackageNotFoundError:
        return False


def installed_here() -> Packages:
    """Return the distributions of this interpreter by name, without those of environments."""
    return by_name(installed for installed in distributions() if _is_here(installed))


def _is_here(installed: Distribution) -> bool:
    return Path(str(installed.locate_file(""))).name != PLUGINS


def why_not_here(plugin: str, packages: Packages | None = None) -> str:
    """Return why a plugin's components cannot run in this interpreter; "" if they can.

    :param packages: `installed_here`, if it is known.
    """
    if not is_installed_here(plugin):
        return f"{plugin} is not installed in this environment"
    recipe = recipe_of_plugin(plugin)
    provides = recipe.cpu.provides if recipe is not None else {}
    packages = installed_here() if packages is None else packages
    problems = [str(one) for one in unmet(plugin, packages, provides=provides)]
    # A plugin that only starts its backend's server may not list the backend as a requirement. On a
    # CPU a backend may import more, but not every machine with a GPU can be told from one without.
    imports = recipe.gpu.imports if recipe is not None else ()
    for module in dict.fromkeys(name.partition(".")[0] for name in imports):
        if find_spec(module) is None:
            problems.append(f"{module} is not installed in this environment")
    return "; ".join(problems)
