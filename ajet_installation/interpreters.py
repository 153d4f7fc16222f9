"""Which interpreter a component's worker runs in."""

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

from packaging.utils import NormalizedName

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
from ajet_installation.requirements import by_name, unmet
from ajet_installation.settings import Settings

_log = logging.getLogger("ajet.server")

PREFIX = "env:"
"""How the setting `workers.python` names an environment."""


def plugin_manager(settings: Settings) -> PluginManager:
    """The plugins that are installed here, and those that are installed in environments alone.

    Of an environment only the directory with its plugins is put on the path, last: its other packages stay unseen.
    Environments whose interpreter the setting `workers.python` names come first.
    """
    for environment in [*_named_by_path(settings), *find_environments(settings).values()]:
        if environment.plugin_directory.is_dir():
            # Packages that are installed in place are found by a file that plain entries of sys.path are not read for.
            site.addsitedir(str(environment.plugin_directory))
    return PluginManager(blocked=settings.plugins.blocked)


@functools.cache
def local_manager() -> PluginManager:
    """The plugins of this interpreter alone, without those that the settings block; made once.

    :raises ConfigError: the settings are wrong.
    """
    return PluginManager(blocked=Settings().plugins.blocked)


@functools.cache
def default_manager() -> PluginManager:
    """The plugin manager of this process, by the settings that it finds; made once.

    :raises ConfigError: the settings are wrong.
    """
    return plugin_manager(Settings())


def _named_by_path(settings: Settings) -> list[Environment]:
    pythons = [p for p in settings.workers.python.values() if not p.startswith(PREFIX)]
    found = (Environment.of_python(python) for python in dict.fromkeys(pythons))
    return [environment for environment in found if environment is not None]


def find_engine(plugins: PluginManager, name: str) -> EngineSpec:
    """The engine registered as `name`.

    :raises UnknownComponentError: there is none; the message says how to make the environment it comes with.
    """
    with _telling_the_environment(name):
        return plugins.engine(name)


def find_trainer(plugins: PluginManager, name: str) -> TrainerSpec:
    """The trainer registered as `name`; as `find_engine`."""
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
            f"{error.message}\n{name} runs in an environment of its own, which is made by: "
            f"{create_command(recipe.name, None)}",
            param=error.param,
        ) from error


def choose_interpreters(
    settings: Settings, plugins: PluginManager, engine: EngineSpec, trainer: TrainerSpec
) -> dict[str, Interpreter]:
    """The interpreter by kind, for the kinds that do not run in this one.

    The setting `workers.python` decides. Without it a component whose plugin lacks something here, and is
    complete in an environment, runs there.

    :raises ConfigError: the setting names an environment that there is not, or an environment has no Python any more.
    """
    environments = find_environments(settings)
    found: dict[str, Interpreter] = {}
    for kind, spec in (("engine", engine), ("trainer", trainer)):
        chosen = settings.workers.python
        python = chosen.get(f"{kind}:{spec.name}") or chosen.get(spec.name)
        if python is not None:
            found[kind] = _named(python, environments)
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
            found[kind] = _usable(environment)
    return found


def _named(python: str, environments: dict[str, Environment]) -> Interpreter:
    if not python.startswith(PREFIX):
        environment = Environment.of_python(python)
        return Interpreter(python) if environment is None else environment.interpreter
    name = python.removeprefix(PREFIX)
    if name not in environments:
        raise ConfigError(
            f"workers.python names the environment {name!r}, which is not there (there are: "
            f"{', '.join(sorted(environments)) or 'none'}): make it with: ajet env create {name}",
            param="workers.python",
        )
    return _usable(environments[name])


def _usable(environment: Environment) -> Interpreter:
    # A link to nowhere if the Python it was made with is gone.
    if not os.access(environment.python, os.X_OK):
        raise ConfigError(
            f"the environment {environment.directory} has no Python that can be run: make it anew with: "
            f"{environment.create_command(force=True)}",
            param="workers.environments",
        )
    return environment.interpreter


def _environment_of(
    plugins: PluginManager, spec: EngineSpec | TrainerSpec, environments: dict[str, Environment]
) -> tuple[Environment | None, str]:
    owner = plugins.owner(spec)
    its = [e for e in environments.values() if owner in e.record.plugins]
    why = why_not_here(owner) if owner is not None and its else ""
    return (its[0], why) if why else (None, "")


def is_installed_here(plugin: str) -> bool:
    """Whether the distribution of a plugin is installed in this interpreter, and not in an environment alone."""
    try:
        return _is_here(distribution(plugin))
    except PackageNotFoundError:
        return False


def installed_here() -> dict[NormalizedName, Distribution]:
    """What is installed in this interpreter, by name; what only environments have is left out."""
    return by_name(found for found in distributions() if _is_here(found))


def _is_here(found: Distribution) -> bool:
    return Path(str(found.locate_file(""))).name != PLUGINS


def why_not_here(plugin: str) -> str:
    """What keeps the components of a plugin's distribution from running in this interpreter; "" if nothing does."""
    if not is_installed_here(plugin):
        return f"{plugin} is not installed in this one"
    recipe = recipe_of_plugin(plugin)
    provides = recipe.cpu.provides if recipe is not None else {}
    problems = [str(one) for one in unmet(plugin, installed_here(), provides=provides)]
    # A plugin that only starts its backend's own server need not name it among its requirements.
    imports = recipe.cpu.imports if recipe is not None else ()
    for module in dict.fromkeys(name.partition(".")[0] for name in imports):
        if find_spec(module) is None:
            problems.append(f"{module} is not installed in this one")
    return "; ".join(problems)
