"""The default merger: every distinct context of an episode once."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import MergePolicy, Merger
from ajet_core.timeline import Call, TokenTree, TokenTrie


class TrieMerger(Merger):
    """The merger ``trie``: a `TokenTrie` over an episode's calls.

    Time is linear in what is new in each call, whatever the number of calls before it.
    """

    def merge(self, episode_id: str, calls: Sequence[Call], policy: MergePolicy) -> TokenTree:
        """Merge the calls of one episode.

        :raises ValueError: a call is of another episode, or there twice.
        """
        trie = TokenTrie(episode_id, policy)
        # Only the relaxed policies depend on the order: the first to say something decides on its tokens.
        for call in sorted(calls, key=lambda call: call.index):
            trie.add(call)
        return trie.tree()
