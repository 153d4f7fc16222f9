"""Registers the store ``failing``: SQLite whose operations fail as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ajet_core.interfaces import EpisodeRecord, Record
from ajet_core.plugin import PluginManager, StoreSpec, hookimpl
from ajet_core.plugin.discovery import installed_entry_points
from ajet_server.store.sqlite_store import SqliteStore
from ajet_testing.plugins import entry_points_of

STORE = {"name": "failing", "settings": {"synchronous": "NORMAL"}}


@hookimpl
def ajet_register_stores() -> Sequence[StoreSpec]:
    """The store ``failing``."""
    return [
        StoreSpec(
            name="failing",
            target=f"{__name__}:FailingStore",
            settings="ajet_server.embedded.settings:SqliteStoreSettings",
        )
    ]


def plugins_with_failing_store() -> PluginManager:
    """The installed plugins, the scripted components, and the store ``failing``."""
    return PluginManager(
        entry_points=[
            *installed_entry_points(),
            *entry_points_of("scripted", "ajet_testing.hooks"),
            *entry_points_of("failing-store", __name__),
        ]
    )


class FailingStore(SqliteStore):
    """A SQLite store that calls `faults` before and after each write, and before a read.

    :cvar faults: by when they are called: "before" and "after" with the records, "read" without.
    """

    faults: ClassVar[dict[str, Callable[..., None]]] = {}

    async def append(self, *records: Record) -> None:
        """Write records, unless a fault raises."""
        self._fail("before", records)
        await super().append(*records)
        self._fail("after", records)

    async def get_episode(self, episode_id: str) -> EpisodeRecord | None:
        """Return an episode, unless a fault raises."""
        self._fail("read")
        return await super().get_episode(episode_id)

    def _fail(self, when: str, *arguments: object) -> None:
        if (fault := self.faults.get(when)) is not None:
            fault(*arguments)
