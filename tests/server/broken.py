"""A plugin with a merger and an advantage estimator that are broken, until it is upgraded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ajet_core.interfaces import AdvantageEstimator, Merger
from ajet_core.plugin import AdvantageSpec, MergerSpec, PluginManager, hookimpl
from ajet_core.plugin.discovery import installed_entry_points
from ajet_core.timeline import Call, TokenTree, TrainEpisode
from ajet_server.embedded.trie import TokenTrie
from ajet_testing.plugins import entry_points_of

Fault = Callable[[Sequence[Call]], object]

FAULT: Fault | None = None
"""What it does with the calls of an episode instead of the right thing; None once upgraded."""


def fault(calls: Sequence[Call]) -> Any:
    """Misbehave, if the plugin is broken; otherwise return None."""
    return FAULT(calls) if FAULT is not None else None


class BrokenMerger(Merger):
    """Merges like the built-in merger."""

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge."""
        fault(calls)
        trie = TokenTrie(episode_id)
        for call in calls:
            trie.add(call)
        return trie.tree()


class BrokenEstimator(AdvantageEstimator):
    """Gives every call the reward of its episode."""

    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> Sequence[Sequence[float]]:
        """Return the rewards."""
        wrong = [fault([call for its_calls in calls for call in its_calls])]
        if wrong != [None]:
            rows: Sequence[Sequence[float]] = wrong[0]
            return rows
        return [[e.reward] * len(its) for e, its in zip(episodes, calls, strict=True)]


@hookimpl
def ajet_register_mergers() -> Sequence[MergerSpec]:
    """The merger."""
    return [MergerSpec(name="broken", target="tests.server.broken:BrokenMerger")]


@hookimpl
def ajet_register_advantages() -> Sequence[AdvantageSpec]:
    """The estimator."""
    return [AdvantageSpec(name="broken", target="tests.server.broken:BrokenEstimator")]


def plugins_with_broken() -> PluginManager:
    """The installed plugins, the scripted components and this plugin."""
    return PluginManager(
        entry_points=[
            *installed_entry_points(),
            *entry_points_of("scripted", "ajet_testing.hooks"),
            *entry_points_of("broken", "tests.server.broken"),
        ]
    )
