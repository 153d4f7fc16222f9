"""Creation of environments for backends."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from ajet_core import __version__
from ajet_core.errors import BackendEnvironmentError, ConfigError
from ajet_installation.environment import (
    PLUGINS,
    UNFINISHED,
    Environment,
    EnvironmentRecord,
    create_command,
    installed_in,
    site_packages,
)
from ajet_installation.installers import Installer, InstallerName, find_installer
from ajet_installation.place import in_place_of, locked, recover
from ajet_installation.pythons import Python
from ajet_installation.recipes import Build, Device, Recipe, Step
from ajet_installation.requirements import by_name, unmet
from ajet_installation.running import Runner
from ajet_installation.sources import Source

_GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class Order:
    """The description of an environment to create.

    :param directory: its directory.
    :param python: the interpreter to create it with.
    :param force: replace an existing environment.
    :param pinned: install exactly the versions of the recipe's constraints.
    :param installer: the installer to use; None chooses one.
    """

    recipe: Recipe
    device: Device
    directory: Path
    python: Python
    source: Source
    force: bool = False
    pinned: bool = True
    installer: InstallerName | None = None

    @property
    def build(self) -> Build:
        """The recipe's part for the device."""
        return self.recipe.build(self.device)


@dataclass(frozen=True, slots=True)
class ProgressCallbacks:
    """Callbacks for progress.

    :param step: called at the start of each step.
    :param line: called with each line of output of the current step.
    """

    step: Callable[[str], None]
    line: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Making:
    """The state of creating an environment.

    :param installer: chosen once the environment has pip, whose configuration it follows.
    """

    order: Order
    runner: Runner
    progress: ProgressCallbacks
    installer: Installer

    @classmethod
    def begin(cls, order: Order, runner: Runner, progress: ProgressCallbacks) -> _Making:
        """Choose the installer; the environment must have pip."""
        installer = find_installer(order.installer, _python(order))
        progress.step(
            f"{installer.name} installs" + (f": {installer.why}" if installer.why else "")
        )
        return cls(order, runner, progress, installer)

    def install(self, what: str, *arguments: str) -> None:
        """Install packages in the environment, in the recipe's versions."""
        order = self.order
        command = self.installer.install(_python(order))
        if order.pinned and order.build.constraints is not None:
            command += ["-c", str(order.recipe.directory / order.build.constraints)]
        self.runner.run(f"installing {what}", [*command, *arguments], self.installer.variables)


def create_environment(order: Order, progress: ProgressCallbacks) -> Environment:
    """Create an environment, or complete one that was created by the same recipe.

    An environment is finished when its record exists, which is written last. A failure leaves only
    a log next to the directory; an environment that was to be replaced is then unchanged.

    :raises BackendEnvironmentError: the environment could not be created; the message says what to
        do.
    :raises ConfigError: the directory has other content.
    """
    with locked(order.directory) as descriptor:
        log = order.directory.with_name(f"{order.directory.name}.log")
        runner = Runner(log, progress.line, descriptor)
        there = _what_is_there(order)
        if there is not None and not order.force:
            return _completed(there, order, runner, progress)
        log.unlink(missing_ok=True)
        _check_space(order)
        with in_place_of(order.directory):
            return _made(order, runner, progress)


def _what_is_there(order: Order) -> Environment | None:
    """Return the finished environment, after removing what other processes left unfinished.

    :raises ConfigError: the directory has other content.
    """
    directory, there = order.directory, recover(order.directory)
    if there is not None and not order.force:
        digest = order.recipe.digest(order.device)
        if (there.name, there.record.device) != (order.recipe.name, order.device):
            raise ConfigError(
                f"{directory} is already the environment {there.name} for "
                f"{there.record.device}: choose another --path, or replace the environment "
                "with --force"
            )
        if there.record.digest != digest:
            raise ConfigError(
                f"{directory} was created by agentjet {there.record.agentjet} from a different "
                "recipe: recreate it with "
                f"{create_command(order.recipe.name, order.device, directory, force=True)}"
            )
    if there is None and directory.exists() and any(directory.iterdir()):
        if not (directory / "pyvenv.cfg").is_file():
            raise ConfigError(
                f"{directory} is not empty and is not a Python environment: choose another --path"
            )
        if not order.force:
            raise ConfigError(
                f"{directory} is an environment that ajet did not create: choose another "
                "--path, or replace the environment with --force"
            )
    return there


def _check_space(order: Order) -> None:
    needed, free = order.build.gigabytes, shutil.disk_usage(order.directory.parent).free / _GIGABYTE
    if free < needed:
        raise BackendEnvironmentError(
            f"{order.recipe.name} for {order.device} needs about {needed:g} GB, but "
            f"{order.directory.parent} has only {free:.1f} GB free: free disk space, or "
            "choose a --path on another disk"
        )


def _made(order: Order, runner: Runner, progress: ProgressCallbacks) -> Environment:
    began = time.monotonic()
    build, directory = order.build, order.directory
    progress.step(f"new environment with Python {order.python.version}")
    runner.run("creating the environment", [order.python.path, "-m", "venv", str(directory)])
    making = _Making.begin(order, runner, progress)
    for number, step in enumerate(build.steps, 1):
        progress.step(f"step {number} of {len(build.steps)}: {_described(step)}")
        making.install(_described(step), *_arguments(order, step))
    plugins = _install_agentjet(making)
    _check(order, plugins, runner, progress)
    record = EnvironmentRecord(
        name=order.recipe.name,
        device=order.device,
        digest=order.recipe.digest(order.device),
        agentjet=__version__,
        python=order.python.version,
        packages=installed_in(directory),
        provides=build.provides,
        variables=build.variables,
        plugins=plugins,
        note=order.source.note,
        seconds=round(time.monotonic() - began, 1),
        bytes=_size(directory),
    )
    environment = Environment(directory.absolute(), record)
    environment.write()
    (directory / UNFINISHED).unlink()
    return environment


def _completed(
    there: Environment, order: Order, runner: Runner, progress: ProgressCallbacks
) -> Environment:
    """Add the plugin to an environment without it, if it is available now."""
    if there.record.plugins or not order.source.plugin:
        return there
    plugins = _install_agentjet(_Making.begin(order, runner, progress))
    _check(order, plugins, runner, progress)
    packages = installed_in(there.directory)
    record = replace(there.record, plugins=plugins, packages=packages, note="")
    environment = Environment(there.directory, record)
    environment.write()
    return environment


def _described(step: Step) -> str:
    parts = [*step.packages, *([step.requirements] if step.requirements else [])]
    shown = ", ".join(parts[:4])
    return shown if len(parts) <= 4 else f"{shown} and {len(parts) - 4} more"


def _python(order: Order) -> Path:
    return order.directory.absolute() / "bin" / "python"


def _arguments(order: Order, step: Step) -> list[str]:
    arguments = list(step.packages)
    if step.requirements is not None:
        arguments += ["-r", str(order.recipe.directory / step.requirements)]
    return [*arguments, "--no-deps"] if step.no_deps else arguments


def _install_agentjet(making: _Making) -> list[str]:
    """Install agentjet and the plugin, and return the distributions of plugins."""
    order = making.order
    source, name = order.source, order.recipe.plugin
    fresh = making.installer.refresh("agentjet", *source.distributions)
    if source.core:
        making.progress.step("agentjet")
        making.install("agentjet", *fresh, *source.core)
    if not source.plugin:
        return []
    making.progress.step(f"the plugin {name}")
    # The plugin's requirements may contain distributions that have other names here.
    making.install(name, "--no-deps", *fresh, *source.plugin)
    if missing := _unmet(making):
        making.install(f"the requirements of {name}", *missing)
    target = ["--upgrade", "--target", str(order.directory.absolute() / PLUGINS)]
    making.install(f"{name} for servers", "--no-deps", *target, *source.plugin)
    return list(source.distributions)


def _unmet(making: _Making) -> list[str]:
    order = making.order
    packages = by_name(distributions(path=[str(path) for path in site_packages(order.directory)]))
    wanted: dict[str, None] = {}
    for name in order.source.distributions:
        if canonicalize_name(name) not in packages:
            raise BackendEnvironmentError(
                f"{making.installer.name} reported success, but did not install {name}"
            )
        problems = unmet(name, packages, provides=order.build.provides)
        wanted.update(dict.fromkeys(problem.wanted for problem in problems))
    return [requirement for requirement in wanted if not requirement.startswith("agentjet")]


def _check(order: Order, plugins: list[str], runner: Runner, progress: ProgressCallbacks) -> None:
    progress.step("import check")
    python = str(_python(order))
    imports = (f"import {module}" for module in order.build.imports)
    statements = "\n".join([order.build.prepare, *imports])
    variables = order.build.variables
    runner.run(f"importing {', '.join(order.build.imports)}", [python, "-c", statements], variables)
    for plugin in plugins:
        command = [python, "-m", "ajet_installation.check_plugin", plugin]
        runner.run(f"importing the components of {plugin}", command, variables)


def _size(directory: Path) -> int:
    return sum(
        path.lstat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
