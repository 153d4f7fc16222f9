"""An advantage estimator that learns from winners alone."""

from collections import defaultdict

from ajet_core.interfaces import AdvantageEstimator, ComponentSettings
from ajet_core.plugin import AdvantageSpec, hookimpl


@hookimpl
def ajet_register_advantages():
    return [
        AdvantageSpec(
            name="winners",
            target="ajet_winners:Winners",
            settings="ajet_winners:WinnersSettings",
            summary="episodes that are better than the mean of their group",
        )
    ]


class WinnersSettings(ComponentSettings):
    """:param scale: the advantage of a winner."""

    scale: float = 1.0


class Winners(AdvantageEstimator[WinnersSettings]):
    """Winners get an advantage, and losers are not trained at all."""

    def estimate(self, episodes, calls):
        groups = defaultdict(list)
        for episode in episodes:
            groups[episode.group].append(episode.reward)
        advantages = []
        for episode, its_calls in zip(episodes, calls, strict=True):
            rewards = groups[episode.group]
            wins = episode.reward > sum(rewards) / len(rewards)
            advantages.append([self.settings.scale * wins] * len(its_calls))
        return advantages
