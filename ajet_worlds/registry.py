"""Worlds by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet_core.interfaces import World
from ajet_core.plugin import PluginManager, WorldSpec
from ajet_installation.component_settings import component_settings
from ajet_installation.interpreters import default_manager


def load_world(
    name: str, settings: Mapping[str, Any] | None = None, plugins: PluginManager | None = None
) -> World:
    """Load the world registered as `name`.

    What the world raises names its plugin.

    :param settings: override those of ``[worlds.NAME]`` in ``ajet.toml``.
    :param plugins: the plugin manager to use; None uses that of this process.
    :raises UnknownComponentError: no installed plugin has it; the message lists the existing ones.
    :raises PluginError: its plugin cannot be used, or several plugins register the name.
    :raises ConfigError: its settings are invalid.
    """
    from ajet_worlds.isolation import IsolatedWorld

    manager = plugins or default_manager()
    spec = manager.world(name)
    world = manager.create(spec, component_settings(manager, spec, settings))
    return IsolatedWorld(world, manager.describe(spec))


def world_specs(plugins: PluginManager | None = None) -> list[WorldSpec]:
    """Return the usable worlds, sorted by name, without importing them."""
    manager = plugins or default_manager()
    return [manager.world(name) for name in manager.names("world")]
