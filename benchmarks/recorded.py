"""Read what a run recorded from its store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ajet_core.plugin import PluginManager
from ajet_installation.settings import StoreSettings
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.store_reader import EpisodeChoice, StoredEpisode, StoreReader

ALL = EpisodeChoice()


def recorded_episodes(run_dir: Path, choice: EpisodeChoice = ALL) -> list[StoredEpisode]:
    """Return the episodes of a run, in the order of their claims."""

    async def read() -> list[StoredEpisode]:
        store = store_of_run(run_dir, StoreSettings(), PluginManager())
        async with StoreReader(store, run_dir) as reader:
            return [await reader.load(i) for i in await reader.episode_ids(choice)]

    return asyncio.run(read())
