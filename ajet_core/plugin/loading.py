"""Import of one plugin and collection of its components, isolated from other plugins.

Each plugin has its own `pluggy.PluginManager`: a plugin that fails validation leaves nothing in a
shared manager, and every error can be attributed to its plugin.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pluggy

from ajet_core.alike import did_you_mean
from ajet_core.errors import PluginLoadError
from ajet_core.plugin import compat
from ajet_core.plugin import spec as hook_specs
from ajet_core.plugin.components import NO_SETTINGS, ComponentSpec, PluginInfo
from ajet_core.plugin.discovery import FoundPlugin, describe, way_out
from ajet_core.plugin.kinds import KINDS, Kind

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

HOOK_NAMES: tuple[str, ...] = tuple(name for name in vars(hook_specs) if name.startswith("ajet_"))
OBSERVERS: tuple[str, ...] = tuple(n for n in HOOK_NAMES if not n.startswith("ajet_register_"))


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin that was imported and validated.

    :param components: the registered components, by kind.
    """

    info: PluginInfo
    hooks: pluggy.PluginManager
    components: tuple[tuple[Kind, ComponentSpec], ...]


def load_plugin(plugin: FoundPlugin) -> LoadedPlugin:
    """Import a plugin, validate its hooks and collect its components.

    :raises PluginLoadError: something went wrong; the message names the plugin, distribution,
        version, hook (if one failed), and what to do.
    """
    info = plugin.info
    try:
        module = plugin.entry_point.load()
    # A plugin's module may raise anything, including SystemExit, which must not affect other
    # plugins.
    except (Exception, SystemExit) as error:
        raise _broken(info, f"cannot import its module {info.module}: {_shown(error)}") from error

    _refuse_mistakes(info, module)
    hooks = pluggy.PluginManager(hook_specs.HOOK_NAMESPACE)
    hooks.add_hookspecs(hook_specs)
    try:
        hooks.register(module, name=info.name)
    except pluggy.PluginValidationError as error:
        raise _broken(info, str(error)) from error
    implemented = tuple(name for name in HOOK_NAMES if _hook(hooks, name).get_hookimpls())
    for name in implemented:
        if (instead := compat.DEPRECATED_HOOKS.get(name)) is not None:
            warnings.warn(
                f"{describe(info)} implements the hook {name}, which is deprecated {instead}",
                FutureWarning,  # which Python shows by default
                stacklevel=2,
            )

    components: list[tuple[Kind, ComponentSpec]] = []
    for kind in KINDS:
        if kind.hook in implemented:
            components.extend((kind, spec) for spec in _ask(info, hooks, kind))
    names = tuple(f"{kind.name}:{spec.name}" for kind, spec in components)
    return LoadedPlugin(
        replace(info, hooks=implemented, components=names), hooks, tuple(components)
    )


def _hook(hooks: pluggy.PluginManager, name: str) -> pluggy.HookCaller:
    caller: pluggy.HookCaller = getattr(hooks.hook, name)
    return caller


def _refuse_mistakes(info: PluginInfo, module: object) -> None:
    for name in dir(module):
        function = getattr(module, name)
        options = getattr(function, f"{hook_specs.HOOK_NAMESPACE}_impl", None)
        if options is None and name in HOOK_NAMES and inspect.isfunction(function):
            raise _broken(info, f"hook {name} has no @hookimpl, so it would never be called")
        if not (isinstance(options, dict) and inspect.isroutine(function)):
            continue
        hook = options.get("specname") or name
        if hook not in HOOK_NAMES:
            known = f"{did_you_mean(hook, HOOK_NAMES)}; the hooks are {', '.join(HOOK_NAMES)}"
            raise _broken(info, f"there is no hook {hook}{known}")
        if inspect.iscoroutinefunction(function):
            raise _broken(info, f"hook {hook} is a coroutine function; make it a plain function")
        signature = inspect.signature(getattr(hook_specs, hook))
        if unknown := inspect.signature(function).parameters.keys() - signature.parameters.keys():
            right = f"{hook}{signature}".replace("'", "")
            raise _broken(info, f"hook {hook} has no argument {min(unknown)!r}; it is {right}")


def _ask(info: PluginInfo, hooks: pluggy.PluginManager, kind: Kind) -> list[ComponentSpec]:
    try:
        results = _hook(hooks, kind.hook)()
    # A hook may raise anything; only users of this plugin may be affected.
    except (Exception, SystemExit) as error:
        raise _broken(info, f"hook {kind.hook} raised {_shown(error)}") from error
    # pluggy drops results that are None.
    if not results:
        raise _wrong(info, kind, "None")
    specs: list[ComponentSpec] = []
    for result in results:
        if not isinstance(result, Sequence) or isinstance(result, str):
            raise _wrong(info, kind, f"a {type(result).__name__}")
        for item in result:
            specs.append(_checked(info, kind, item))
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise _broken(info, f"hook {kind.hook} returned {kind.name} {spec.name!r} twice")
        seen.add(spec.name)
    return specs


def _checked(info: PluginInfo, kind: Kind, item: Any) -> ComponentSpec:
    if not isinstance(item, kind.spec):
        raise _wrong(info, kind, f"a sequence that contains a {type(item).__name__}")
    if not item.name or not isinstance(item.name, str):
        raise _broken(info, f"hook {kind.hook} returned the invalid name {item.name!r}")
    for field in ("target", "settings"):
        value = getattr(item, field)
        if not isinstance(value, str) or not _TARGET.fullmatch(value):
            raise _broken(
                info,
                f"hook {kind.hook} set {field} of {kind.name} {item.name!r} to {value!r}, "
                'which is not of the form "package.module:Name"',
            )
    if kind.interface is None and item.settings != NO_SETTINGS:
        raise _broken(
            info,
            f"hook {kind.hook} set settings of {kind.name} {item.name!r}, which has none: make "
            "them options of the command",
        )
    return item


def _wrong(info: PluginInfo, kind: Kind, what: str) -> PluginLoadError:
    return _broken(
        info, f"hook {kind.hook} returned {what} instead of a sequence of {kind.spec.__name__}"
    )


def _broken(info: PluginInfo, reason: str) -> PluginLoadError:
    return PluginLoadError(
        f"{describe(info)} cannot be used: {reason}\nTo continue, {way_out(info)}.",
        param="plugins.blocked",
    )


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
