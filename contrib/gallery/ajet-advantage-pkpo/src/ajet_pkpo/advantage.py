"""The advantage estimator ``pkpo``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ajet_core.interfaces import AdvantageEstimator
from ajet_core.timeline import Call, TrainEpisode
from ajet_pkpo.formulas import transformed
from ajet_pkpo.settings import PkpoEstimatorSettings


class PkpoEstimator(AdvantageEstimator[PkpoEstimatorSettings]):
    """Advantages whose policy gradient is that of pass@k, or of the expected best of k rewards.

    Section 1 of arXiv:2505.15201, "How to apply this method": the rewards of a task's n attempts
    are replaced by `formulas.transformed`. They are multiplied by n here: the paper sums over the
    attempts of a task (equation 18), and agentjet takes the mean. So k = 1 gives the advantages of
    RLOO, and the gradient has the scale of other estimators.

    All calls of an episode have its advantage. Rewards of single calls and of agents are not used.
    A group with fewer than k episodes (k + 1 for the baseline ``loo``) is trained with the largest
    k that it allows.
    """

    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> Sequence[Sequence[float]]:
        """Give all calls of an episode the same advantage."""
        groups: dict[str, list[int]] = defaultdict(list)
        for place, episode in enumerate(episodes):
            groups[episode.group].append(place)
        advantages = [0.0] * len(episodes)
        for places in groups.values():
            rewards = [episodes[place].reward for place in places]
            for place, advantage in zip(places, self._of_task(rewards), strict=True):
                advantages[place] = advantage
        return [
            [advantage] * len(its_calls)
            for advantage, its_calls in zip(advantages, calls, strict=True)
        ]

    def _of_task(self, rewards: Sequence[float]) -> list[float]:
        n, baseline = len(rewards), self.settings.baseline
        k = min(self.settings.k, n - 1 if baseline == "loo" else n)
        if k == 0 or (n == 1 and baseline != "none"):
            # There is nothing to compare a single episode with.
            return [0.0] * n
        return [n * value for value in transformed(rewards, k, baseline)]
