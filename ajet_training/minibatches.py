"""Which episodes share a minibatch.

A minibatch must be the same set of calls however they are laid out, or the loss would depend on the plan. So whole
groups are dealt if there are enough of them, and whole episodes otherwise; sizes are of sampled tokens, which
no layout changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ajet_core.timeline.batch import TrainEpisode


def deals_groups(episodes: Sequence[TrainEpisode], minibatches: int) -> bool:
    """Whether groups stay together, so that one tree may hold several episodes of a group."""
    return len({episode.group for episode in episodes}) >= minibatches


def dealing_units(episodes: Sequence[TrainEpisode], minibatches: int) -> list[int]:
    """[len(episodes)] number of the unit that each episode belongs to, counted from 0."""
    if not deals_groups(episodes, minibatches):
        return list(range(len(episodes)))
    numbers: dict[str, int] = {}
    return [numbers.setdefault(episode.group, len(numbers)) for episode in episodes]


def deal(sizes: Sequence[int], count: int, rng: random.Random) -> list[list[int]]:
    """Divide units into `count` hands (fewer, if there are fewer units) of similar size.

    Units of similar size are dealt to different hands, at random by `rng`.

    :param sizes: of the units.
    :return: indices of units, none of the hands empty.
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
