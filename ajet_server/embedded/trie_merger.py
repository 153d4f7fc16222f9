"""The default merger: stores each distinct context of an episode once."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.interfaces import Merger, MergerPromises
from ajet_core.timeline import Call, TokenTree
from ajet_server.embedded.settings import TrieMergerSettings
from ajet_server.embedded.trie import TokenTrie


class TrieMerger(Merger[TrieMergerSettings]):
    """The merger ``trie``: a `TokenTrie` over an episode's calls.

    The time is linear in the new tokens of each call, however many calls precede it.
    """

    @property
    def promises(self) -> MergerPromises:
        """Sharing, and with the policy ``exact`` exactness."""
        return MergerPromises(exact=self.settings.policy == "exact", shares=True)

    def merge(self, episode_id: str, calls: Sequence[Call]) -> TokenTree:
        """Merge the calls of one episode.

        :raises ValueError: a call belongs to another episode, or is present twice.
        """
        trie = TokenTrie(episode_id, self.settings.policy)
        # Only the relaxed policies depend on the order: the first call decides on its tokens.
        for call in sorted(calls, key=lambda call: call.index):
            trie.add(call)
        return trie.tree()
