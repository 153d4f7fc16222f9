"""Plugin managers with components that have no entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from ajet_core.plugin import PluginManager
from ajet_core.plugin.discovery import installed_entry_points

__all__ = ["entry_points_of", "plugins_with", "scripted_plugins"]


class _Distribution:
    """The attributes of a distribution that discovery uses."""

    version = "0"

    def __init__(self, name: str) -> None:
        self.name = name


def entry_points_of(name: str, hooks: str) -> list[EntryPoint]:
    """Return the entry points of an installed distribution with one plugin.

    :param name: name of the plugin and its distribution.
    :param hooks: the module with its hooks.
    """
    points = [EntryPoint(name, hooks, "agentjet"), EntryPoint("1.0", hooks, "agentjet.hook_api")]
    for point in points:
        vars(point)["dist"] = _Distribution(name)
    return points


def plugins_with(name: str, hooks: str) -> PluginManager:
    """The installed plugins and one more, with the arguments of `entry_points_of`."""
    return PluginManager(entry_points=[*installed_entry_points(), *entry_points_of(name, hooks)])


def scripted_plugins() -> PluginManager:
    """The installed plugins and the scripted components."""
    return plugins_with("scripted", "ajet_testing.hooks")
