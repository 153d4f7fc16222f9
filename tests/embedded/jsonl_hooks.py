"""Registers the store ``jsonl``, as a distribution of somebody else would."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import PluginManager, StoreSpec, hookimpl
from ajet_core.plugin.discovery import installed_entry_points
from ajet_testing.plugins import entry_points_of


@hookimpl
def ajet_register_stores() -> Sequence[StoreSpec]:
    """The store ``jsonl``."""
    module = "tests.embedded.jsonl_store"
    return [
        StoreSpec(
            name="jsonl", target=f"{module}:JsonlStore", settings=f"{module}:JsonlStoreSettings"
        )
    ]


def plugins_with_jsonl() -> PluginManager:
    """The installed plugins, the scripted components, and the store ``jsonl``."""
    return PluginManager(
        entry_points=[
            *installed_entry_points(),
            *entry_points_of("scripted", "ajet_testing.hooks"),
            *entry_points_of("jsonl-store", __name__),
        ]
    )
