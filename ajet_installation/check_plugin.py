"""Check a plugin: ``python -m ajet_installation.check_plugin DISTRIBUTION``, and `check_plugin`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ajet_core.errors import AjetError, ConfigError, PluginLoadError
from ajet_core.interfaces import AgentAdapter, ComponentSettings, WorkerContext
from ajet_core.plugin import (
    AgentSpec,
    CommandSpec,
    ComponentSpec,
    EngineSpec,
    PluginInfo,
    PluginManager,
    TrainerSpec,
)
from ajet_core.plugin.kinds import kind_of
from ajet_core.protocol import AlgorithmConfig
from ajet_installation.environment import Interpreter
from ajet_installation.interpreters import choose_interpreters
from ajet_installation.settings import Settings

HEAVY = frozenset({"torch", "transformers", "tensorflow", "jax", "numpy", "pandas", "pyarrow"}) | {
    *("scipy", "matplotlib", "datasets", "vllm", "sglang", "trl", "verl", "ray", "tokenizers")
}
"""Packages that take long to import; hooks of plugins and help of commands do without them."""

State = Literal["created", "imported", "wrong"]
_SECONDS = 600
_LIGHT = frozenset({"agent", "world", "reader", "judge", "sandbox", "source"})
"""Kinds whose components are created with their settings alone."""


@dataclass(frozen=True, slots=True)
class ComponentCheck:
    """The result of checking one component.

    :param component: "kind:name".
    :param state: ``created``: an object of it was created; ``imported``: its class, which needs
        resources to be created, or settings; ``wrong``: it cannot be used.
    :param detail: what is wrong, or why it was not created.
    """

    component: str
    state: State
    detail: str = ""


def check_plugin(
    plugins: PluginManager, info: PluginInfo, settings: Settings
) -> list[ComponentCheck]:
    """Import the components of a plugin and their settings, and create those that are light.

    A component that runs in another interpreter is imported there. An object is created if its
    kind needs no model, database, file or service, and with the settings of the user.

    :param info: a loaded plugin without a problem.
    """
    elsewhere: dict[str, str] = {}
    checks = []
    for component in info.components:
        spec = plugins.component(*_split(component))
        try:
            interpreter = _interpreter(plugins, spec, settings)
            if interpreter is None:
                created, detail = _check(plugins, spec, settings)
            else:
                python = interpreter.python
                if python not in elsewhere:
                    elsewhere[python] = _problem_in(interpreter, info.distribution)
                if elsewhere[python]:
                    raise PluginLoadError(elsewhere[python])
                created, detail = False, f"it runs in {python}"
        except AjetError as error:
            checks.append(ComponentCheck(component, "wrong", error.message))
        else:
            checks.append(ComponentCheck(component, "created" if created else "imported", detail))
    return checks


def can_be_imported(module: str) -> bool:
    """Return whether a module is imported, or could be found."""
    if module in sys.modules:
        return True
    try:
        return find_spec(module) is not None
    # `find_spec` imports the packages around a module, which may raise anything.
    except Exception:  # noqa: BLE001 - it cannot be imported
        return False


def _split(component: str) -> tuple[Any, str]:
    kind, _, name = component.partition(":")
    return kind, name


def _interpreter(
    plugins: PluginManager, spec: ComponentSpec, settings: Settings
) -> Interpreter | None:
    """Return the interpreter of a component's worker, None if it is this one.

    :raises ConfigError: the settings name an environment that does not exist.
    """
    if not isinstance(spec, EngineSpec | TrainerSpec):
        return None
    kind = kind_of(spec).name
    return choose_interpreters(settings, plugins, **{kind: spec}).get(kind)


def _check(
    plugins: PluginManager, spec: ComponentSpec, settings: Settings | None
) -> tuple[bool, str]:
    """Return whether an object was created, and if not, why.

    :raises AjetError: the component cannot be used.
    """
    kind = kind_of(spec).name
    if isinstance(spec, CommandSpec):
        plugins.load_command(spec)
        return True, ""
    target: Any = plugins.load_target(spec)
    if inspect.isabstract(target):
        missing = ", ".join(sorted(target.__abstractmethods__))
        raise PluginLoadError(f"{kind} {spec.name!r}: {spec.target} does not define {missing}")
    if isinstance(spec, AgentSpec):
        # An author may check a plugin where its framework is not installed.
        _check_adapter(spec, target, needs_framework=settings is not None)
    values = _configured(settings, spec)
    try:
        checked = plugins.validate_settings(spec, values or {})
    except ConfigError as error:
        if values is not None:
            raise
        return False, f"not created: {error.message}"
    arguments = list(_arguments(kind, checked))
    if not arguments:
        return False, ""
    try:
        with tempfile.TemporaryDirectory() as directory:
            context = WorkerContext(Path(directory))
            target(*(context if one is WorkerContext else one for one in arguments))
    # A plugin may raise anything; the others are checked as well.
    except Exception as error:
        raise PluginLoadError(
            f"{kind} {spec.name!r}: {spec.target} cannot be created: {type(error).__name__}: "
            f"{error}"
        ) from error
    return True, ""


def _check_adapter(spec: AgentSpec, target: type[AgentAdapter], *, needs_framework: bool) -> None:
    if needs_framework and not can_be_imported(spec.framework):
        raise PluginLoadError(
            f"agent {spec.name!r}: its framework {spec.framework!r} is not a module that can be "
            "imported, so that the adapter is never used"
        )
    if target.run is AgentAdapter.run and target.run_sync is AgentAdapter.run_sync:
        raise PluginLoadError(
            f"agent {spec.name!r}: {spec.target} defines neither run nor run_sync"
        )


def _arguments(kind: str, settings: ComponentSettings) -> Iterator[object]:
    """Yield what a component of a kind is created with; nothing if it needs resources."""
    if kind in _LIGHT or kind in {"merger", "advantage"}:
        yield settings
    if kind == "merger":
        yield WorkerContext
    if kind == "advantage":
        yield AlgorithmConfig()


def _configured(settings: Settings | None, spec: ComponentSpec) -> Mapping[str, Any] | None:
    """Return the settings that the user has given for a component, None if there are none."""
    kind = kind_of(spec).name
    if settings is None:
        return None
    if kind == "store":
        return settings.store.settings if settings.store.name == spec.name else None
    tables: Mapping[str, Mapping[str, Any]] = getattr(
        settings, kind_of(spec).set_by.partition(".")[0], {}
    )
    return tables.get(spec.name) if kind in _LIGHT | {"logger"} else None


def _problem_in(interpreter: Interpreter, distribution: str) -> str:
    """Return what `main` returns in another interpreter."""
    command = [interpreter.python, "-m", "ajet_installation.check_plugin", distribution]
    environ = interpreter.environ(os.environ)
    try:
        done = subprocess.run(  # noqa: S603 - an interpreter that the settings name
            command, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{interpreter.python} cannot check {distribution}: {error}"
    return done.stderr.strip() if done.returncode else ""


def find_problem(manager: PluginManager, distribution: str) -> str:
    """Return the first problem of a distribution's plugins, "" if there is none."""
    infos = [info for info in manager.plugins(load=True) if info.distribution == distribution]
    if not infos:
        return f"{distribution} contains no plugin"
    for info in infos:
        if info.problem:
            return info.problem
        for component in info.components:
            spec = manager.component(*_split(component))
            try:
                _check(manager, spec, None)
            except AjetError as error:
                return error.message
    return ""


if __name__ == "__main__":
    sys.exit(find_problem(PluginManager(), sys.argv[1]) or 0)
