"""The plugin manager: looks up components by name and isolates broken plugins."""

from __future__ import annotations

import copy
import logging
import threading
from asyncio import CancelledError
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

import click

from ajet_core import __version__
from ajet_core.alike import did_you_mean
from ajet_core.errors import (
    PluginConflictError,
    PluginError,
    PluginLoadError,
    UnknownComponentError,
)
from ajet_core.interfaces import ComponentSettings
from ajet_core.plugin import discovery, targets
from ajet_core.plugin.components import (
    AdvantageSpec,
    AgentSpec,
    CommandSpec,
    ComponentSpec,
    EngineSpec,
    JudgeSpec,
    LoggerSpec,
    MergerSpec,
    PluginInfo,
    ReaderSpec,
    SandboxSpec,
    SourceSpec,
    StoreSpec,
    TrainerSpec,
    WorldSpec,
)
from ajet_core.plugin.kinds import BY_NAME, RESERVED_COMMANDS, KindName, kind_of
from ajet_core.plugin.loading import OBSERVERS, LoadedPlugin, load_plugin

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=ComponentSpec)
T = TypeVar("T")
_Around = Callable[[str], AbstractContextManager[object]]

_BUILT_IN = PluginInfo(
    name="ajet",
    distribution=targets.CORE_DISTRIBUTION,
    version=__version__,
    module="ajet_cli",
    hook_api=None,
)


def _finder(kind: KindName, spec: type[S]) -> Callable[[PluginManager, str], S]:
    def find(self: PluginManager, name: str) -> S:
        """Return the component registered as `name`; errors as in `PluginManager.component`."""
        return self._component(kind, name, spec)

    return find


class PluginManager:
    """Registry of components by kind and name.

    Creating a manager only reads metadata. The first query about components imports the light hook
    modules of all compatible plugins, each in isolation. All are needed because plugins that
    register the same name conflict, whichever is queried first.

    :param blocked: names of plugins that are never imported; ``name@distribution`` selects one.
    :param entry_points: entry points to use instead of those of the installed distributions.
    """

    def __init__(
        self, blocked: Iterable[str] = (), entry_points: Iterable[EntryPoint] | None = None
    ) -> None:
        points = discovery.installed_entry_points() if entry_points is None else entry_points
        self._found = discovery.discover(points, blocked)
        self._lock = threading.RLock()
        self._is_loaded = False
        self._loaded: list[LoadedPlugin] = []
        self._broken: dict[tuple[str, str], PluginError] = {}
        self._providers: dict[
            tuple[KindName, str], list[tuple[PluginInfo, ComponentSpec | None]]
        ] = defaultdict(list)

    def plugins(self, *, load: bool = False) -> list[PluginInfo]:
        """Return every installed plugin, sorted by name, with problems that prevent its use.

        :param load: import the plugins, which finds hooks and components, and errors.
        """
        if load:
            self._load()
        loaded = {(p.info.name, p.info.distribution): p.info for p in self._loaded}
        infos = []
        for plugin in self._found:
            key = (plugin.info.name, plugin.info.distribution)
            info = loaded.get(key, plugin.info)
            if key in self._broken:
                info = replace(info, problem=self._broken[key].message)
            elif conflicts := self._conflicts_of(info):
                info = replace(info, problem="\n".join(conflicts))
            infos.append(info)
        return infos

    engine = _finder("engine", EngineSpec)
    trainer = _finder("trainer", TrainerSpec)
    store = _finder("store", StoreSpec)
    merger = _finder("merger", MergerSpec)
    advantage = _finder("advantage", AdvantageSpec)
    agent = _finder("agent", AgentSpec)
    logger = _finder("logger", LoggerSpec)
    world = _finder("world", WorldSpec)
    reader = _finder("reader", ReaderSpec)
    judge = _finder("judge", JudgeSpec)
    sandbox = _finder("sandbox", SandboxSpec)
    source = _finder("source", SourceSpec)
    command = _finder("command", CommandSpec)

    def component(self, kind: KindName, name: str) -> ComponentSpec:
        """Return the component of `kind` registered as `name`.

        :raises UnknownComponentError: no usable plugin has it; the message lists the plugins.
        :raises PluginConflictError: several plugins register it.
        :raises PluginError: the plugin with this name is broken or refused.
        """
        return self._component(kind, name, BY_NAME[kind].spec)

    def names(self, kind: KindName) -> list[str]:
        """Return the names of usable components of `kind`, sorted."""
        self._load()
        return sorted(
            name
            for (its_kind, name), providers in self._providers.items()
            if its_kind == kind and len(providers) == 1 and providers[0][1] is not None
        )

    def load_target(self, spec: ComponentSpec[T]) -> type[T]:
        """Import a component's class.

        :raises PluginLoadError: it cannot be imported, or does not implement its interface.
        """
        return targets.import_component(spec, *self._owner_and_hint(spec))

    def create(self, spec: ComponentSpec[T], *arguments: object) -> T:
        """Create a component with the arguments of its interface, the checked settings first.

        :raises PluginError: as `load_target`, or its constructor raised another exception.
        """
        target: Callable[..., T] = self.load_target(spec)
        with targets.plugin_faults(self.describe(spec), "cannot be created"):
            return target(*arguments)

    def describe(self, spec: ComponentSpec) -> str:
        """Return a component's name for messages, with its plugin, distribution and version."""
        return f"{kind_of(spec).name} {spec.name!r} of {self._owner_and_hint(spec)[0]}"

    def load_command(self, spec: CommandSpec) -> click.Command:
        """Import a plugin's subcommand.

        :raises PluginLoadError: it cannot be imported, or is not a `click.Command`.
        """
        owner, hint = self._owner_and_hint(spec)
        command = targets.import_target(spec.target, f"command {spec.name!r} of {owner}", hint)
        if not isinstance(command, click.Command):
            raise PluginLoadError(
                f"command {spec.name!r} of {owner}: {spec.target} is not a click.Command"
            )
        return command

    def validate_settings(
        self, spec: ComponentSpec, values: Mapping[str, Any]
    ) -> ComponentSettings:
        """Validate a component's settings with its settings class.

        :raises ConfigError: as for `ajet_core.plugin.targets.check_settings`.
        """
        return targets.check_settings(spec, values, *self._owner_and_hint(spec))

    def owner(self, spec: ComponentSpec) -> str | None:
        """Return the distribution that registers a component, or None if it is not registered."""
        self._load()
        providers = self._providers.get((kind_of(spec).name, spec.name), [])
        return next((info.distribution for info, provided in providers if provided == spec), None)

    def notify(self, hook_name: str, around: _Around = nullcontext, /, **kwargs: object) -> None:
        """Call an observer hook of every plugin that implements it, each with its own copies.

        Exceptions are logged with the plugin's name and not propagated.

        :param around: makes the context of each call, from its plugin and hook.
        :raises ValueError: `hook_name` is not an observer hook.
        """
        if hook_name not in OBSERVERS:
            raise ValueError(f"{hook_name!r} is not an observer hook: {', '.join(OBSERVERS)}")
        self._load()
        for plugin in self._loaded:
            if hook_name not in plugin.info.hooks:
                continue
            name = discovery.describe(plugin.info)
            try:
                with around(f"{name}, hook {hook_name}"):
                    getattr(plugin.hooks.hook, hook_name)(**copy.deepcopy(kwargs))
            # Errors are suppressed on purpose: the observed event has already happened and is
            # durable, so a faulty observer must not stop training or other observers.
            except (Exception, SystemExit, CancelledError):
                logger.exception("%s: its hook %s raised; training continues", name, hook_name)

    def _component(self, kind: KindName, name: str, spec_type: type[S]) -> S:
        self._load()
        providers = self._providers.get((kind, name), [])
        if len(providers) > 1:
            raise PluginConflictError(
                _conflict(kind, name, [info for info, _ in providers]), param="plugins.blocked"
            )
        if providers and isinstance(providers[0][1], spec_type):
            return providers[0][1]
        for plugin in self._found:
            problem = self._problem(plugin)
            if plugin.info.name == name and problem is not None:
                raise type(problem)(
                    f"cannot use {kind} {name!r}: {problem.message}", param=problem.param
                )
        param = (BY_NAME[kind].chosen_by or f"{kind}.name").format(name)
        raise UnknownComponentError(self._unknown(kind, name), param=param)

    def _unknown(self, kind: KindName, name: str) -> str:
        known = self.names(kind)
        alike = did_you_mean(name, known)
        unknown = (
            f"no installed plugin provides {kind} {name!r}; known: "
            f"{', '.join(known) or 'none'}{alike}. Install the plugin that provides it, or list "
            "the installed ones with `ajet plugins`"
        )
        lines = [unknown]
        for plugin in self._found:
            problem = self._problem(plugin)
            if plugin.info.blocked:
                lines.append(
                    f"not imported: {discovery.describe(plugin.info)}: {plugin.info.problem}"
                )
            elif problem is not None:
                lines.append(f"not usable: {problem.message}")
        return "\n".join(lines)

    def _problem(self, plugin: discovery.FoundPlugin) -> PluginError | None:
        key = (plugin.info.name, plugin.info.distribution)
        return plugin.refusal or self._broken.get(key)

    def _load(self) -> None:
        with self._lock:
            if self._is_loaded:
                return
            for name in RESERVED_COMMANDS:
                self._providers["command", name].append((_BUILT_IN, None))
            for plugin in self._found:
                if plugin.info.blocked or plugin.refusal is not None:
                    continue
                try:
                    loaded = load_plugin(plugin)
                except PluginLoadError as error:
                    logger.debug("%s", error.message)
                    self._broken[plugin.info.name, plugin.info.distribution] = error
                    continue
                self._loaded.append(loaded)
                for kind, spec in loaded.components:
                    self._providers[kind.name, spec.name].append((loaded.info, spec))
            self._is_loaded = True

    def _conflicts_of(self, info: PluginInfo) -> list[str]:
        owners = {key: [owner for owner, _ in value] for key, value in self._providers.items()}
        return [_conflict(*k, many) for k, many in owners.items() if len(many) > 1 and info in many]

    def _owner_and_hint(self, spec: ComponentSpec) -> tuple[str, str]:
        self._load()
        for info, provided in self._providers.get((kind_of(spec).name, spec.name), []):
            if provided == spec:
                return discovery.describe(info), targets.install_hint(info.distribution)
        return (
            "no installed plugin",
            f"install the distribution of {spec.target.partition('.')[0]} with pip",
        )


def _conflict(kind: str, name: str, infos: list[PluginInfo]) -> str:
    owners = " and ".join(discovery.describe(info) for info in infos)
    blockable = [info.name for info in infos if info is not _BUILT_IN]
    choices = " or ".join(f'["{plugin}"]' for plugin in blockable)
    return (
        f"{kind} {name!r} is registered by {owners}, so none of them is used: uninstall one, "
        f"or set plugins.blocked in ajet.toml to {choices}"
    )
