"""An advantage estimator of a third party: its hooks, its settings and itself."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import AdvantageEstimator, ComponentSettings
from ajet_core.plugin import AdvantageSpec, hookimpl
from ajet_core.timeline import Call, TrainEpisode


@hookimpl
def ajet_register_advantages() -> Sequence[AdvantageSpec]:
    return (
        AdvantageSpec(
            name="ranks",
            target="tests.server.ranks:Ranks",
            settings="tests.server.ranks:RankSettings",
            summary="How many episodes of the task are worse",
        ),
    )


class RankSettings(ComponentSettings):
    """:param scale: the advantage of a rank."""

    scale: float = 1.0


class Ranks(AdvantageEstimator[RankSettings]):
    """How many episodes of the task have a smaller reward."""

    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> list[list[float]]:
        """One advantage per call."""
        ranks = [
            self.settings.scale
            * sum(e.group == other.group and other.reward < e.reward for other in episodes)
            for e in episodes
        ]
        return [[rank] * len(made) for rank, made in zip(ranks, calls, strict=True)]
