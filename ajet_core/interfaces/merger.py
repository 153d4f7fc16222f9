"""The merger: an episode's calls become one token tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ajet_core.interfaces.context import ComponentSettings, WorkerContext
from ajet_core.timeline import Call, MergePolicy, TokenTree

__all__ = ["MergePolicy", "Merger"]


class Merger(ABC):
    """A merger. Pure: the same calls give the same tree, whatever was merged before."""

    def __init__(self, settings: ComponentSettings, context: WorkerContext) -> None:
        self.settings = settings
        self.context = context

    @abstractmethod
    def merge(self, episode_id: str, calls: Sequence[Call], policy: MergePolicy) -> TokenTree:
        """Merge the calls of one episode.

        ``exact`` means: every call's prompt and sampled tokens are the tokens of one root-to-node path,
        so that training on the tree gives the logprobs and gradients of training on every call. What the
        relaxed policies give up is counted in `TokenTree.tokens_altered`.

        :param calls: all of `episode_id`. Their order makes no difference with the policy ``exact``; with the
            others it is that of `Call.index`, in which the first to say something decides on its tokens.
        """
