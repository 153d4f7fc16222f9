"""Keeps what is trained within the bound of `RolloutConfig`: an episode that is too old is left out as a whole.

Never only its first calls: what would be left are the late turns of long episodes, which fail more often than others. Their
negative advantages would have no counterweight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call


@dataclass(frozen=True, slots=True)
class Fresh:
    """What of a batch is young enough to be trained.

    :param episodes: those of which no token is too old.
    :param staleness: number of their sampled tokens by staleness.
    :param stale: episodes that are left out.
    :param stale_tokens: that these sampled.
    """

    episodes: list[EpisodeRecord]
    staleness: Counter[int]
    stale: list[EpisodeRecord]
    stale_tokens: int

    def metrics(self) -> dict[str, float]:
        """Numbers for the step's summary, named as `StepSummary` says."""
        tokens = self.staleness.total()
        age = sum(age * count for age, count in self.staleness.items())
        return {
            "staleness_mean": age / tokens if tokens else 0.0,
            "staleness_max": float(max(self.staleness, default=0)),
            "episodes_stale": float(len(self.stale)),
            "tokens_stale": float(self.stale_tokens),
        }


def keep_fresh(
    episodes: Sequence[EpisodeRecord],
    calls: Mapping[str, Sequence[Call]],
    version: int,
    max_staleness: int,
) -> Fresh:
    """Leave out the episodes that have a token older than `max_staleness`.

    :param calls: by episode id.
    :param version: of the weights that the batch will be trained on.
    """
    fresh: list[EpisodeRecord] = []
    stale: list[EpisodeRecord] = []
    staleness: Counter[int] = Counter()
    stale_tokens = 0
    for episode in episodes:
        # Later weights than these were lost in a crash: what they sampled is not older than now.
        ages = Counter(
            max(0, version - sampled_by)
            for call in calls[episode.episode_id]
            for sampled_by in call.policy_versions
        )
        if max(ages, default=0) > max_staleness:
            stale.append(episode)
            stale_tokens += ages.total()
        else:
            fresh.append(episode)
            staleness += ages
    return Fresh(fresh, staleness, stale, stale_tokens)
