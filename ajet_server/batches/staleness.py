"""Enforce the staleness bound of `RolloutConfig`: leave out episodes that are too old as a whole.

Leaving out only their first calls would keep the late turns of long episodes. These fail more often
than others, and nothing would balance their negative advantages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call


@dataclass(frozen=True, slots=True)
class Fresh:
    """The part of a batch that is recent enough to be trained.

    :param episodes: those without a token that is too old.
    :param staleness: the number of their sampled tokens by staleness.
    :param stale: episodes that are left out.
    :param stale_tokens: the number of tokens that these sampled.
    """

    episodes: list[EpisodeRecord]
    staleness: Counter[int]
    stale: list[EpisodeRecord]
    stale_tokens: int

    def metrics(self) -> dict[str, float]:
        """Return numbers for the step's summary, with the names of ``docs/metrics.md``."""
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
    :param version: of the weights from which the batch will be trained.
    """
    fresh: list[EpisodeRecord] = []
    stale: list[EpisodeRecord] = []
    staleness: Counter[int] = Counter()
    stale_tokens = 0
    for episode in episodes:
        # Newer weights than `version` were lost in a crash: count their samples as fresh.
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
