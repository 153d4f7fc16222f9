"""From rewards to advantages: each episode is compared with the other rollouts of its task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ajet_core.timeline.batch import TrainEpisode

AdvantageMethod = Literal["group_std", "group_mean", "leave_one_out"]

STD_EPSILON = 1e-4


def episode_advantages(episodes: Sequence[TrainEpisode], method: AdvantageMethod) -> list[float]:
    """One advantage per episode, relative to the episodes with the same `TrainEpisode.group`.

    With the n rewards r of a group:

    - ``group_std``: ``(r - mean(r)) / (std(r) + 1e-4)``, with the unbiased std (n - 1) and the epsilon
      that TRL's GRPOTrainer uses (GRPO, Shao et al. 2024, arXiv:2402.03300, eq. in section 4.1.2).
    - ``group_mean``: ``r - mean(r)`` (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).
    - ``leave_one_out``: ``r_i - mean of the others`` (RLOO, Ahmadian et al. 2024, arXiv:2402.14740).

    A group of one, and a group whose rewards are all equal, has advantages of exactly 0.0.

    :return: [len(episodes)], in the order of `episodes`.
    """
    members: dict[str, list[int]] = {}
    for i, episode in enumerate(episodes):
        members.setdefault(episode.group, []).append(i)
    advantages = [0.0] * len(episodes)
    for indices in members.values():
        rewards = [episodes[i].reward for i in indices]
        for i, advantage in zip(indices, _group_advantages(rewards, method), strict=True):
            advantages[i] = advantage
    return advantages


def has_signal(episodes: Sequence[TrainEpisode]) -> bool:
    """Whether any group has rewards that differ; without that, all advantages are 0.0."""
    first: dict[str, float] = {}
    return any(first.setdefault(e.group, e.reward) != e.reward for e in episodes)


def _group_advantages(rewards: list[float], method: AdvantageMethod) -> list[float]:
    n = len(rewards)
    # Tested on the rewards: rounding in the mean could leave a tiny difference that std would blow up.
    if all(reward == rewards[0] for reward in rewards):
        return [0.0] * n
    mean = math.fsum(rewards) / n
    centred = [reward - mean for reward in rewards]
    if method == "group_mean":
        return centred
    if method == "leave_one_out":
        # r_i - (sum - r_i) / (n - 1), written with the centred rewards.
        return [c * n / (n - 1) for c in centred]
    std = math.sqrt(math.fsum(c * c for c in centred) / (n - 1))
    return [c / (std + STD_EPSILON) for c in centred]
