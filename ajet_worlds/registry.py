"""Worlds by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet_core.interfaces import World
from ajet_core.plugin import PluginManager, WorldSpec
from ajet_installation.interpreters import default_manager


def load_world(
    name: str, settings: Mapping[str, Any] | None = None, plugins: PluginManager | None = None
) -> World:
    """The world registered as `name`.

    :param settings: of the world, checked by its settings type.
    :param plugins: where to look; None takes those of this process.
    :raises UnknownComponentError: no installed plugin has it; the message lists those that exist.
    :raises PluginError: its plugin cannot be used, or several plugins claim the name.
    :raises ConfigError: `settings` are wrong.
    """
    manager = plugins or default_manager()
    spec = manager.world(name)
    checked = manager.validate_settings(spec, settings or {})
    world = manager.load_target(spec)(checked)
    return world


def world_specs(plugins: PluginManager | None = None) -> list[WorldSpec]:
    """The worlds that can be used, sorted by name; imports none of them."""
    manager = plugins or default_manager()
    return [manager.world(name) for name in manager.names("world")]
