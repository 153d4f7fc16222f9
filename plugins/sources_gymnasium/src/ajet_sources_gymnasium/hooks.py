"""Plugin hooks that register these sources."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import SourceSpec, hookimpl


@hookimpl
def ajet_register_sources() -> Sequence[SourceSpec]:
    """Register the sources ``gymnasium`` and ``textarena``."""
    return (
        SourceSpec(
            name="gymnasium",
            target="ajet_sources_gymnasium.source:GymnasiumSource",
            settings="ajet_sources_gymnasium.settings:GymnasiumSettings",
            summary="environments of Gymnasium, such as gymnasium:FrozenLake-v1",
        ),
        SourceSpec(
            name="textarena",
            target="ajet_sources_gymnasium.textarena_games:TextArenaSource",
            settings="ajet_sources_gymnasium.settings:TextArenaSettings",
            summary="games of TextArena for one player, such as textarena:Wordle-v0",
        ),
    )
