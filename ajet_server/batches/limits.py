"""Limit the number and the length of an episode's timelines by rule, and count what is dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ajet_core.timeline.tree import TokenTree

OverLong = Literal["drop", "truncate", "separate"]
"""How to handle a timeline with more tokens than the limit:

- ``drop``: leave it out as a whole.
- ``truncate``: end it with the last turn that fits, and leave out calls that end later.
- ``separate``: train calls that end later as separate samples, so that none of them makes a tree
  too large.
"""


@dataclass(frozen=True, slots=True)
class Limited:
    """Which calls of a tree are trained, as ascending indices into `TokenTree.calls`.

    :param together: calls that stay in the tree.
    :param alone: calls that become separate samples.
    :param dropped: calls that are not trained.
    """

    together: list[int]
    alone: list[int]
    dropped: list[int]


def limit_timelines(
    tree: TokenTree,
    *,
    max_timelines: int | None = None,
    max_tokens: int | None = None,
    over_long: OverLong = "truncate",
) -> Limited:
    """Apply limits to the timelines of an episode: the root-to-leaf paths of its tree.

    Timelines that are too long are handled first. Of the rest, the `max_timelines` with the most
    sampled tokens stay; of two with equal numbers, the earlier one. Calls that are separate
    samples count as timelines too: they get the places that the tree leaves free.

    :param max_tokens: the maximum number of tokens of a timeline.
    """
    kept = set(range(len(tree.calls)))
    alone: set[int] = set()
    if max_tokens is not None:
        sizes = _depths(tree)
        long = {c for c in kept if tree.ends[c] >= 0 and sizes[tree.ends[c]] > max_tokens}
        if over_long == "drop":
            short = [leaf for leaf in tree.leaves() if sizes[leaf] <= max_tokens]
            kept &= _passing(tree, short)
        else:
            kept -= long
            alone = long if over_long == "separate" else set()
    if max_timelines is not None:
        kept, tips = _longest(tree, kept, max_timelines)
        room = max_timelines - tips
        by_size = sorted(alone, key=lambda c: (-len(tree.calls[c].sampled_ids), c))
        alone = set(by_size[:room])
    return Limited(
        together=sorted(kept),
        alone=sorted(alone),
        dropped=sorted(set(range(len(tree.calls))) - kept - alone),
    )


def _longest(tree: TokenTree, kept: set[int], most: int) -> tuple[set[int], int]:
    """Return the calls of the timelines with the most tokens sampled by `kept` calls.

    :param most: the maximum number of timelines.
    :return: the calls, and the number of these timelines.
    """
    sampled = [0] * len(tree.nodes)
    ends: set[int] = set()
    for index, node in enumerate(tree.nodes):
        own = sum(s.call in kept for s in node.samplings) * len(node.token_ids)
        sampled[index] = own + (sampled[node.parent] if node.parent >= 0 else 0)
    for call in kept:
        if tree.ends[call] >= 0:
            ends.add(tree.ends[call])
    # A kept call that another kept call continues is not the end of a timeline.
    inner = {ancestor for end in ends for ancestor in tree.path(end)[:-1]}
    tips = sorted(ends - inner, key=lambda end: (-sampled[end], end))
    return kept & _passing(tree, tips[:most]), len(tips[:most])


def _passing(tree: TokenTree, tips: Iterable[int]) -> set[int]:
    """Return the calls that end on a path from the root to a tip, and all calls without tokens."""
    nodes = {-1}.union(*(tree.path(tip) for tip in tips))
    return {call for call, end in enumerate(tree.ends) if end in nodes}


def _depths(tree: TokenTree) -> list[int]:
    """Return the number of tokens from the root to the end of each node."""
    depths: list[int] = []
    for node in tree.nodes:
        before = depths[node.parent] if node.parent >= 0 else 0
        depths.append(before + len(node.token_ids))
    return depths
