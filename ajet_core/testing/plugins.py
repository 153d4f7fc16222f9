"""A plugin manager that knows the scripted components."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from ajet_core.plugin import PluginManager
from ajet_core.plugin.discovery import installed_entry_points


class _Distribution:
    name = "scripted"
    version = "0"


def scripted_plugins() -> PluginManager:
    """The installed plugins and the scripted ones, which are behind no entry point."""
    points = [
        EntryPoint("scripted", "ajet_core.testing.hooks", "agentjet"),
        EntryPoint("1.0", "ajet_core.testing.hooks", "agentjet.hook_api"),
    ]
    for point in points:
        vars(point)["dist"] = _Distribution()
    return PluginManager(entry_points=[*installed_entry_points(), *points])
