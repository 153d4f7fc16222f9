"""The default merger: stores each distinct context of an episode once."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import ComponentSettings, Merger, MergerPromises, WorkerContext
from ajet_core.timeline import Call, TokenTree, TokenTrie
from ajet_server.embedded.settings import TrieMergerSettings


class TrieMerger(Merger):
    """The merger ``trie``: a `TokenTrie` over an episode's calls.

    The time is linear in the new tokens of each call, however many calls precede it.
    """

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._policy = TrieMergerSettings.model_validate(settings.model_dump()).policy

    @property
    def promises(self) -> MergerPromises:
        """Sharing, and with the policy ``exact`` exactness."""
        return MergerPromises(exact=self._policy == "exact", shares=True)

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge the calls of one episode.

        :raises ValueError: a call belongs to another episode, or is present twice.
        """
        trie = TokenTrie(episode_id, self._policy)
        # Only the relaxed policies depend on the order: the first call decides on its tokens.
        for call in sorted(calls, key=lambda call: call.index):
            trie.add(call)
        return trie.tree()
