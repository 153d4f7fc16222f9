"""Counts of evaluation episodes, of which pass@k and mean rewards are computed."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_core.interfaces import EpisodeRecord
from ajet_server.averages import term


@dataclass(frozen=True, slots=True)
class EvaluationCount:
    """The finished evaluation episodes of one task that a client claimed at one version.

    :param ended: the number with a reward; `passed`, `mixed` and `reward_sum` are over these.
    :param passed: the number with at least the requested reward.
    """

    client_id: str
    tag: str
    claim_version: int
    task_id: str
    ended: int
    passed: int
    mixed: int
    reward_sum: float
    aborted: int


class EvaluationCounter:
    """Counts finished evaluation episodes by client, tag, policy version and task.

    :param pass_reward: the least reward of an episode that passes.
    """

    def __init__(self, pass_reward: float) -> None:
        self._pass_reward = pass_reward
        # The values are: ended, passed, mixed, the sum of rewards, aborted.
        self._counts: dict[tuple[int, str, str, str], tuple[int, int, int, float, int]] = {}

    def add(self, episode: EpisodeRecord) -> None:
        """Count an episode, unless it is open.

        :raises TypeError: a field of its record is of a wrong type.
        """
        if episode.state in ("open", "prepared"):
            return
        key = (episode.claim_version, episode.client_id, episode.tag, episode.task_id)
        ended, passed, mixed, reward_sum, aborted = self._counts.get(key, (0, 0, 0, 0.0, 0))
        if episode.state == "ended":
            ended += 1
            mixed += episode.mixed
            if episode.reward is not None:
                passed += episode.reward >= self._pass_reward
                # The store may hold rewards whose sum would overflow.
                reward_sum += term(episode.reward)
        aborted += episode.state == "aborted"
        self._counts[key] = (ended, passed, mixed, reward_sum, aborted)

    def counts(self) -> list[EvaluationCount]:
        """Return the counts in order of policy version.

        :raises TypeError: as `add`.
        """
        return [
            EvaluationCount(client_id, tag, version, task_id, *count)
            for (version, client_id, tag, task_id), count in sorted(self._counts.items())
        ]
