"""Mergers and advantage estimators whose errors and wrong results name their plugin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from typing import SupportsFloat

from ajet_core.interfaces import AdvantageEstimator, Merger, MergerPromises
from ajet_core.plugin.targets import plugin_faults
from ajet_core.timeline import Call, TokenTree, TrainEpisode

__all__ = ["CheckedEstimator", "CheckedMerger"]


class CheckedMerger(Merger):
    """A merger whose trees are checked.

    :param owner: the merger in messages, as `PluginManager.describe` returns it.
    """

    # The constructor of a plugin may have set no attributes, so none is copied.
    def __init__(self, merger: Merger, owner: str) -> None:
        self._merger = merger
        self._owner = owner

    @property
    def promises(self) -> MergerPromises:
        """Those of the merger."""
        return self._merger.promises

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge the calls of one episode.

        :raises PluginError: the merger raised, or its tree does not contain the calls.
        """
        with plugin_faults(self._owner, f"failed on episode {episode_id}", passed=()):
            tree = self._merger.merge(episode_id, calls)
            _check_tree(tree, calls)
        return tree


class CheckedEstimator(AdvantageEstimator):
    """An advantage estimator whose advantages are checked.

    :param owner: the estimator in messages, as `PluginManager.describe` returns it.
    """

    def __init__(self, estimator: AdvantageEstimator, owner: str) -> None:
        self._estimator = estimator
        self._owner = owner

    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> list[list[float]]:
        """Compute one advantage per call.

        :raises PluginError: the estimator raised, or its result is not a finite number per call.
        """
        with plugin_faults(self._owner, "failed in estimate", passed=()):
            return _advantages(self._estimator.estimate(episodes, calls), calls)


def _check_tree(tree: object, calls: Sequence[Call]) -> None:
    """Check that a tree contains each call with the tokens that it sampled.

    :raises Exception: it does not.
    """
    if not isinstance(tree, TokenTree):
        raise TypeError(f"it returned {_kind(tree)} instead of a TokenTree")
    if sorted(call.call_id for call in tree.calls) != sorted(call.call_id for call in calls):
        raise ValueError(f"its tree has {len(tree.calls)} calls, which are not the given calls")
    for number, node in enumerate(tree.nodes):
        if not -1 <= node.parent < number:
            raise ValueError(f"node {number} of its tree has the parent {node.parent}")
    sampled = [0] * len(tree.calls)
    for node in tree.nodes:
        for sampling in node.samplings:
            call, end = tree.calls[sampling.call], sampling.start + len(node.token_ids)
            if call.sampled_ids[sampling.start : end] != node.token_ids:
                raise ValueError(f"its tree has other tokens than call {call.call_id} sampled")
            sampled[sampling.call] += len(node.token_ids)
    for call, end, tokens in zip(tree.calls, tree.ends, sampled, strict=True):
        if not -1 <= end < len(tree.nodes) or tokens != len(call.sampled_ids):
            raise ValueError(f"its tree has {tokens} of the sampled tokens of call {call.call_id}")


def _advantages(given: object, calls: Sequence[Sequence[Call]]) -> list[list[float]]:
    """Convert the result of an estimator.

    :raises Exception: it does not have the shape of `calls`, or a value is not a finite number.
    """
    advantages = []
    for row, its_calls in zip(_sized(given, len(calls), "rows", "episodes"), calls, strict=True):
        values = _sized(row, len(its_calls), "advantages", "calls of an episode")
        advantages.append([_finite_number(v, c) for v, c in zip(values, its_calls, strict=True)])
    return advantages


def _sized(values: object, size: int, what: str, of: str) -> Sequence[object]:
    if not isinstance(values, Sized) or not isinstance(values, Iterable):
        raise TypeError(f"it returned {_kind(values)} instead of a sequence of {what}")
    listed = list(values)
    if len(listed) != size:
        raise ValueError(f"it returned {len(listed)} {what} for {size} {of}")
    return listed


def _finite_number(value: object, call: Call) -> float:
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"the advantage of call {call.call_id} is {_kind(value)}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the advantage of call {call.call_id} is {number}")
    return number


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
