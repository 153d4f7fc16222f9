"""Import of component classes, validation of their settings, and the naming of broken plugins."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from ajet_core.alike import did_you_mean
from ajet_core.errors import AjetError, ConfigError, PluginError, PluginLoadError
from ajet_core.interfaces import ComponentSettings
from ajet_core.plugin.components import ComponentSpec
from ajet_core.plugin.kinds import kind_of

CORE_DISTRIBUTION = "agentjet"


@contextmanager
def plugin_faults(
    owner: str,
    what: str,
    kind: type[AjetError] = PluginError,
    passed: type[Exception] | tuple[type[Exception], ...] = AjetError,
) -> Iterator[None]:
    """Raise what a plugin raises within the context as an error that names the plugin.

    :param owner: the component, as `PluginManager.describe` returns it.
    :param what: what went wrong, such as "failed in read".
    :param kind: the class of the error.
    :param passed: the exceptions that its interface allows, which are not changed.
    """
    try:
        yield
    except passed:
        raise
    # Library code may also call `sys.exit`.
    except (Exception, SystemExit) as error:
        raise kind(f"{owner} {what}: {type(error).__name__}: {error}") from error


def install_hint(distribution: str) -> str:
    """Return the pip command that installs the dependencies of `distribution`'s components.

    The extra is looked up in agentjet's metadata, so that new extras need no entry here.
    """
    if canonicalize_name(distribution) == CORE_DISTRIBUTION:
        return "pip install 'agentjet[server]>=0.1'"
    for extra in extras_with(distribution):
        return f"pip install 'agentjet[{extra}]>=0.1'"
    return f"pip install --upgrade {distribution}"


@functools.cache
def extras_with(distribution: str) -> tuple[str, ...]:
    """Return the extras of agentjet that install a distribution, the one with its name first."""
    wanted = canonicalize_name(distribution)
    extras = []
    try:
        lines = requires(CORE_DISTRIBUTION) or []
    except PackageNotFoundError:
        return ()
    for requirement in map(Requirement, lines):
        marker = str(requirement.marker or "")
        if canonicalize_name(requirement.name) == wanted and "extra ==" in marker:
            extras.append(marker.rpartition("extra ==")[2].strip().strip("\"'"))
    # Several extras may list it, since build tools expand extras that include others.
    return tuple(sorted(extras, key=lambda one: (not wanted.endswith(f"-{one}"), one)))


def import_target(target: str, what: str, hint: str) -> Any:
    """Import the object with the path ``"package.module:Name"``.

    :param what: the component, for messages.
    :param hint: the pip command to suggest if a module is missing.
    :raises PluginLoadError: it cannot be imported.
    """
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    # Backends may raise any error while they are imported (drivers, binary mismatches).
    except (Exception, SystemExit) as error:
        way_out = f"; install what it needs: {hint}" if isinstance(error, ImportError) else ""
        raise PluginLoadError(
            f"cannot import {what} from {target}: {type(error).__name__}: {error}{way_out}"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise PluginLoadError(
            f"cannot import {what}: module {module_name} has no {name}; upgrade its plugin"
        ) from None


def import_component(spec: ComponentSpec, owner: str, hint: str) -> type:
    """Import a component's class.

    :param owner: the plugin's name in messages.
    :raises PluginLoadError: it cannot be imported, or is not a subclass of the kind's interface.
    """
    kind = kind_of(spec)
    if kind.interface is None:
        raise TypeError(f"a {kind.name} is an object, not a class")
    what = f"{kind.name} {spec.name!r} of {owner}"
    component = import_target(spec.target, what, hint)
    if not (isinstance(component, type) and issubclass(component, kind.interface)):
        raise PluginLoadError(
            f"{what}: {spec.target} is not a subclass of "
            f"ajet_core.interfaces.{kind.interface.__name__}"
        )
    return component


def check_settings(
    spec: ComponentSpec, values: Mapping[str, Any], owner: str, hint: str
) -> ComponentSettings:
    """Validate a component's settings.

    :raises ConfigError: a value is invalid or a key unknown; `param` is the first's dotted path.
    :raises PluginLoadError: the settings class cannot be imported.
    """
    kind = kind_of(spec)
    what = f"{kind.name} {spec.name!r} of {owner}"
    settings_type = import_target(spec.settings, f"the settings of {what}", hint)
    if not (isinstance(settings_type, type) and issubclass(settings_type, ComponentSettings)):
        raise PluginLoadError(
            f"the settings of {what}: {spec.settings} is not a subclass of "
            "ajet_core.interfaces.ComponentSettings"
        )
    try:
        return settings_type.model_validate(dict(values))
    except ValidationError as error:
        prefix = (kind.set_by or f"{kind.name}.settings").format(spec.name)
        known = ", ".join(settings_type.model_fields) or "none"
        problems = []
        paths = []
        # Keep inputs out of the message: a setting may be a secret.
        for detail in error.errors(include_input=False, include_url=False):
            path = ".".join([prefix, *map(str, detail["loc"])])
            paths.append(path)
            unknown = detail["type"] == "extra_forbidden"
            alike = did_you_mean(path.split(".")[-1], settings_type.model_fields)
            problems.append(f"{path}: {f'unknown key{alike}' if unknown else detail['msg']}")
        raise ConfigError(
            f"settings of {kind.name} {spec.name!r}: {'; '.join(problems)} (known keys: {known})",
            param=paths[0],
        ) from error
