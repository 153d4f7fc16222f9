"""Assignment of episodes to minibatches.

A minibatch must have the same calls in every layout, or the loss would depend on the plan.
Therefore whole groups are dealt if there are enough of them, else whole episodes; sizes are numbers
of sampled tokens, which no layout changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ajet_core.timeline.batch import TrainEpisode

__all__ = ["deal", "dealing_units", "deals_groups"]


def deals_groups(episodes: Sequence[TrainEpisode], minibatches: int) -> bool:
    """Return whether groups stay together, so that a tree may have several episodes of a group."""
    return len({episode.group for episode in episodes}) >= minibatches


def dealing_units(episodes: Sequence[TrainEpisode], minibatches: int) -> list[int]:
    """Return [len(episodes)] the number of each episode's unit, counted from 0."""
    if not deals_groups(episodes, minibatches):
        return list(range(len(episodes)))
    numbers: dict[str, int] = {}
    return [numbers.setdefault(episode.group, len(numbers)) for episode in episodes]


def deal(sizes: Sequence[int], count: int, rng: random.Random) -> list[list[int]]:
    """Divide units into `count` hands (fewer, if there are fewer units) of similar size.

    Units of similar size are dealt to different hands, at random by `rng`.

    :param sizes: sizes of the units.
    :return: indices of units; no hand is empty.
    """
    count = min(count, len(sizes))
    order = list(range(len(sizes)))
    rng.shuffle(order)
    order.sort(key=lambda unit: sizes[unit], reverse=True)
    hands: list[list[int]] = [[] for _ in range(count)]
    for start in range(0, len(order), count):
        turns = list(range(count))
        rng.shuffle(turns)
        for turn, unit in zip(turns, order[start : start + count], strict=False):
            hands[turn].append(unit)
    return hands
